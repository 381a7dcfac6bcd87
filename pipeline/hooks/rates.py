"""The learning rates of a run's optimizers, for hooks that change them along the way.

A constant rate is a variable, which a checkpoint holds. A schedule is a function of the
step: what changes it is a factor on top of it, which is no part of a checkpoint, and
which the hook keeps in its own state.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline.strategy import variables


class _Scaled(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule with a factor on top.

    Attributes:
      factor: float32 scalar variable.
    """

    def __init__(self, rate: Callable[..., Any], strategy: tf.distribute.Strategy):
        self._rate = rate
        with strategy.scope():
            self.factor = tf.Variable(
                1.0,
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                name="learning_rate_factor",
            )

    def __call__(self, step: Any) -> Any:
        is_schedule = isinstance(
            self._rate, keras.optimizers.schedules.LearningRateSchedule
        )
        value = self._rate(step) if is_schedule else self._rate()
        return tf.cast(value, tf.float32) * self.factor

    def get_config(self) -> dict[str, Any]:
        return {"rate": self._rate}


class LearningRate:
    """The learning rate of one optimizer, see `Run.rates`."""

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        strategy: tf.distribute.Strategy,
        configured: Callable[[Any], Any],
    ) -> None:
        """Puts a factor on top of the rate, where it is a schedule.

        Args:
          optimizer: optimizer, whose steps are not traced yet.
          strategy: strategy of its variables.
          configured: function of a constant rate's variable that returns the value
            that the factory has set.
        """
        while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            optimizer = optimizer.inner_optimizer
        self._optimizer = optimizer
        self._scaled: _Scaled | None = None
        rate = variables.given_rate(optimizer)
        if isinstance(rate, keras.Variable):
            self._variable = variables.raw(rate)
            self._configured = float(configured(self._variable))
        else:
            self._configured = None
            self._scaled = _Scaled(rate, strategy)
            optimizer.learning_rate = self._scaled

    @property
    def is_schedule(self) -> bool:
        """Whether the rate is a function of the step."""
        return self._scaled is not None

    @property
    def value(self) -> float:
        """The rate of the next update."""
        return _number(self._optimizer.learning_rate)

    def multiply(self, factor: float) -> None:
        """Multiplies the rate, in all processes, from the next update on.

        Args:
          factor: number above 0.
        """
        if self._scaled is not None:
            self._scaled.factor.assign(_number(self._scaled.factor) * factor)
        else:
            self._variable.assign(self.value * factor)

    def begin_anew(self) -> None:
        """Takes the factor from a schedule; a constant stays as it was loaded."""
        if self._scaled is not None:
            self._scaled.factor.assign(1.0)

    def state(self) -> dict[str, Any]:
        """Returns JSON for `restore`."""
        if self._scaled is not None:
            return {"factor": _number(self._scaled.factor)}
        return {"rate": self.value, "configured": self._configured}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from the `state` of an earlier run.

        A rate that is configured otherwise by now stays as configured.
        """
        if self._scaled is not None and "factor" in state:
            self._scaled.factor.assign(state["factor"])
        elif self._scaled is None and state.get("configured") == self._configured:
            self._variable.assign(state["rate"])


def _number(variable: Any) -> float:
    return float(tf.convert_to_tensor(variable).numpy())
