"""Leaves variables out of training, by name."""

import re
from collections.abc import Sequence
from typing import Any

import keras

from pipeline.mistakes.checks import kind_of
from pipeline.process.refusals import RefusedTypeError, RefusedValueError
from pipeline.strategy import variables


def unfrozen(module: Any, frozen: str | Sequence[str]) -> list[Any]:
    """Returns the trainable variables of a module but the frozen ones, for a TrainOp.

        TrainOp(optimizer, unfrozen(network, "backbone/.*"))

    A frozen layer still computes as it did: BatchNormalization moves its statistics
    where it is called with training=True.

    Args:
      module: a module of model_fn, called before where its layers build on first call.
      frozen: regular expression, or a list of them, that names in the module match in
        full, `backbone/dense/kernel`: a checkpoint's names without the module's.

    Raises:
      ValueError: an expression matches no trainable variable, or all are frozen.
      TypeError: `frozen` is none, or the module has no variables by name.
    """
    if not variables.is_trackable_module(module):
        raise RefusedTypeError(
            f"unfrozen is given {kind_of(module)}: write unfrozen(network, "
            "'backbone/.*') with a module of model_fn."
        )
    patterns = [frozen] if isinstance(frozen, str) else list(frozen)
    # A table on parameter servers is trained as its shards are.
    shards = {
        name: getattr(value, "parts", [value])
        for name, value in variables.named_state(module).items()
        if isinstance(value, keras.Variable) or variables.is_variable(value)
    }
    named = {name: parts for name, parts in shards.items() if parts[0].trainable}
    kept = dict(named)
    for pattern in patterns:
        matched = [name for name in named if _matches(pattern, name)]
        if not matched:
            raise RefusedValueError(
                f"unfrozen: frozen={pattern!r} matches no trainable variable in full: "
                f"write an expression for some of {sorted(named)}."
            )
        for name in matched:
            kept.pop(name, None)
    if not kept:
        raise RefusedValueError(
            f"unfrozen: frozen={frozen!r} leaves nothing to train of {sorted(named)}: "
            "write an expression for fewer of them."
        )
    return [part for parts in kept.values() for part in parts]


def _matches(pattern: Any, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except (re.error, TypeError) as error:
        raise RefusedTypeError(
            f"unfrozen: frozen has {pattern!r}, which is no regular expression "
            f"({error}): write 'backbone/.*', say."
        ) from error
