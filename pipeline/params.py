"""The user's hyperparameters: what may hold them, and a copy for each who gets them."""

import copy
import inspect
import numbers
import types
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# Hyperparameters have names, and these have none.
_NAMELESS = (str, bytes, numbers.Number, list, set, frozenset, np.ndarray, tf.Tensor)
# A copy would be other state, or needs a graph of its own.
_STATE = (
    tf.Module,
    tf.Variable,
    tf.Tensor,
    keras.Variable,
    keras.layers.Layer,
    keras.optimizers.Optimizer,
)

# These are never copied, whatever they hold.
_ATOMS = (type, types.ModuleType, types.FunctionType, str, bytes, numbers.Number)


def checked(value: Any) -> Any:
    """A copy of what a caller gave as `params`; {} for None.

    Args:
      value: a dict, or any object with names: a ConfigDict, a dataclass, a Namespace,
        a class of one's own. It keeps its type.

    Raises:
      TypeError: something without names, or a class or function.
    """
    if value is None:
        return {}
    plain_tuple = isinstance(value, tuple) and not hasattr(value, "_fields")
    made_later = isinstance(value, type) or inspect.isroutine(value)
    if isinstance(value, _NAMELESS) or plain_tuple or made_later:
        raise TypeError(
            f"params is {type(value).__name__} {value!r:.60}: write params="
            "{'learning_rate': 0.1}, or an object that has them as attributes."
        )
    return own(value)


def own(value: Any) -> Any:
    """A deep copy, for one who may change it.

    Variables, models and tensors in it stay the same ones, and so does what cannot be
    copied, such as an open file.

    Args:
      value: of any type, which the copy has, too.
    """
    if isinstance(value, _STATE):
        return value
    if type(value) is dict:
        return {key: own(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(own(each) for each in value)
    try:
        return copy.deepcopy(value, {id(each): each for each in _states(value, {})})
    except Exception:  # What it is depends on the class that cannot be copied.
        return _rebuilt(value) if isinstance(value, dict) else value


def _states(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Finds what is to stay the same, anywhere in containers and objects."""
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
    """A copy without the methods of its class, of which `__getattr__` often raises."""
    made = type(value).__new__(type(value))
    dict.update(made, {key: own(each) for key, each in dict.items(value)})
    vars(made).update(own(vars(value)))
    return made
