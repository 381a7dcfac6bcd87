# SPDX-License-Identifier: Apache-2.0
"""Factors of learning rates, which hooks set."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import keras
import tensorflow as tf

from .. import private
from ..contract.hooks import Hook
from ..errors import UserValueError


@runtime_checkable
class ScalesRates(Protocol):
    """A hook that multiplies learning rates, such as ReduceOnPlateau.

    Attributes:
      min_rate: rate below which none is lowered.
      optimizers: names of the modules whose rates it scales; None for all optimizers.
    """

    min_rate: float
    optimizers: Sequence[str] | None

    def scaling(self, rate_factor: tf.Variable) -> Hook:
        """Returns a copy that sets this variable, by which optimizers multiply their rates."""


def scale_rates(
    hooks: Sequence[Hook],
    modules: Mapping[str, Any],
    factors: dict[Any, tf.Variable],
    strategy: tf.distribute.Strategy,
) -> list[Hook]:
    """Makes optimizers multiply their rates by the factors of hooks.

    Call it before the training step is traced; programs that were traced for other hooks have
    other factors.

    Args:
      hooks: hooks of a training.
      modules: modules by name.
      factors: variables by hook, which this function creates where they are missing.
      strategy: strategy of the variables.

    Returns:
      The hooks, with a copy of each that scales rates, which sets its factor.

    Raises:
      UserValueError: a hook names an optimizer that does not exist.
    """
    optimizers = {n: m for n, m in modules.items() if isinstance(m, keras.optimizers.Optimizer)}
    reducing = tuple(dict.fromkeys(h for h in hooks if isinstance(h, ScalesRates)))
    for hook in reducing:
        unknown = sorted({*(hook.optimizers or ())} - set(optimizers))
        if unknown:
            raise UserValueError(
                f"{type(hook).__name__}.optimizers has {unknown}: expected names of optimizers "
                f"among the modules, {sorted(optimizers)}."
            )
        if hook not in factors:
            with strategy.scope():
                factors[hook] = tf.Variable(
                    1.0,
                    trainable=False,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                    name="learning_rate_factor",
                )
    for name, optimizer in optimizers.items():
        chosen = [h for h in reducing if h.optimizers is None or name in h.optimizers]
        _scale(optimizer, [(factors[hook], hook.min_rate) for hook in chosen])
    copies = {hook: hook.scaling(factors[hook]) for hook in reducing}
    return [copies[h] if isinstance(h, ScalesRates) else h for h in hooks]


def _scale(optimizer: Any, scales: Sequence[tuple[tf.Variable, float]]) -> None:
    def scale(configured: Any) -> tf.Tensor:
        value = tf.cast(configured, tf.float32)
        for factor, min_rate in scales:
            value = tf.maximum(value * factor, tf.minimum(min_rate, value))
        return value

    private.scale_rate(optimizer, scale if scales else None)
