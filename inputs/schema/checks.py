"""Checks the arguments of features."""

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pipeline import RefusedValueError
from pipeline.process.refusals import near

_MOST = float(tf.float32.max)


def check_choice(argument: str, value: Any, choices: Sequence[str]) -> None:
    """Raises if a value is none of the choices.

    Args:
      argument: what is checked, for messages.
      value: its value.
      choices: what it may be.
    """
    if not isinstance(value, str) or value not in choices:
        raise RefusedValueError(
            f"{argument} is {value!r}: write {argument}="
            f"{' or '.join(map(repr, choices))}.{near(str(value), choices)}"
        )


def check_flag(argument: str, value: Any) -> None:
    """Raises if a value is neither True nor False.

    Args:
      argument: what is checked, for messages.
      value: its value.
    """
    if not isinstance(value, bool):
        raise RefusedValueError(
            f"{argument} is {value!r}: write {argument}=True or False."
        )


def a_kind(kind: str) -> str:
    """Returns a kind with its article, for messages.

    Args:
      kind: of a feature, or of a column.
    """
    return f"{'an' if kind == 'id' else 'a'} {kind}"


def is_integer(value: Any) -> bool:
    """Returns whether a value is an integer that an int64 column can hold.

    The least of int64 stands for what is missing.
    """
    integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return integer and tf.int64.min < value <= tf.int64.max


def check_int(argument: str, value: Any, *, least: int, or_else: str = "") -> None:
    """Raises if a value is no integer of at least `least` that int32 holds.

    Args:
      argument: what is checked, for messages.
      value: its value.
      least: the least that it may be.
      or_else: what else may be written, for the message; '' is nothing.
    """
    if type(value) is not int or not least <= value <= tf.int32.max:
        example = f"{argument}={max(least, 10)}"
        raise RefusedValueError(
            f"{argument} is {value!r}: write an integer of {least} or more, {example}"
            f"{f', or {argument}={or_else}' if or_else else ''}."
        )


def check_number(argument: str, value: Any) -> None:
    """Raises if a value is no finite number that float32 holds.

    Args:
      argument: what is checked, for messages.
      value: its value.
    """
    is_number = isinstance(value, float) or is_integer(value)
    if not is_number or not math.isfinite(value) or abs(value) > _MOST:
        raise RefusedValueError(
            f"{argument} is {value!r}: write numbers that float32 holds, "
            f"{argument}=0.0 or [0.0, 1.0]."
        )


def check_words(argument: str, values: Any) -> tuple[str, ...]:
    """Returns words as a tuple.

    Args:
      argument: what is checked, for messages.
      values: the words.

    Raises:
      ValueError: they are no list, none, or one is empty or there twice.
    """
    return _checked(argument, values, "words", lambda v: isinstance(v, str) and v != "")


def check_ids(argument: str, values: Any) -> tuple[int, ...]:
    """Returns ids as a tuple of int.

    Args:
      argument: what is checked, for messages.
      values: the ids.

    Raises:
      ValueError: they are no list, none, or one is no integer or there twice.
    """
    return tuple(map(int, _checked(argument, values, "ids", is_integer)))


def _checked(
    argument: str, values: Any, what: str, is_one: Callable[[Any], bool]
) -> tuple[Any, ...]:
    """Returns a list as a tuple, after a check of each item, and that each is once."""
    if not isinstance(values, (list, tuple)) or not values:
        raise RefusedValueError(
            f"{argument} is {values!r}: write a list of {what}, {argument}=[...]."
        )
    seen = set()
    for place, value in enumerate(values):
        if not is_one(value):
            raise RefusedValueError(
                f"{argument}[{place}] is {value!r}, none of the {what} that are asked "
                "for: mend it, or take it out."
            )
        if value in seen:
            raise RefusedValueError(
                f"{argument}[{place}] is {value!r}, which stands there before: write "
                "each once."
            )
        seen.add(value)
    return tuple(values)


def ascending(
    argument: str, values: Any, *, count: int | None = None
) -> tuple[float, ...]:
    """Returns numbers as floats, after a check that each is above the one before.

    Args:
      argument: what is checked, for messages.
      values: the numbers.
      count: how many there have to be; None: some.
    """
    is_list = isinstance(values, (list, tuple)) and len(values) > 0
    if not is_list or (count is not None and len(values) != count):
        raise RefusedValueError(
            f"{argument} is {values!r}: write {count or 'some'} numbers, "
            f"{argument}=[0.0, 1.0]."
        )
    for value in values:
        check_number(argument, value)
    found = tuple(map(float, values))
    if any(not low < high for low, high in zip(found, found[1:], strict=False)):
        raise RefusedValueError(
            f"{argument} is {values!r}, which does not ascend: write "
            f"{argument}={sorted(set(found))}."
        )
    return found
