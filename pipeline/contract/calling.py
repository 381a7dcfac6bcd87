"""Calls the user's functions with the arguments that they declare, by name.

A function that requires an argument which nobody supplies is an error that lists both
sides: the arguments that it requires, and those that are there.
"""

import functools
import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.contract import params as params_lib
from pipeline.mistakes import user_errors
from pipeline.process.refusals import RefusedTypeError

_BY_NAME = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def name_of(fn: Any) -> str:
    """Returns the name of a function, partial, bound method or object, for messages."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def declared(fn: Callable[..., Any]) -> tuple[dict[str, bool], bool]:
    """Returns `({name: is_required}, takes_any)` of the arguments of a callable."""
    parameters = inspect.signature(fn).parameters.values()
    names = {p.name: p.default is p.empty for p in parameters if p.kind in _BY_NAME}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return names, takes_any


def with_value(fn: Callable[..., Any], name: str, value: Any) -> Callable[..., Any]:
    """Returns a function that gets another value for one argument, where it takes it.

    Args:
      fn: function that `call` calls.
      name: name of the argument.
      value: the value that it gets instead of the one that is supplied.
    """

    @functools.wraps(fn)
    def called(**supplied: Any) -> Any:
        return fn(**{**supplied, name: value} if name in supplied else supplied)

    called.__qualname__ = name_of(fn)
    return called


def call(fn: Callable[..., Any], supplied: Mapping[str, Any], *, role: str) -> Any:
    """Calls `fn` with the arguments that it declares and that are supplied.

    It gets a copy of `params`, which it may change.

    Args:
      fn: function to call.
      supplied: arguments by name.
      role: kind of function, for messages: "model_fn", "input_fn".

    Returns:
      The result of `fn`.

    Raises:
      TypeError: `fn` requires an argument that nobody supplies. A decorated function
        (gin) is called all the same: its decorator may know the value.
    """
    names, takes_any = declared(fn)
    chosen = {k: v for k, v in supplied.items() if takes_any or k in names}
    if "params" in chosen:
        chosen["params"] = params_lib.own(chosen["params"])
    missing = [name for name, required in names.items() if required]
    missing = [name for name in missing if name not in supplied]
    if missing and not hasattr(fn, "__wrapped__"):
        raise RefusedTypeError(_missing_text(fn, role, missing, supplied))
    try:
        return user_errors.invoke(fn, **chosen)
    except TypeError as error:
        # The decorator did not know the value either: its words, too, help to find out.
        if missing and "argument" in str(error):
            text = _missing_text(fn, role, missing, supplied)
            raise RefusedTypeError(f"{text}\n{error}") from error
        raise


def call_factory(
    factory: Callable[..., Any], context: Mapping[str, Any], *, role: str
) -> Any:
    """Calls the factory of a module with `params` and `config`, where it requires them.

    An argument with a default keeps it, `**kwargs` get nothing, and gin's bindings win:
    a class such as an optimizer may have an argument of such a name for itself. One
    whose default is `...` is given it as well: so a factory can tell that it was left
    out by who calls it otherwise.

    Args:
      factory: the user's function or class.
      context: `params` and `config` by name.
      role: kind of function, for messages.

    Returns:
      The module.

    Raises:
      TypeError: the factory requires another argument.
    """
    wanted = wanted_by(factory, context)
    decorated = factory.__init__ if isinstance(factory, type) else factory
    required, _ = declared(factory) if wanted else ({}, False)
    if any(required[name] for name in wanted) and hasattr(decorated, "__wrapped__"):
        # gin may bind what the factory requires: it is asked first, without it.
        left = {k: v for k, v in wanted.items() if not required[k]}
        try:
            return user_errors.invoke(factory, **left)
        except TypeError as error:
            if _began(decorated, error):
                raise
    return call(factory, wanted, role=role)


def wanted_by(
    factory: Callable[..., Any], context: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of `context` that a module's factory requires."""
    try:
        arguments = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # A builtin has no signature to look at.
        return {}
    wanted = {
        p.name
        for p in arguments.values()
        if p.kind in _BY_NAME and (p.default is p.empty or p.default is ...)
    }
    return {k: v for k, v in context.items() if k in wanted}


def _began(fn: Callable[..., Any], error: TypeError) -> bool:
    """Returns whether the body of `fn` raised the error, rather than its call."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is code for frame, _ in frames)


def _missing_text(
    fn: Any, role: str, missing: list[str], supplied: Mapping[str, Any]
) -> str:
    advice = "Rename the argument or give it a default"
    if role == "model_fn":
        advice = (
            "Rename the argument, give it a default, or hand in a module of that name: "
            "Estimator(modules={'name': factory})"
        )
    if not supplied:
        advice = f"Bind them: lambda: {name_of(fn)}({missing[0]}=...)"
    return (
        f"{role} {name_of(fn)} requires {missing}, which nobody supplies; supplied "
        f"are {sorted(supplied)}. {advice}."
    )
