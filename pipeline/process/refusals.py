"""What this project raises on purpose, as against what fails inside of it.

A program tells the two apart by `Refusal`: what is refused ends it with the message
alone, see `exits`, anything else with a traceback. Each error is one of Python's, too,
for those who catch a ValueError.
"""


class Refusal(Exception):  # noqa: N818 (never raised by itself)
    """Something that this project does not do, and the line to write instead."""


class RefusedValueError(Refusal, ValueError):
    """A value that is refused."""


class RefusedTypeError(Refusal, TypeError):
    """A value of a kind that is refused."""


class RefusedKeyError(Refusal, KeyError):
    """A name that is not there."""


class RefusedRuntimeError(Refusal, RuntimeError):
    """What cannot be done here, or now."""


class RefusedImportError(Refusal, ModuleNotFoundError):
    """A package that is not installed."""
