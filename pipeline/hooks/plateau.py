"""Lowers learning rates where a metric no longer improves.

A constant rate is a variable, which a checkpoint holds. A schedule is a function of the
step: what changes it is a factor on top of it, which is no part of a checkpoint, and
which the hook keeps in its own state.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf
from absl import logging

from pipeline.contract.hooks import Run
from pipeline.contract.train_op import Rate
from pipeline.hooks import metric_hook
from pipeline.mistakes import habits
from pipeline.mistakes.checks import check_count, check_kind
from pipeline.process import metric_names
from pipeline.process.refusals import RefusedValueError, near
from pipeline.strategy import variables


@habits.rule
@dataclasses.dataclass(eq=False)
class ReduceOnPlateau(metric_hook.PatientHook):
    """Lowers learning rates when a metric has not improved for too long.

    It multiplies a constant, or lies on top of a schedule. Patience then begins anew.
    A rate that is configured otherwise where a run goes on begins as configured.

    Attributes:
      metric: name of the metric.
      factor: number between 0 and 1 by which rates are multiplied.
      higher_is_better: whether to improve is to increase. None: by the metric's name,
        as of "accuracy" or "loss"; a name that does not tell is refused.
      cooldown_steps: global steps after a reduction in which patience does not count.
      min_rate: rate below which none is lowered.
      optimizers: names of the modules whose rates are lowered; None for all.
      evaluation: name of the evaluation; None for the one without a name.
    """

    _: dataclasses.KW_ONLY
    factor: float = 0.1
    higher_is_better: bool | None = None
    cooldown_steps: int = 0
    min_rate: float = 0.0
    optimizers: Sequence[str] | None = None

    sets_rates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("factor", "0.1")
        self._check_number("min_rate", "1e-6")
        if not 0 < self.factor < 1 or self.min_rate < 0:
            raise RefusedValueError(
                f"{self.title} has factor={self.factor!r} and min_rate="
                f"{self.min_rate!r}: write a factor between 0 and 1, factor=0.1, and a "
                "min_rate of at least 0."
            )
        check_count("ReduceOnPlateau.cooldown_steps", self.cooldown_steps, least=0)
        if isinstance(self.optimizers, str):
            self.optimizers = [self.optimizers]
        check_kind(
            f"{self.title}.higher_is_better", self.higher_is_better, bool, "True"
        )
        if self.higher_is_better is None:
            self.higher_is_better = metric_names.higher_is_better(self.metric)
            if self.higher_is_better is None:
                raise RefusedValueError(
                    f"{self.title} does not say whether more is better: write "
                    "higher_is_better=True, or False."
                )

    def begin(self, run: Run) -> None:
        super().begin(run)
        self._rates = self._chosen(run.rates)
        for rate in self._rates.values():
            rate.begin_anew()

    def after_value(self, run: Run, step: int, value: float) -> None:
        """Lowers the rates where patience is over.

        Not at the end of a run: the last checkpoint, which is saved by then, would hold
        another rate than the state.
        """
        self.patience.see(step, value)
        if step < self._cool_until:
            self.patience.count_from(step)
            return
        over = None if run.finished else self.patience.over(run, step)
        if over is not None:
            self._lower(run, over)
            self.patience.count_from(step)
            self._cool_until = step + self.cooldown_steps

    def state(self) -> Any:
        """Returns what patience counts from, and the rates."""
        return {
            **super().state(),
            "cool_until": self._cool_until,
            "rates": {name: rate.state() for name, rate in self._rates.items()},
        }

    def restore(self, run: Run, state: Any) -> None:
        """Goes on with the rates, and with what was the best."""
        super().restore(run, state)
        self._cool_until = state["cool_until"]
        for name, rate in self._rates.items():
            if name in state["rates"]:
                rate.restore(state["rates"][name])

    def _lower(self, run: Run, over: str) -> None:
        word = "increase" if self.higher_is_better else "decrease"
        for name, rate in self._rates.items():
            before = rate.value
            least = min(self.min_rate, before)
            factor = max(self.factor, least / before) if before > 0 else 1.0
            if factor >= 1.0:
                continue
            rate.multiply(factor)
            if run.leads:
                logging.info(
                    "train | step %d | learning rate of %s: %.6g, before %.6g (no %s "
                    "of %s in %s)",
                    run.step,
                    name,
                    rate.value,
                    before,
                    word,
                    self.metric,
                    over,
                )

    def _chosen(self, rates: Mapping[str, Rate]) -> dict[str, Rate]:
        """Returns the rates that are lowered, by their module's name.

        Raises:
          ValueError: there is no optimizer of a name.
        """
        names = sorted(rates) if self.optimizers is None else list(self.optimizers)
        for name in names:
            if name not in rates:
                raise RefusedValueError(
                    f"ReduceOnPlateau.optimizers names {name!r}, and the optimizers "
                    f"among the modules are {sorted(rates)}.{near(name, sorted(rates))}"
                )
        return {name: rates[name] for name in names}

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._cool_until = 0
        self._rates: dict[str, Rate] = {}


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
