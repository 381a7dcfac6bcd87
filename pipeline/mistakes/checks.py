"""Checks the values that users give, in one voice: NAME is VALUE: write LINE."""

import math
import numbers
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.mistakes import habits
from pipeline.process import durations
from pipeline.process.refusals import RefusedTypeError, RefusedValueError


def kind_of(value: Any) -> str:
    """Returns the type of a value and the start of its repr, for messages."""
    if value is None:
        return "None"
    return f"{type(value).__name__} {value!r:.60}"


def is_int(value: Any) -> bool:
    """Returns whether a value is an integer; True, which Python takes for 1, is not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Returns whether a value is a real number; True is not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_positive(name: str, value: Any) -> None:
    """Checks a number of steps that a caller gave.

    Raises:
      ValueError: the value is neither None nor an int above 0 and below 2**63.
    """
    if value is not None and not (is_int(value) and value > 0):
        raise RefusedValueError(f"{name} is {value!r}: write an int > 0, or None.")
    if value is not None and value >= 2**63:  # More than a step's integer holds.
        raise RefusedValueError(f"{name} is {value}: write an int < 2**63, or None.")


def in_words(value: Any) -> str:
    """Returns dtypes and shapes of a nest of tensors: `{x: float32 [None, 6]}`."""

    def leaf(item: Any) -> str:
        shape = getattr(item, "shape", None)
        if shape is None or not hasattr(item, "dtype"):
            return kind_of(item)
        sizes = "unknown shape" if shape.rank is None else shape.as_list()
        return f"{item.dtype.name} {sizes}"

    return str(tf.nest.map_structure(leaf, value)).replace("'", "").replace('"', "")


def check_backend() -> None:
    """Checks that Keras runs on TensorFlow; a ValueError says how to set it."""
    if keras.config.backend() != "tensorflow":
        raise RefusedValueError(
            f"Keras runs on the backend {keras.config.backend()!r}: set the "
            "environment variable KERAS_BACKEND=tensorflow before Python starts."
        )


def check_kind(name: str, value: Any, kind: type, example: str) -> None:
    """Checks the type of an argument that a caller gave.

    Args:
      name: name of the argument.
      value: the argument, or None.
      kind: type that it has to have.
      example: a value to write instead, as source text.

    Raises:
      TypeError: the value is neither None nor of that kind.
    """
    if value is not None and not isinstance(value, kind):
        raise RefusedTypeError(f"{name} is {kind_of(value)}: write {name}={example}.")


def check_all(name: str, values: Any, kind: type) -> None:
    """Checks objects that a caller gave, such as hooks.

    Args:
      name: name of the argument.
      values: list or tuple of objects.
      kind: type that each has to have.

    Raises:
      TypeError: `values` is no list, or holds an object of another kind or a class.
    """
    a_kind = f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
    if not isinstance(values, (list, tuple)):
        raise RefusedTypeError(
            f"{name} is {kind_of(values)}, not a list: write {name}=[...]."
        )
    for value in values:
        if isinstance(value, type) and issubclass(value, kind):
            raise RefusedTypeError(
                f"{name} holds the class {value.__name__}, not an object of it: write "
                f"{value.__name__}()."
            )
        if not isinstance(value, kind):
            raise RefusedTypeError(
                f"{name} holds {kind_of(value)}, not {a_kind}: write a subclass of "
                f"pipeline.{kind.__name__}.{habits.kind_of_hook(value)}"
            )


def checked_names(name: str, values: Any) -> tuple[str, ...]:
    """Returns names that a caller gave, as a tuple of texts.

    Args:
      name: name of the argument.
      values: list or tuple of names.

    Raises:
      TypeError: it is one text, which Python takes for its letters.
    """
    if isinstance(values, (str, bytes)):
        raise RefusedTypeError(f"{name} is {values!r:.60}: write ('cat', 'dog').")
    return tuple(map(str, values))


def check_alike(spec: Any, mode: str, other: Any, other_mode: str) -> None:
    """Checks that a model_fn gets the same dtypes in two modes.

    Args:
      spec: `(features, labels)` as type specs of one batch.
      mode: mode of `spec`.
      other: `(features, labels)` as type specs of one batch.
      other_mode: mode of `other`.

    Raises:
      TypeError: a tensor has two dtypes.
    """
    here, there = (_dtypes(pair) for pair in (spec, other))
    for name in here:
        if name in there and here[name] != there[name]:
            raise RefusedTypeError(
                f"input_fn yields {name} of dtype {here[name]} in mode {mode!r} and "
                f"of {there[name]} in mode {other_mode!r}: cast one of them, "
                f"tf.cast(x, tf.{there[name]}), scaled alike."
            )


def components(element_spec: Any) -> Iterator[tuple[str, Any]]:
    """Yields the place of each tensor, such as `features['image']`, and its spec."""
    for root, specs in zip(("features", "labels"), element_spec, strict=True):
        if specs is None:
            continue
        for path, spec in keras.tree.flatten_with_path(specs):
            yield root + "".join(f"[{key!r}]" for key in path), spec


def _dtypes(element_spec: Any) -> dict[str, str]:
    """Returns dtypes by place, of the specs that have one."""
    specs = components(element_spec)
    return {place: spec.dtype.name for place, spec in specs if hasattr(spec, "dtype")}


def check_whole(
    name: str, value: Any, least: int, optional: bool, example: int
) -> None:
    """Checks a field that is an integer.

    Args:
      name: names of the class and the field, as "RunConfig.steps_per_loop".
      value: its value.
      least: least integer that is allowed.
      optional: whether None is allowed.
      example: a value to write instead.

    Raises:
      ValueError: the value is none of these.
    """
    if value is None and optional:
        return
    if not is_int(value) or value < least:
        raise RefusedValueError(
            f"{name} is {value!r}: write an integer of at least {least}"
            f"{' or None' if optional else ''}, such as "
            f"{name.rpartition('.')[2]}={example}."
        )


def check_loop(name: str, value: Any) -> None:
    """Checks the length of a call of the loop.

    Args:
      name: names of the class and the field.
      value: a number of steps, or a duration such as "30s".

    Raises:
      ValueError: the value is neither.
    """
    if isinstance(value, str) and durations.secs_of(value):
        return
    try:
        check_whole(name, value, 1, False, 1000)
    except RefusedValueError as error:
        hint = f"{str(error)[:-1]}, or a duration, {name.rpartition('.')[2]}='30s'."
        raise RefusedValueError(hint) from None


def check_amount(name: str, value: Any, *, hint: str = "") -> None:
    """Checks a field that is a number above 0, such as a time.

    Args:
      name: names of the class and the field.
      value: its value.
      hint: what else to write, for the message.

    Raises:
      ValueError: the value is no such number, or infinite.
    """
    if not is_number(value) or not 0 < value < math.inf:
        raise RefusedValueError(
            f"{name} is {value!r}: write a number above 0, such as "
            f"{name.rpartition('.')[2]}=600{', or ' + hint if hint else ''}."
        )


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Checks a field that has one of some values.

    Args:
      name: names of the class and the field.
      value: its value.
      choices: values that are allowed; the first is the example.

    Raises:
      ValueError: the value is none of them.
    """
    # The types are compared, too: in Python, 1 == True and 0 == False.
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        listed = ", ".join(repr(choice) for choice in choices)
        raise RefusedValueError(
            f"{name} is {value!r}: write one of {listed}, such as "
            f"{name.rpartition('.')[2]}={choices[0]!r}."
        )


def check_every(name: str, every_steps: Any) -> None:
    """Checks the number of steps between two calls of a hook.

    Raises:
      ValueError: the number is neither None nor an int of at least 0.
    """
    if every_steps is not None:
        check_count(name, every_steps, least=0, instead=", or None for no step")


def check_count(name: str, value: Any, *, least: int, instead: str = "") -> None:
    """Checks a number of steps that a caller gave to a hook.

    Args:
      name: names of the class and the argument, as "StopAtStepHook.num_steps".
      value: the number.
      least: least number that is allowed.
      instead: other values that are allowed, for the message.

    Raises:
      ValueError: the number is no int, or less than `least`.
    """
    if not is_int(value) or value < least:
        field = name.partition(".")[2]
        raise RefusedValueError(
            f"{name} is {value!r}: write an int of at least {least}, "
            f"{field}=100{instead}."
        )


def checked_steps(name: str, steps: Any) -> tuple[int, ...]:
    """Returns global steps in order, each once.

    Args:
      name: field of RunConfig.
      steps: list or tuple of steps.

    Raises:
      ValueError: they are no global steps.
    """
    listed = steps if isinstance(steps, (list, tuple)) else (None,)
    if not all(is_int(step) and step >= 0 for step in listed):
        raise RefusedValueError(
            f"RunConfig.{name} is {steps!r}: write global steps, such as "
            f"{name}=(1000, 5000)."
        )
    return tuple(sorted(set(listed)))


def checked_secs(name: str, value: Any) -> float:
    """Returns a duration in seconds.

    Args:
      name: name of the argument, for the message.
      value: a number of seconds, or a text such as "3h", "90m", "1h30m", "2d", "45s".

    Raises:
      ValueError: it is no duration, or not above 0.
    """
    secs = value if is_number(value) else None
    if isinstance(value, str):
        secs = durations.secs_of(value)
    if secs is None or not 0 < secs < float("inf"):
        field = name.partition(".")[2]
        raise RefusedValueError(
            f"{name} is {kind_of(value)}: write a number of seconds above 0, or a text "
            f"such as {field}='3h', '90m' or '1h30m'."
        )
    return float(secs)
