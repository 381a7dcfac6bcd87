# SPDX-License-Identifier: Apache-2.0
"""Calls functions of the user with the arguments that they declare."""

import copy
import inspect
from collections.abc import Callable, Mapping, ValuesView
from typing import Any

import keras
import tensorflow as tf

from ..errors import UserTypeError
from ..private import KERAS_VARIABLE
from .checks import repr_short

# Arguments of model_fn in addition to the modules.
MODEL_FN_ARGUMENTS = ("features", "labels", "mode", "params", "config", "step")
_RESERVED = (*MODEL_FN_ARGUMENTS, "driver")

# Objects of these classes are shared: a copy would be other state.
_STATE = (
    tf.Module,
    tf.Variable,
    tf.Tensor,
    KERAS_VARIABLE,
    keras.Layer,
    keras.optimizers.Optimizer,
)


def arguments(fn: Callable[..., Any], available: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    """Returns those of `available` that the signature of `fn` names.

    Args:
      fn: function of the user.
      available: values by argument name.
      role: kind of the function, for the error message: 'model_fn'.

    Raises:
      UserTypeError: `fn` requires an argument that is not available.
    """
    if takes_all(fn):
        return available
    missing = required(fn) - available.keys()
    if missing:
        raise UserTypeError(
            f"{role} {name_of(fn)} requires {sorted(missing)}: expected some of "
            f"{sorted(available)}. Give the others a default."
        )
    return {p.name: available[p.name] for p in _parameters(fn) if p.name in available}


def check_model_fn(fn: Any, modules: Any) -> None:
    """Checks a model_fn and its modules before anything is created.

    Raises:
      UserTypeError: model_fn is not a function, a module is not a factory, or their names do not
        fit each other.
    """
    if isinstance(fn, keras.Layer):
        raise UserTypeError(
            f"model_fn is {repr_short(fn)}: expected a function. Write def model_fn(features, "
            "labels, mode, network, optimizer), and set modules={'network': make_network}."
        )
    if not callable(fn):
        raise UserTypeError(
            f"model_fn is {repr_short(fn)}: expected a function that returns an EstimatorSpec."
        )
    if not isinstance(modules, Mapping):
        raise UserTypeError(
            f"modules is {repr_short(modules)}: expected a dict of factories. Set "
            "modules={'network': make_network, 'optimizer': keras.optimizers.Adam}."
        )
    for name, factory in modules.items():
        if not isinstance(name, str) or not name or "/" in name or name in _RESERVED:
            raise UserTypeError(
                f"modules has the name {repr_short(name)}: expected a text without '/', and none "
                f"of {', '.join(_RESERVED)}. Set a name such as 'network'."
            )
        if isinstance(factory, _STATE) or not callable(factory):
            raise UserTypeError(
                f"modules[{name!r}] is {repr_short(factory)}: expected a factory. Set it to the "
                "function or class that makes it; in gin @cnn, not @cnn()."
            )
    names = [p.name for p in _parameters(fn)]
    missing = required(fn) - {*MODEL_FN_ARGUMENTS, *modules}
    unused = [] if takes_all(fn) else [name for name in ("features", *modules) if name not in names]
    if missing or unused:
        what = f"requires {sorted(missing)}" if missing else f"does not take {unused}"
        raise UserTypeError(
            f"model_fn {name_of(fn)} {what}: expected arguments among "
            f"{', '.join(MODEL_FN_ARGUMENTS)} and the modules {sorted(modules)}, features and all "
            "modules included. Add the argument, or set Estimator(modules={'name': factory})."
        )


def check_params(params: Any) -> None:
    """Checks that hyperparameters have names.

    Raises:
      UserTypeError: they are a number, text, list, array or function.
    """
    nameless = isinstance(params, (str, bytes, int, float, list, set, type, *_STATE))
    is_tuple = isinstance(params, tuple) and not hasattr(params, "_fields")
    if nameless or is_tuple or inspect.isroutine(params) or hasattr(params, "dtype"):
        raise UserTypeError(
            f"params is {repr_short(params)}: expected a dict, or an object with attributes. Set "
            "params={'learning_rate': 0.1}."
        )


def make(name: str, factory: Callable[..., Any], params: Any, config: Any) -> Any:
    """Returns the module that a factory makes; it gets `params` and `config` if it requires them.

    Raises:
      UserTypeError: the factory requires another argument, or returns None.
    """
    available = {"params": own(params), "config": config}
    needed = required(factory)
    if missing := needed - available.keys():
        arguments = ", ".join(f"{each}=..." for each in sorted(missing))
        raise UserTypeError(
            f"modules[{name!r}] is {name_of(factory)}, which requires {sorted(missing)}: expected "
            f"a function without arguments. Set modules={{{name!r}: lambda: "
            f"{name_of(factory)}({arguments})}}."
        )
    module = factory(**{each: available[each] for each in available if each in needed})
    if module is None:
        raise UserTypeError(
            f"modules[{name!r}], the factory {name_of(factory)}, returned None: expected a Keras "
            "model, an optimizer, a tf.Module or a variable. Return it."
        )
    return module


def required(fn: Callable[..., Any]) -> set[str]:
    """Returns the arguments that `fn` requires, except those that a decorator may supply."""
    # gin keeps the signature of a function whose arguments it supplies.
    target = fn.__init__ if isinstance(fn, type) else fn
    if hasattr(target, "__wrapped__"):
        return {p.name for p in _parameters(fn) if p.default is p.empty} & {"params", "config"}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name for p in _parameters(fn) if p.default is p.empty and p.kind not in variadic}


def accepts(fn: Callable[..., Any], name: str) -> bool:
    """Returns whether `fn` has a parameter called `name`."""
    return any(p.name == name for p in _parameters(fn))


def takes_all(fn: Callable[..., Any]) -> bool:
    """Returns whether `fn` has `**kwargs`, so that it gets all arguments."""
    return any(p.kind is p.VAR_KEYWORD for p in _parameters(fn))


def name_of(fn: Any) -> str:
    """Returns the name of a function, class, partial or callable object."""
    fn = getattr(fn, "func", fn)
    return getattr(fn, "__name__", None) or type(fn).__name__


def own(value: Any) -> Any:
    """Returns a deep copy of hyperparameters, so that no function changes those of another.

    Variables, models and tensors in it stay the same objects; so does all of it if it cannot be
    copied.
    """
    memo: dict[int, Any] = {}
    _keep(value, memo)
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # Any class may refuse to be copied.
        return value


def _keep(value: Any, memo: dict[int, Any], depth: int = 0) -> None:
    """Adds the state in a value to the memo of `deepcopy`, which then returns it as it is."""
    if isinstance(value, _STATE):
        memo[id(value)] = value
    elif depth < 5:
        parts = value.values() if isinstance(value, Mapping) else value
        if not isinstance(parts, list | tuple | set | ValuesView):
            parts = getattr(value, "__dict__", {}).values()
        for part in parts:
            _keep(part, memo, depth + 1)


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(fn).parameters.values())
    except ValueError:  # A function in C without a signature.
        return []
