# SPDX-License-Identifier: Apache-2.0
"""Checks the values that users give, with one format: NAME is VALUE: expected ... Set ...

A class has one table from its fields to checks:

    _CHECKS = {"steps": integer(1, example=100, optional=True), "name": ...}

    def __post_init__(self):
        check_fields(self, _CHECKS)
"""

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError, UserTypeError, UserValueError

_MOST = 2**63 - 1  # The largest step of an int64.


class Check(NamedTuple):
    """A condition on a value, and its text in messages.

    Attributes:
      is_valid: returns whether a value is allowed.
      expected: the allowed values in words: "an int > 0".
      example: a value to write instead, as source text.
      optional: whether None is allowed.
      error: class of the error.
    """

    is_valid: Callable[[Any], bool]
    expected: str
    example: str
    optional: bool = False
    error: type[UserError] = UserValueError


def is_int(value: Any) -> bool:
    """Returns whether a value is an integer of Python or NumPy; True is not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite real number; True is not."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and math.isfinite(value)


def integer(least: int, *, most: int = _MOST, example: int, optional: bool = False) -> Check:
    """Returns the check of an integer from `least` to `most`."""
    words = f"an int > {least - 1}" if most == _MOST else f"an int from {least} to {most}"
    return Check(lambda v: is_int(v) and least <= v <= most, words, str(example), optional)


def number(least: float, *, above: bool = False, example: float, optional: bool = False) -> Check:
    """Returns the check of a finite number of at least `least`, or above it."""
    words = f"a number {'>' if above else '>='} {least:g}"
    return Check(
        lambda v: is_number(v) and (v > least if above else v >= least),
        words,
        str(example),
        optional,
    )


def boolean(*, optional: bool = False) -> Check:
    """Returns the check of True and False."""
    return Check(lambda v: isinstance(v, bool | np.bool_), "True or False", "True", optional)


def choice(*values: str) -> Check:
    """Returns the check of one of some texts; the first is the example."""
    words = " or ".join(filter(None, [", ".join(map(repr, values[:-1])), repr(values[-1])]))
    return Check(lambda v: isinstance(v, str) and v in values, words, repr(values[0]))


def function(words: str, example: str, *, optional: bool = False) -> Check:
    """Returns the check of something to call, not of a class of data such as a dataset."""
    return Check(callable, words, example, optional, UserTypeError)


def instance(kind: Any, words: str, example: str, *, optional: bool = False) -> Check:
    """Returns the check of an object of a class, or of one of several."""
    return Check(lambda v: isinstance(v, kind), words, example, optional, UserTypeError)


def check(name: str, value: Any, rule: Check) -> None:
    """Checks a value.

    Args:
      name: name in the message, with its class: "RunConfig.steps_per_loop".
      value: the value.
      rule: the condition.

    Raises:
      UserError: it is not that; also a ValueError, or a TypeError for the wrong kind.
    """
    if value is None and rule.optional:
        return
    try:
        valid = rule.is_valid(value)
    except Exception:  # An object of the user may fail in any comparison.
        valid = False
    if not valid:
        field = name.rpartition(".")[2]
        raise rule.error(
            f"{name} is {repr_short(value)}: expected {rule.expected}"
            f"{' or None' if rule.optional else ''}. Set {field}={rule.example}."
        )


def check_fields(owner: Any, rules: Mapping[str, Check]) -> None:
    """Checks the attributes of an object by a table of its class.

    Raises:
      UserError: an attribute is not what its check allows; the message names it.
    """
    for field, rule in rules.items():
        check(f"{type(owner).__name__}.{field}", getattr(owner, field), rule)


def objects(name: str, values: Any, kind: type, hint: Callable[[Any], str] = lambda _: "") -> tuple:
    """Returns the objects of a list as a tuple; None is an empty list.

    Args:
      name: name in the message: "TrainSpec.hooks".
      values: list or tuple of objects.
      kind: class that each has to be an object of.
      hint: returns a sentence for a value of another class.

    Raises:
      UserTypeError: it is not a list, or has a class or an object of another class.
    """
    if values is None:
        return ()
    is_list = isinstance(values, Sequence) and not isinstance(values, str | bytes)
    for value in values if is_list else [values]:
        if is_list and isinstance(value, kind):
            continue
        label = value.__name__ if isinstance(value, type) else type(value).__name__
        fits = isinstance(value, kind) or isinstance(value, type) and issubclass(value, kind)
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        remedy = (
            f"Set it to [{label}()]; in gin [@{label}()]."
            if fits
            else f"Write {article} subclass of {kind.__name__}.{hint(value)}"
        )
        raise UserTypeError(
            f"{name} is {repr_short(values)}: expected a list of {kind.__name__} objects. {remedy}"
        )
    return tuple(values)


def repr_short(value: Any) -> str:
    """Returns the beginning of a value's repr, whatever the value is."""
    try:
        text = repr(value)
    except Exception:
        text = f"an object of {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
