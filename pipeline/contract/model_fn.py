"""Calls a model_fn with the arguments that it declares, and checks its answer.

A model_fn gets arguments by name and returns an `EstimatorSpec`. What it declares is
checked against the modules before anything is built, for a build may take minutes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.contract.calling import call, declared, name_of
from pipeline.contract.spec import EstimatorSpec, ModeKeys
from pipeline.contract.train_op import SpecError
from pipeline.mistakes import habits, user_errors
from pipeline.mistakes.checks import in_words, kind_of
from pipeline.process.refusals import RefusedTypeError

RESERVED_ARGUMENTS = ("features", "labels", "mode", "params", "config", "step")
# A model_fn as a function of features, labels and step alone, see `modules.bind`.
BoundModelFn = Callable[[Any, Any, tf.Tensor], EstimatorSpec]


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
      model_fn: the user's function.
      features: nest of tensors `[batch, ...]` of one replica.
      labels: nest of tensors `[batch, ...]` of one replica, or None.
      mode: one of `ModeKeys`.
      modules: the modules by name.
      context: `params`, `config` and `step` by name.

    Returns:
      The spec that `model_fn` returned.

    Raises:
      SpecError: the answer breaks the contract; the message names the model_fn.
      TypeError: `model_fn` requires an argument that nobody supplies.
    """
    supplied = {"features": features, "labels": labels, "mode": mode}
    name = name_of(model_fn)
    try:
        with user_errors.noted(lambda: _model_call(name, mode, features, labels)):
            spec = call(model_fn, {**modules, **context, **supplied}, role="model_fn")
    except SpecError as error:
        raise SpecError(f"model_fn {name}: {error}") from error
    except AttributeError as error:
        if hint := habits.hint(error):
            error.add_note(hint)
        raise
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
    """Checks the arguments that `model_fn` declares against those that it will get.

    Args:
      model_fn: the user's function.
      module_names: names under which modules were handed in.
      has_labels: whether the input yields labels, which model_fn then has to take.

    Raises:
      TypeError: `model_fn` is not callable, or takes no `features`; it does not take a
        module or the labels; or a module has a reserved name.
    """
    if not callable(model_fn):
        raise RefusedTypeError(
            f"model_fn is {kind_of(model_fn)}, not a callable: hand in the function."
        )
    if isinstance(model_fn, keras.layers.Layer):
        raise RefusedTypeError(
            f"model_fn is {kind_of(model_fn)}, a network: write def model_fn(features, "
            "labels, mode, network, optimizer), and hand in the network's factory as a "
            "module."
        )
    _check_module_names(module_names)
    names, takes_any = declared(model_fn)
    title = f"model_fn {name_of(model_fn)}"
    if "features" not in names and not takes_any:
        raise RefusedTypeError(
            f"{title} takes {list(names)} and no `features`: write "
            "def model_fn(features, labels, mode, network, optimizer)."
        )
    unused = [n for n in module_names if n not in names and not takes_any]
    if unused:
        raise RefusedTypeError(
            f"{title} does not take the modules {unused}: it declares {list(names)}; "
            f"modules are {list(module_names)}. Add the argument or drop the module."
        )
    if has_labels and "labels" not in names and not takes_any:
        raise RefusedTypeError(
            f"{title} takes no `labels`, but input_fn returns labels: add the "
            "argument, or return features alone."
        )


def _check_module_names(names: Sequence[str]) -> None:
    reserved = [name for name in names if name in RESERVED_ARGUMENTS]
    if reserved:
        raise RefusedTypeError(
            f"modules {reserved} have names that model_fn's own arguments use "
            f"({list(RESERVED_ARGUMENTS)}): rename them."
        )
    if "driver" in names:
        raise RefusedTypeError(
            "a module has the name 'driver', under which a checkpoint holds the global "
            "step: rename it."
        )
    # A module's name begins its variables' full names, "network/dense/kernel".
    wrong = [n for n in names if not isinstance(n, str) or not n or "/" in n]
    if wrong:
        raise RefusedTypeError(
            f"modules {wrong} have names that cannot begin a variable's: write a "
            "non-empty string without '/', as {'network': make_network}."
        )


def _model_call(name: str, mode: str, features: Any, labels: Any) -> str:
    """Tells in lines what model_fn was called with, and what looks wrong with it."""
    lines = [
        f"model_fn {name}, mode {mode!r}, on one replica's batch of",
        f"  features {in_words(features)}",
        f"  labels {in_words(labels)}",
    ]
    if labels is None and mode == ModeKeys.PREDICT:
        lines.append(
            "there are no labels to predict: before they are used, write\n  if mode == "
            "ModeKeys.PREDICT: return EstimatorSpec(mode, predictions=...)"
        )
    elif labels is None:
        lines.append(
            "input_fn yields features alone: where labels are needed, let it return a "
            "dataset of (features, labels)."
        )
    given = [features] if labels is None else [features, labels]
    if any(_has_no_batch(leaf) for leaf in tf.nest.flatten(given)):
        lines.append(
            "there is no batch dimension: let input_fn return dataset.batch(32)."
        )
    return "\n".join(lines)


def _has_no_batch(leaf: Any) -> bool:
    return getattr(getattr(leaf, "shape", None), "rank", None) == 0
