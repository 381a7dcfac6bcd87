"""The errors that this project raises on purpose, apart from those of a fault in it.

A program tells the two apart by `Refusal`: a refusal ends it with the message alone,
see `exits`, and any other error with a traceback. Each refusal is one of Python's
errors, too, for callers that catch a ValueError.
"""

import difflib
from collections.abc import Sequence


class Refusal(Exception):  # noqa: N818 (never raised by itself)
    """An error whose message names what is refused, and the line to write instead."""


class RefusedValueError(Refusal, ValueError):
    """A value that is refused."""


class RefusedTypeError(Refusal, TypeError):
    """A value of a kind that is refused."""


class RefusedKeyError(Refusal, KeyError):
    """A name that is not there."""


class RefusedRuntimeError(Refusal, RuntimeError):
    """An action that is refused here, or now."""


class RefusedImportError(Refusal, ModuleNotFoundError):
    """A package that is not installed."""


def near(name: str, known: Sequence[str], sign: str = "") -> str:
    """Returns ' Did you mean A or B?', or '' where no name is near.

    Args:
      name: the name that is not known.
      known: the names that are.
      sign: what to write before each, such as '%'.
    """
    folded = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.6)
    if not found:
        return ""
    return f" Did you mean {' or '.join(sign + folded[other] for other in found)}?"
