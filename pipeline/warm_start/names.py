"""Finds the name in a checkpoint of each variable that is taken over.

A checkpoint of this project has the names of here. One of another program has no
modules: `network/dense/kernel` is `dense/kernel` there, or below one name that all of
its variables have, `bert/dense/kernel`. Nothing else is guessed: what stays open goes
to `proposals`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipeline.process.refusals import RefusedValueError
from pipeline.strategy import averages

_AVERAGE = "/ExponentialMovingAverage"

Mapped = Callable[[str], str | None]


def own_names(names: Iterable[str], mapped: Mapped) -> dict[str, str]:
    """Returns the names in a checkpoint of this project, whether there or not.

    Args:
      names: names in this model.
      mapped: gives the name there that the user has given, or None.
    """
    return {name: mapped(name) or name for name in names}


def foreign_names(
    names: Iterable[str],
    mapped: Mapped,
    source: Any,
    places: Mapping[str, str],
    weights: Iterable[str],
) -> dict[str, str]:
    """Returns the names in another program's checkpoint; what is not there is left out.

    A name that the user has given is among them, there or not. Each of the others
    stands for one variable here, and is given to none.

    Args:
      names: names in this model, of weights.
      mapped: gives the name there that the user has given, or None.
      source: the checkpoint or file.
      places: of a file of Keras', the names that Keras itself would give.
      weights: names there of what is no optimizer's.
    """
    given, found = {}, {}
    root = _root(weights)
    for name in names:
        if (there := mapped(name)) is not None:
            given[name] = source.name_of(there)
            continue
        below = name.partition("/")[2]
        likely = (places.get(name), name, below, root and f"{root}/{below}")
        there = next((each for each in likely if each in source.shapes), None)
        if there is not None:
            found[name] = there
    taken = Counter([*found.values(), *set(given.values())])
    return {**{n: t for n, t in found.items() if taken[t] == 1}, **given}


def claimed_in_words(lacking: Iterable[str], taken: Mapping[str, str]) -> str:
    """Returns sentences on names that are there, and were given to other variables.

    Args:
      lacking: names in this model that have none there.
      taken: names in this model by the names there.
    """
    found = {name: taken.get(name.partition("/")[2]) for name in lacking}
    return "".join(
        f" {name.partition('/')[2]!r} is given to {other!r}: give a name for {name!r}, "
        "too."
        for name, other in found.items()
        if other is not None
    )


def _root(names: Iterable[str]) -> str | None:
    """Returns the name below which all of a checkpoint's weights stand, or None."""
    # Without a slash it is a counter, `global_step`.
    roots = {name.partition("/")[0] for name in names if "/" in name}
    return roots.pop() if len(roots) == 1 else None


def of_averages(names: Mapping[str, str], shapes: Mapping[str, Any]) -> dict[str, str]:
    """Returns the names of the averages that a checkpoint has of these variables.

    Args:
      names: names in the checkpoint by the names in this model.
      shapes: shapes in the checkpoint, by name.
    """
    foreign = [name for name in shapes if name.endswith(_AVERAGE)]
    return {
        name: _average(there, foreign) or averages.saved_as(there, shapes)
        for name, there in names.items()
    }


def _average(there: str, foreign: Iterable[str]) -> str | None:
    """Returns the average of a variable, which may stand below a scope's name.

    Raises:
      ValueError: there are several.
    """
    exact = f"{there}{_AVERAGE}"
    found = [n for n in foreign if n == exact or n.endswith(f"/{exact}")]
    if exact in found or len(found) < 2:
        return exact if exact in found else next(iter(found), None)
    raise RefusedValueError(
        f"WarmStartSettings.weights is 'average', and {there} has several, {found}: "
        "write weights='live', and the names in var_name_to_prev_var_name."
    )


def holds_averages(shapes: Mapping[str, Any]) -> bool:
    """Whether a checkpoint holds averages, of this project or of TensorFlow's.

    Args:
      shapes: shapes in the checkpoint, by name.
    """
    ends = (name.endswith(_AVERAGE) for name in shapes)
    return averages.held(shapes) or any(ends)
