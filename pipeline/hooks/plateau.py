"""Lowers learning rates when a metric no longer improves."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf
from absl import logging

from .. import private
from ..contract.checks import Check, boolean, integer, is_number, number
from ..contract.hooks import Hook, Run
from ..contract.old_names import explained
from ..errors import UserTypeError, UserValueError
from ..model_dir.evaluated import higher_is_better
from .metric_hook import History, Patience, PatientHook


@explained
@dataclasses.dataclass(frozen=True)
class ReduceOnPlateau(PatientHook):
    """Multiplies learning rates when a metric has not improved for long enough.

    A rate is the number or schedule of the optimizer, times a factor. The factor follows
    from the record of evaluations alone: it is not saved, and another rate that is configured at
    a restart is multiplied by it as well.

    Attributes:
      factor: number between 0 and 1 by which rates are multiplied.
      higher_is_better: whether larger values are better; None if the metric's name shows it.
      cooldown_steps: global steps after a reduction in which patience does not count.
      min_rate: rate below which none is lowered.
      optimizers: names of the modules whose rates are lowered; None for all optimizers.
    """

    _: dataclasses.KW_ONLY
    factor: float = 0.1
    higher_is_better: bool | None = None
    cooldown_steps: int = 0
    min_rate: float = 0.0
    optimizers: Sequence[str] | None = None
    # Of the copies that a training makes.
    _rate_factor: tf.Variable | None = dataclasses.field(
        default=None, init=False, repr=False, compare=False
    )

    _checks: ClassVar[Mapping[str, Check]] = {
        **PatientHook._checks,
        "factor": Check(lambda v: is_number(v) and 0 < v < 1, "a number between 0 and 1", "0.1"),
        "higher_is_better": boolean(optional=True),
        "cooldown_steps": integer(0, example=1000),
        "min_rate": number(0, example=1e-6),
        "optimizers": Check(
            lambda v: isinstance(v, list | tuple) and all(isinstance(n, str) for n in v),
            "a list of names of modules",
            "['optimizer']",
            optional=True,
            error=UserTypeError,
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        higher = higher_is_better(self.metric, self.higher_is_better, type(self).__name__)
        object.__setattr__(self, "higher_is_better", higher)
        if self.optimizers is not None:
            object.__setattr__(self, "optimizers", tuple(self.optimizers))

    def scaling(self, rate_factor: tf.Variable) -> "ReduceOnPlateau":
        """Returns a copy that sets this variable, by which optimizers multiply their rates."""
        own = copy.copy(self)
        object.__setattr__(own, "_rate_factor", rate_factor)
        return own

    def reductions(self, history: History) -> list[int]:
        """Returns the steps of the evaluations after which the rates were reduced.

        Args:
          history: evaluations by step.
        """
        patience, cool_until = Patience(self), 0
        found: list[int] = []
        for step, value in self.values(history):
            over = patience.add(step, value)
            if step < cool_until or over:
                patience.restart(step)
            if step >= cool_until and over:
                found.append(step)
                cool_until = step + self.cooldown_steps
        return found

    def act(self, run: Run, history: History) -> None:
        """Sets the factor of the learning rates."""
        steps, variable = self.reductions(history), self._rate_factor
        before, after = float(variable.numpy()), self.factor ** len(steps)
        variable.assign(after)
        if run.is_chief and steps and before != float(variable.numpy()):
            logging.info(
                "train | step %d | the learning rate is multiplied by %.6g | no improvement of %s "
                "up to step %d",
                run.step,
                after,
                self.metric,
                steps[-1],
            )


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
      The hooks, with a copy of each ReduceOnPlateau that sets its factor.

    Raises:
      UserValueError: a hook names an optimizer that does not exist.
    """
    optimizers = {n: m for n, m in modules.items() if isinstance(m, keras.optimizers.Optimizer)}
    reducing = tuple(dict.fromkeys(h for h in hooks if isinstance(h, ReduceOnPlateau)))
    for hook in reducing:
        unknown = sorted({*(hook.optimizers or ())} - set(optimizers))
        if unknown:
            raise UserValueError(
                f"ReduceOnPlateau.optimizers has {unknown}: expected names of optimizers among "
                f"the modules, {sorted(optimizers)}."
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
    return [copies[h] if isinstance(h, ReduceOnPlateau) else h for h in hooks]


def _scale(optimizer: Any, scales: Sequence[tuple[tf.Variable, float]]) -> None:
    def scale(configured: Any) -> tf.Tensor:
        value = tf.cast(configured, tf.float32)
        for factor, min_rate in scales:
            value = tf.maximum(value * factor, tf.minimum(min_rate, value))
        return value

    private.scale_rate(optimizer, scale if scales else None)
