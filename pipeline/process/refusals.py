"""The errors that this project raises on purpose, apart from those of a fault in it.

A program tells the two apart by `Refusal`: a refusal ends it with the message alone,
see `exits`, and any other error with a traceback. Each refusal is one of Python's
errors, too, for callers that catch a ValueError.
"""


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
