"""Rules that end a training by what its evaluations show.

    EvalSpec(input_fn, early_stopping=StopIfNoIncrease("accuracy", max_steps=5000))

The comparisons are tf.estimator's (`stop_if_higher_hook` and its like): strict, and
patience counts from the step of the best value. A rule is a hook with a state: a run
that was killed and goes on decides as one that was not. One that a rule has ended ends
at once when it is started again, unless the rule is another one by then.
"""

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import ClassVar

from pipeline.contract.hooks import Run
from pipeline.hooks import metric_hook


@dataclasses.dataclass(eq=False)
class _Threshold(metric_hook.StoppingRule):
    """Stops at a value beyond a threshold."""

    threshold: float

    _beyond: ClassVar[Callable[[float, float], bool]]
    _word: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("threshold", "0.9")

    def _judge(self, run: Run, step: int, value: float) -> str | None:
        if not self._beyond(value, self.threshold):
            return None
        return f"{value:.6g} at step {step} is {self._word} than {self.threshold:.6g}"


@dataclasses.dataclass(eq=False)
class StopIfHigher(_Threshold):
    """Stops when a metric is higher than a threshold.

    Attributes:
      metric: name of the metric.
      threshold: value that stops only when it is exceeded.
      min_steps: global step before which evaluations do not count.
      evaluation: name of the evaluation, where the rule is in `TrainSpec.hooks`.
    """

    _beyond = staticmethod(operator.gt)
    _word = "higher"


@dataclasses.dataclass(eq=False)
class StopIfLower(_Threshold):
    """Stops when a metric is lower than a threshold.

    Attributes:
      metric: name of the metric.
      threshold: value that stops only when it is fallen short of.
      min_steps: global step before which evaluations do not count.
      evaluation: name of the evaluation, where the rule is in `TrainSpec.hooks`.
    """

    _beyond = staticmethod(operator.lt)
    _word = "lower"


@dataclasses.dataclass(eq=False)
class StopIfDiverged(metric_hook.StoppingRule):
    """Stops when a metric is NaN or infinite.

    Other rules take NaN for no improvement, and for beyond no threshold. A bound that
    is to stop as well is a rule of its own, `StopIfHigher("loss", 100)`.

    Attributes:
      metric: name of the metric.
      min_steps: global step before which evaluations do not count.
      evaluation: name of the evaluation, where the rule is in `TrainSpec.hooks`.
    """

    metric: str = "loss"

    def _judge(self, run: Run, step: int, value: float) -> str | None:
        return None if math.isfinite(value) else f"{value} at step {step}"


@dataclasses.dataclass(eq=False)
class _NoImprovement(metric_hook.PatientHook, metric_hook.StoppingRule):
    """Stops when a metric has not improved for so many steps, evaluations or seconds.

    Patience counts from the first evaluation that counts, and anew from each one that
    is better than all before. NaN is never better.
    """

    _: dataclasses.KW_ONLY
    baseline: float | None = None

    _word: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline is not None:
            self._check_number("baseline", "0.5")

    def _judge(self, run: Run, step: int, value: float) -> str | None:
        self.patience.see(step, value, enough=self.baseline)
        over = self.patience.over(run, step)
        if over is None:
            return None
        best = "no value yet"
        if self.best is not None:
            best = f"{self.best[1]:.6g} at step {self.best[0]}"
        return f"no {self._word} in {over}; best {best}, {value:.6g} at step {step}"


@dataclasses.dataclass(eq=False)
class StopIfNoIncrease(_NoImprovement):
    """Stops when a metric has not increased for long enough.

    Attributes:
      metric: name of the metric.
      max_steps: most global steps from the best evaluation to the last one.
      max_evaluations: most evaluations after the best one.
      max_secs: most seconds of training from the best evaluation to the last one.
      min_delta: increase that is none yet.
      min_steps: global step before which evaluations do not count.
      baseline: value that has to be exceeded within the patience.
      evaluation: name of the evaluation, where the rule is in `TrainSpec.hooks`.
    """

    higher_is_better = True
    _word = "increase"


@dataclasses.dataclass(eq=False)
class StopIfNoDecrease(_NoImprovement):
    """Stops when a metric has not decreased for long enough.

    Attributes:
      metric: name of the metric.
      max_steps: most global steps from the best evaluation to the last one.
      max_evaluations: most evaluations after the best one.
      max_secs: most seconds of training from the best evaluation to the last one.
      min_delta: decrease that is none yet.
      min_steps: global step before which evaluations do not count.
      baseline: value to fall below within the patience.
      evaluation: name of the evaluation, where the rule is in `TrainSpec.hooks`.
    """

    higher_is_better = False
    _word = "decrease"
