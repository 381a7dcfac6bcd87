"""Rules that end a training by the metrics of its evaluations.

    EvalSpec(input_fn, early_stopping=StopIfNoIncrease("accuracy", max_steps=5000))

The comparisons are those of tf.estimator's `stop_if_higher_hook` and so on: strict, and
patience counts from the step of the best value. A rule looks at the whole record of evaluations.
So a training that was killed and started again ends at the same step as one that was not, and one
that a rule has ended ends at once when it is started again.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

from ..contract.checks import Check, boolean, is_number
from ..contract.hooks import Run
from ..contract.old_names import explained
from .metric_hook import History, MetricHook, Patience, PatientHook

_NUMBER = Check(is_number, "a finite number", "0.9")


class StoppingRule(MetricHook):
    """The base of stopping rules."""

    def decide(self, history: History) -> str | None:
        """Returns the reason to stop; None to continue.

        Args:
          history: evaluations by step.
        """
        raise NotImplementedError

    def act(self, run: Run, history: History) -> None:
        """Asks for the end of a training that has not reached its end anyway."""
        is_at_end = run.max_step is not None and run.step >= run.max_step
        reason = None if run.has_ended or is_at_end else self.decide(history)
        if reason is not None:
            run.request_stop(f"{self.title}: {reason}")


@explained
@dataclasses.dataclass(frozen=True)
class StopIfHigher(StoppingRule):
    """Stops when a metric is higher than a threshold.

    Attributes:
      threshold: largest value that does not stop.
    """

    threshold: float

    _checks: ClassVar[Mapping[str, Check]] = {"threshold": _NUMBER}

    def decide(self, history: History) -> str | None:
        """Returns the reason to stop; None to continue."""
        for step, value in self.values(history):
            if value > self.threshold:
                return f"{value:.6g} at step {step} is higher than {self.threshold:.6g}"
        return None


@explained
@dataclasses.dataclass(frozen=True)
class StopIfLower(StoppingRule):
    """Stops when a metric is lower than a threshold.

    Attributes:
      threshold: smallest value that does not stop.
    """

    threshold: float

    _checks: ClassVar[Mapping[str, Check]] = {"threshold": _NUMBER}

    def decide(self, history: History) -> str | None:
        """Returns the reason to stop; None to continue."""
        for step, value in self.values(history):
            if value < self.threshold:
                return f"{value:.6g} at step {step} is lower than {self.threshold:.6g}"
        return None


@explained
@dataclasses.dataclass(frozen=True)
class StopIfDiverged(StoppingRule):
    """Stops when a metric, the loss by default, is NaN or infinite."""

    metric: str = "loss"

    def decide(self, history: History) -> str | None:
        """Returns the reason to stop; None to continue."""
        for step, value in self.values(history):
            if not math.isfinite(value):
                return f"{value} at step {step}"
        return None


@dataclasses.dataclass(frozen=True)
class StopIfNoImprovement(PatientHook, StoppingRule):
    """The base of StopIfNoIncrease and StopIfNoDecrease.

    Attributes:
      baseline: value that has to be beaten within the patience; None for none.
      restore_best: whether the training returns to the best checkpoint before its end. That
        one is the newest then, and later ones are deleted. In `EvalSpec.early_stopping` only.
    """

    _: dataclasses.KW_ONLY
    baseline: float | None = None
    restore_best: bool = False

    higher_is_better: ClassVar[bool]
    _checks: ClassVar[Mapping[str, Check]] = {
        **PatientHook._checks,
        "baseline": Check(is_number, "a finite number", "0.5", optional=True),
        "restore_best": boolean(),
    }

    def decide(self, history: History) -> str | None:
        """Returns the reason to stop; None to continue."""
        patience = Patience(self)
        for step, value in self.values(history):
            if over := patience.add(step, value):
                best = patience.best
                words = f"best {best[1]:.6g} at step {best[0]}" if best else "best: none"
                change = "increase" if self.higher_is_better else "decrease"
                return f"no {change} in {over}; {words}, {value:.6g} at step {step}"
        return None


@explained
@dataclasses.dataclass(frozen=True)
class StopIfNoIncrease(StopIfNoImprovement):
    """Stops when a metric has not increased for `max_steps` or `max_evaluations`."""

    higher_is_better: ClassVar[bool] = True


@explained
@dataclasses.dataclass(frozen=True)
class StopIfNoDecrease(StopIfNoImprovement):
    """Stops when a metric has not decreased for `max_steps` or `max_evaluations`."""

    higher_is_better: ClassVar[bool] = False
