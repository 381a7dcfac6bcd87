"""Calling the user's functions: each gets the arguments that it declares, by name.

What a function declares and nobody supplies, and what is supplied for nobody, is an
error that lists both sides.
"""

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.model_fn import EstimatorSpec, SpecError, kind_of

RESERVED_ARGUMENTS = ("features", "labels", "mode", "params", "config", "step")

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
    missing = [name for name, required in names.items() if required]
    missing = [name for name in missing if name not in supplied]
    if missing and not hasattr(fn, "__wrapped__"):
        raise TypeError(_missing_text(fn, role, missing, supplied))
    try:
        return fn(**chosen)
    except TypeError as error:
        if missing and "argument" in str(error):
            text = _missing_text(fn, role, missing, supplied)
            raise TypeError(f"{text}\n{error}") from error
        raise


def call_model_fn(
    model_fn: Callable[..., Any],
    *,
    features: Any,
    labels: Any,
    mode: str,
    modules: Mapping[str, Any],
    context: Mapping[str, Any],
) -> EstimatorSpec:
    """Calls `model_fn` with the arguments that it declares and checks its answer.

    Args:
      model_fn: the user's.
      features: nest of tensors, one replica's batch.
      labels: the same, or None.
      mode: one of `ModeKeys`.
      modules: the modules by name.
      context: `params`, `config` and `step`.

    Raises:
      SpecError: the answer breaks the contract; the message names the model_fn.
      TypeError: an argument that nobody supplies.
    """
    supplied = {"features": features, "labels": labels, "mode": mode}
    name = name_of(model_fn)
    try:
        spec = call(model_fn, {**modules, **context, **supplied}, role="model_fn")
    except SpecError as error:
        raise SpecError(f"model_fn {name}: {error}") from error
    if not isinstance(spec, EstimatorSpec):
        raise SpecError(
            f"model_fn {name} returned {kind_of(spec)} in mode {mode!r}, not an "
            "EstimatorSpec. Does every branch end in `return EstimatorSpec(mode, ...)`?"
        )
    if spec.mode != mode:
        raise SpecError(
            f"model_fn {name} was called in mode {mode!r} and returned a spec of mode "
            f"{spec.mode!r}: write EstimatorSpec(mode, ...)."
        )
    return spec


def check_model_fn(
    model_fn: Callable[..., Any], module_names: Sequence[str], *, has_labels: bool
) -> None:
    """Checks what `model_fn` declares against what it will be given.

    Args:
      model_fn: the user's.
      module_names: names under which modules were handed in.
      has_labels: whether the input yields labels that model_fn has to take.

    Raises:
      TypeError: not callable, no `features`, a module that model_fn does not take,
        labels that it does not take, or a module under a reserved name.
    """
    if not callable(model_fn):
        raise TypeError(f"model_fn is {kind_of(model_fn)}, not a callable.")
    reserved = [name for name in module_names if name in RESERVED_ARGUMENTS]
    if reserved:
        raise TypeError(
            f"modules {reserved} have names that model_fn's own arguments use "
            f"({list(RESERVED_ARGUMENTS)}): rename them."
        )
    names, takes_any = declared(model_fn)
    title = f"model_fn {name_of(model_fn)}"
    if "features" not in names and not takes_any:
        raise TypeError(
            f"{title} takes {list(names)} and no `features`: write "
            "def model_fn(features, labels, mode, network, optimizer)."
        )
    unused = [n for n in module_names if n not in names and not takes_any]
    if unused:
        raise TypeError(
            f"{title} does not take the modules {unused}: it declares {list(names)}; "
            f"modules are {list(module_names)}. Add the argument or drop the module."
        )
    if has_labels and "labels" not in names and not takes_any:
        raise TypeError(
            f"{title} takes no `labels`, but input_fn returns labels: add the "
            "argument, or return features alone."
        )


def check_positive(name: str, value: Any) -> None:
    """Checks a count that a caller gave.

    Raises:
      ValueError: it is neither None nor an int above 0.
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    wrong = not whole or value <= 0
    if value is not None and wrong:
        raise ValueError(f"{name} is {value!r}; it must be an int > 0, or None.")


def _missing_text(
    fn: Any, role: str, missing: list[str], supplied: Mapping[str, Any]
) -> str:
    return (
        f"{role} {name_of(fn)} requires {missing}, which nobody supplies; supplied "
        f"are {sorted(supplied)}. Rename the argument, give it a default, or hand "
        "in a module of that name: Estimator(modules={'name': factory})."
    )
