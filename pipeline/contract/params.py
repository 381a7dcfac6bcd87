"""Checks the user's hyperparameters, and copies them for each function that gets them.

A function may change its copy. Nobody else sees that, and the Estimator keeps what it
was given.
"""

import copy
import inspect
import numbers
import types
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.process.refusals import RefusedTypeError

Scalar = bool | int | float | str
# Hyperparameters deeper than this are left out; an object may hold itself.
_MOST_DEPTH = 5
# Hyperparameters have names, and these have none.
_NAMELESS = (str, bytes, numbers.Number, list, set, frozenset, np.ndarray, tf.Tensor)
# Never copied: a copy would be other state, or cannot be made inside of a graph.
_STATE = (
    tf.Module,
    tf.Variable,
    tf.Tensor,
    keras.Variable,
    keras.layers.Layer,
    keras.optimizers.Optimizer,
)

# deepcopy returns these as they are: nothing in them has to be looked for.
_ATOMS = (type, types.ModuleType, types.FunctionType, str, bytes, numbers.Number)


def checked(value: Any) -> Any:
    """Returns a copy of the `params` that a caller gave; {} for None.

    Args:
      value: a dict, or any object with attributes: a ConfigDict, a dataclass, a
        Namespace, an object of the user's class. The copy has its type.

    Raises:
      TypeError: it has no names in it, or it is a class or function.
    """
    if value is None:
        return {}
    plain_tuple = isinstance(value, tuple) and not hasattr(value, "_fields")
    made_later = isinstance(value, type) or inspect.isroutine(value)
    if isinstance(value, _NAMELESS) or plain_tuple or made_later:
        raise RefusedTypeError(
            f"params is {type(value).__name__} {value!r:.60}: write params="
            "{'learning_rate': 0.1}, or an object that has them as attributes."
        )
    return own(value)


def own(value: Any) -> Any:
    """Returns a deep copy of a value, of the same type.

    Variables, models and tensors in it stay the same objects, and so do objects that
    cannot be copied, such as an open file.

    Args:
      value: a value of any type.
    """
    if isinstance(value, _STATE):
        return value
    if type(value) is dict:
        return {key: own(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(own(each) for each in value)
    try:
        return copy.deepcopy(value, {id(each): each for each in _states(value, {})})
    # A class that cannot be copied may raise anything.
    except Exception:
        return _rebuilt(value) if isinstance(value, dict) else value


def has(value: Any, name: str) -> bool:
    """Returns whether hyperparameters have one of a name, as a key or an attribute."""
    return name in value if isinstance(value, Mapping) else hasattr(value, name)


def with_entry(value: Any, name: str, entry: Any) -> Any:
    """Returns a copy of hyperparameters with one more in it.

    Args:
      value: hyperparameters as `checked` returned them.
      name: name of the new one.
      entry: its value.

    Raises:
      TypeError: they take no other name: a named tuple, a frozen dataclass.
    """
    copied = own(value)
    try:
        if isinstance(copied, MutableMapping):
            copied[name] = entry
        else:
            setattr(copied, name, entry)
    # A class of the user's that takes no new name may raise anything.
    except Exception as error:
        raise RefusedTypeError(
            f"params is {type(value).__name__}, which takes no {name}: write params="
            f"{{'learning_rate': 0.1}}, or leave RunConfig's {name} out. {error}"
        ) from error
    return copied


def flat(value: Any) -> dict[str, Scalar]:
    """Returns the numbers, bools and strings among hyperparameters, by their names.

    What lies deeper is named by its way there, `optimizer.rate`. Lists of them are
    text; other values, such as functions, are left out.

    Args:
      value: hyperparameters as `checked` returned them.
    """
    found: dict[str, Scalar] = {}
    _flatten("", value, found, depth=_MOST_DEPTH)
    return found


def check_flat(name: str, value: Any) -> None:
    """Checks hyperparameters that are by name, and not nested.

    Args:
      name: name of the argument.
      value: the argument; None is allowed.

    Raises:
      TypeError: it is no dict of numbers, bools and strings by string.
    """
    if value is None:
        return
    example = f"write {name.rpartition('.')[2]}={{'learning_rate': 0.1}}"
    if not isinstance(value, Mapping):
        raise RefusedTypeError(f"{name} is {value!r:.60}, not a dict: {example}.")
    for key, each in value.items():
        if not isinstance(key, str) or not isinstance(each, Scalar):
            raise RefusedTypeError(
                f"{name} has {key!r}: {each!r:.60}; names are strings, and values are "
                f"numbers, bools and strings: {example}."
            )


def _flatten(name: str, value: Any, found: dict[str, Scalar], depth: int) -> None:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Scalar):
        found[name] = value
    elif isinstance(value, (list, tuple)) and all(
        isinstance(each, Scalar) for each in value
    ):
        found[name] = str(value)
    elif depth and not isinstance(value, (*_STATE, type, types.FunctionType)):
        parts = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        for key, part in parts.items():
            if not str(key).startswith("_"):
                _flatten(f"{name}.{key}" if name else str(key), part, found, depth - 1)


def _states(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yields the objects not to copy, at any depth of containers and objects."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, _STATE):
        yield value
        return
    if isinstance(value, _ATOMS):
        return
    parts: list[Any] = [*getattr(value, "__dict__", {}).values()]
    if isinstance(value, dict):
        parts += dict.values(value)
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts += value
    for part in parts:
        yield from _states(part, seen)


def _rebuilt(value: dict) -> dict:
    """Returns a copy of a dict, made without its class's methods, which may fail."""
    made = type(value).__new__(type(value))
    dict.update(made, {key: own(each) for key, each in dict.items(value)})
    vars(made).update(own(vars(value)))
    return made
