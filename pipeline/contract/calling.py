"""Calling the user's functions: each gets the arguments that it declares, by name.

What a function declares and nobody supplies, and what is supplied for nobody, is an
error that lists both sides.
"""

import functools
import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.contract import params as params_lib
from pipeline.contract import user_errors
from pipeline.process.refusals import RefusedTypeError

_BY_NAME = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def name_of(fn: Any) -> str:
    """A name for messages: of a function, partial, bound method or object."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def declared(fn: Callable[..., Any]) -> tuple[dict[str, bool], bool]:
    """What `fn` can be given by name.

    Args:
      fn: any callable; decorators that keep `__wrapped__` are looked through.

    Returns:
      `({name: required}, takes_any)`; `takes_any` where it declares `**kwargs`.
    """
    parameters = inspect.signature(fn).parameters.values()
    names = {p.name: p.default is p.empty for p in parameters if p.kind in _BY_NAME}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return names, takes_any


def call(fn: Callable[..., Any], supplied: Mapping[str, Any], *, role: str) -> Any:
    """Calls `fn` with those of `supplied` that it declares.

    Of `params` it gets a copy, which it may change.

    Args:
      fn: what to call.
      supplied: argument by name.
      role: what `fn` is, for messages: "model_fn", "input_fn".

    Raises:
      TypeError: `fn` requires an argument that nobody supplies. A decorated
        function (gin) is called first: its decorator may know the value.
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
        if missing and "argument" in str(error):
            text = _missing_text(fn, role, missing, supplied)
            raise RefusedTypeError(f"{text}\n{error}") from error
        raise


def call_factory(
    factory: Callable[..., Any], context: Mapping[str, Any], *, role: str
) -> Any:
    """Calls the factory of a module with what it requires of `params` and `config`.

    An argument with a default keeps it, `**kwargs` get nothing, and what gin binds
    wins: a class such as an optimizer may have an argument of such a name, too.

    Args:
      factory: the user's function or class.
      context: `params` and `config`.
      role: what it is, for messages.

    Raises:
      TypeError: it requires something else.
    """
    wanted = wanted_by(factory, context)
    decorated = factory.__init__ if isinstance(factory, type) else factory
    if wanted and hasattr(decorated, "__wrapped__"):
        try:
            return user_errors.invoke(factory)
        except TypeError as error:
            if _began(decorated, error):
                raise
    return call(factory, wanted, role=role)


def wanted_by(
    factory: Callable[..., Any], context: Mapping[str, Any]
) -> dict[str, Any]:
    """Those of `context` that a module's factory requires."""
    try:
        names, _ = declared(factory)
    except (TypeError, ValueError):  # A builtin has no signature to look at.
        return {}
    return {k: v for k, v in context.items() if names.get(k)}


def _began(fn: Callable[..., Any], error: TypeError) -> bool:
    """Whether the body of `fn` raised it, so that not just an argument was missing."""
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
