# SPDX-License-Identifier: Apache-2.0
"""Chooses the variables that a TrainOp trains, by name."""

import re
from collections.abc import Sequence
from typing import Any

from ..contract.checks import repr_short
from ..distribute import names
from ..errors import UserTypeError, UserValueError


def trainable_variables(module: Any, *, frozen: str | Sequence[str]) -> list[Any]:
    """Returns the trainable variables of a module without the frozen ones.

        TrainOp(optimizer, trainable_variables(network, frozen="backbone/.*"))

    A frozen layer computes as before: BatchNormalization with training=True still updates its
    moving statistics.

    Args:
      module: Keras model, layer or tf.Module whose layers are built.
      frozen: regular expression, or a list of them, that must match full names in the module,
        as `backbone/dense/kernel`.

    Raises:
      UserTypeError: `module` has no trainable variables by name, or `frozen` is not an expression.
      UserValueError: an expression matches no trainable variable, or all are frozen.
    """
    if not hasattr(module, "trainable_variables"):
        raise UserTypeError(
            f"module is {repr_short(module)}: expected a module. Write "
            "trainable_variables(network, frozen='backbone/.*')."
        )
    full = {}
    for name, value in names.state_of({"module": module}).items():
        # A table on parameter servers is trained as its shards are.
        full |= {id(part): name.removeprefix("module/") for part in names.parts_of(value)}
    trainable = [(full[id(names.variable_of(v))], v) for v in module.trainable_variables]
    found = sorted({name for name, _ in trainable})
    patterns = [frozen] if isinstance(frozen, str) else list(frozen)
    for pattern in patterns:
        if not any(_matches(pattern, name) for name in found):
            raise UserValueError(
                f"frozen is {pattern!r}, which matches no trainable variable: expected an "
                f"expression for the full name of some of {found}."
            )
    kept = [v for name, v in trainable if not any(_matches(p, name) for p in patterns)]
    if not kept:
        raise UserValueError(
            f"frozen is {frozen!r}, which leaves nothing to train: expected an expression for some "
            f"of {found}."
        )
    return kept


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern, name) is not None
    except (re.error, TypeError) as error:
        raise UserTypeError(
            f"frozen is {pattern!r}: expected a regular expression ({error}). "
            "Set frozen='backbone/.*'."
        ) from error
