"""Rules that end a training by what its evaluations show.

    EvalSpec(input_fn, early_stopping=StopIfNoIncrease("accuracy", max_steps=5000))

The comparisons are tf.estimator's (`stop_if_higher_hook` and its like): strict, and
patience counts from the step of the best value. A rule is a hook with a state: a run
that was killed and goes on decides as one that was not. One that a rule has ended ends
at once when it is started again, unless the rule is another one by then.
"""

import dataclasses
import functools
import math
import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pipeline.checkpoints import checkpoint_path
from pipeline.contract.hooks import Hook, Run
from pipeline.hooks import metric_hook
from pipeline.mistakes import habits
from pipeline.mistakes.checks import kind_of
from pipeline.process.refusals import RefusedTypeError, RefusedValueError


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


@habits.rule
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


@habits.rule
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


@habits.rule
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
    restore_best: bool = False

    _word: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline is not None:
            self._check_number("baseline", "0.5")
        if not isinstance(self.restore_best, bool):
            raise RefusedTypeError(
                f"{type(self).__name__}.restore_best is {kind_of(self.restore_best)}: "
                "write True or False."
            )
        # The reason of a stop for which the run goes back first.
        self._leaves: str | None = None

    def begin(self, run: Run) -> None:
        """Begins anew; ends the run at once where it is the best, gone back to."""
        super().begin(run)
        if self._leaves is not None:
            self._stopped, self._leaves = self._leaves, None
            run.request_stop(self._stopped)

    def _stop(self, run: Run, reason: str) -> None:
        if not self.restore_best or self.best is None:
            super()._stop(run, reason)
        elif run.going_back is None:
            # All processes come here: they are told the same metrics.
            self._leaves = reason
            run.go_back(reason, functools.partial(self._best_path, run))

    def _best_path(self, run: Run) -> str:
        """Returns the path prefix of the best checkpoint by the metric.

        One process reads for all: an evaluator job may just find a better one.
        """
        return run.from_leader(self._found(run.model_dir) if run.leads else "")

    def _found(self, model_dir: str) -> str:
        names = [checkpoint_path.BEST, self.evaluation, self.metric]
        given = os.path.join(model_dir, *filter(None, names))
        path = checkpoint_path.in_run(given)
        if path is None:
            raise RefusedValueError(
                f"{self.title} wants to go back to {given}, and best.json is gone."
            )
        return path

    def _judge(self, run: Run, step: int, value: float) -> str | None:
        self.patience.see(step, value, enough=self.baseline)
        over = self.patience.over(run, step)
        if over is None:
            return None
        best = "no value yet"
        if self.best is not None:
            best = f"{self.best[1]:.6g} at step {self.best[0]}"
        return f"no {self._word} in {over}; best {best}, {value:.6g} at step {step}"


@habits.rule
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
      restore_best: whether the run goes back to the best checkpoint before it ends:
        that is the newest one then, and later ones are deleted.
      evaluation: name of the evaluation, where the rule is in `TrainSpec.hooks`.
    """

    higher_is_better = True
    _word = "increase"


@habits.rule
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
      restore_best: whether the run goes back to the best checkpoint before it ends:
        that is the newest one then, and later ones are deleted.
      evaluation: name of the evaluation, where the rule is in `TrainSpec.hooks`.
    """

    higher_is_better = False
    _word = "decrease"


def checked(name: str | None, rules: Any) -> tuple[metric_hook.StoppingRule, ...]:
    """Returns the rules that a user gave an EvalSpec, one or several.

    Args:
      name: name of the EvalSpec, to which the rules are bound.
      rules: a rule, or a list.

    Raises:
      TypeError: an item is no rule.
      ValueError: a rule names another evaluation.
    """
    given = tuple(rules) if isinstance(rules, (list, tuple)) else (rules,)
    for rule in given:
        if not isinstance(rule, metric_hook.StoppingRule):
            raise RefusedTypeError(
                f"EvalSpec.early_stopping holds {kind_of(rule)}, which is no rule: "
                "write early_stopping=StopIfNoIncrease('accuracy', max_steps=5000)."
                f"{habits.kind_of_hook(rule)}"
            )
        if rule.evaluation not in (None, name):
            raise RefusedValueError(
                f"{rule.title} of the EvalSpec {name!r} goes by {rule.source}: leave "
                "evaluation= out, or give the rule to TrainSpec.hooks."
            )
    return given


def that_restore(hooks: Sequence[Hook]) -> list[_NoImprovement]:
    """Returns the rules that go back to the best checkpoint.

    Args:
      hooks: hooks of any kind.
    """
    rules = [hook for hook in hooks if isinstance(hook, _NoImprovement)]
    return [rule for rule in rules if rule.restore_best]
