"""Names tensors as a signature of a SavedModel can: as Python names arguments."""

import keyword
import re
from collections.abc import Iterable


def sent_names(own: Iterable[str]) -> dict[str, str]:
    """Returns the name under which each tensor is sent, by its own.

    It is its own where that is a Python identifier and no keyword.

    Args:
      own: names of tensors, which differ.
    """
    own = list(own)
    names = {name: name for name in own if _fits(name)}
    for name in own:
        if name not in names:
            names[name] = _free(_identifier(name), names.values())
    return {name: names[name] for name in own}


def _fits(name: str) -> bool:
    return bool(re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name)) and not (
        keyword.iskeyword(name)
    )


def _identifier(name: str) -> str:
    """Returns 'dep_time' for 'dep time', 'arg_1st' for '1st', 'class_' for 'class'."""
    if keyword.iskeyword(name):
        return f"{name}_"
    word = re.sub("[^A-Za-z0-9_]", "_", name)
    return word if _fits(word) else f"arg_{word}"


def _free(name: str, taken: Iterable[str]) -> str:
    """Returns a name, with a number behind it where it is taken."""
    taken, found, number = set(taken), name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found
