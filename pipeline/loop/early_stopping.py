# SPDX-License-Identifier: Apache-2.0
"""Ends a training by a metric of its evaluations; the base of hooks that follow a metric.

    EvalSpec(input_fn, early_stopping=EarlyStopping("accuracy", patience_steps=5000))

Comparisons are those of tf.estimator's `stop_if_higher_hook` and so on: strict, and patience counts
from the step of the best value. A rule looks at the whole record of evaluations. So a training
that was killed and started again ends at the same step as one that was not, and one that a rule
has ended ends at once when it is started again.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ..contract import checks
from ..contract.hooks import Hook, RunContext
from ..contract.old_names import reject_unknown_arguments
from ..contract.run_config import RunConfig
from ..errors import UserValueError
from ..model_dir.evaluation_results import Evaluated, check_metric, higher_is_better, value_of

# The evaluations of one name, by step.
History = Sequence[Evaluated]


@dataclasses.dataclass(frozen=True)
class MetricHook(Hook):
    """A hook that decides by the record of evaluations alone, so it has no state to save.

    `EarlyStopping` describes the fields.
    """

    metric: str
    mode: str | None = None
    _: dataclasses.KW_ONLY
    patience_steps: int | None = None
    min_delta: float = 0.0
    min_steps: int = 0
    evaluation: str = ""

    _checks: ClassVar[Mapping[str, checks.Check]] = {
        "metric": checks.instance(str, "the name of a metric", "'accuracy'"),
        "mode": checks.choice("max", "min")._replace(optional=True),
        "patience_steps": checks.integer(1, example=5000, optional=True),
        "min_delta": checks.number(0, example=0.001),
        "min_steps": checks.integer(0, example=1000),
        "evaluation": checks.instance(str, "the name of an EvalSpec", "'test'"),
    }

    def __post_init__(self) -> None:
        checks.check_fields(self, self._checks)
        if self.mode is None:
            owner = type(self).__name__
            higher = higher_is_better(self.metric, None, owner, "mode to 'max' or 'min'")
            object.__setattr__(self, "mode", "max" if higher else "min")

    def begin(self, run: RunContext) -> None:
        """Decides by the evaluations of earlier trainings in model_dir."""
        self.act(run, self.history(run))

    def after_evaluation(self, run: RunContext, name: str, metrics: Mapping[str, Any]) -> None:
        """Decides after an evaluation of the name."""
        if name == self.evaluation:
            self.act(run, self.history(run))

    def act(self, run: RunContext, history: History) -> None:
        """Called with all evaluations up to the step of the run."""
        raise NotImplementedError

    def history(self, run: RunContext) -> History:
        """Returns the evaluations of the name."""
        return run.evaluations.get(self.evaluation, ())

    def progress(
        self, history: History, *, cooldown_steps: int = 0
    ) -> Iterator[tuple[int, float, str | None]]:
        """Yields the evaluations that count. NaN is never an improvement.

        Patience counts from the step of the best evaluation, and again from each one at which it
        was over.

        Args:
          history: evaluations by step.
          cooldown_steps: number of global steps after patience was over in which it does not count.

        Yields:
          The step, the value, and in words that patience is over; None if it is not.
        """
        since, best, cools_until, words = None, None, 0, "best: none"
        name = f"{type(self).__name__}.metric"
        for each in history:
            if each.step < self.min_steps:
                continue
            step, value = each.step, value_of(name, self.metric, each.metrics)
            if self.is_better(value, best, self.min_delta):
                since, best, words = step, value, f"best {value:.6g} at step {step}"
            elif since is None or step < cools_until:
                since = step
            waited, over = step - since, None
            if self.patience_steps is not None and waited >= self.patience_steps:
                change = "increase" if self.mode == "max" else "decrease"
                over = f"no {change} in {waited} steps; {words}"
                since, cools_until = step, step + cooldown_steps
            yield step, value, over

    def is_better(self, value: float, other: float | None, min_delta: float = 0.0) -> bool:
        """Returns whether a value is better by more than `min_delta`; any number beats None."""
        if other is None:
            return not math.isnan(value)
        return (value - other if self.mode == "max" else other - value) > min_delta

    @property
    def title(self) -> str:
        """The hook in messages: `EarlyStopping('accuracy')`."""
        return f"{type(self).__name__}({self.metric!r})"


@reject_unknown_arguments
@dataclasses.dataclass(frozen=True)
class EarlyStopping(MetricHook):
    """Stops when a metric has not improved for some time, or has passed a threshold.

    Comparisons are strict, as in tf.estimator's `stop_if_higher_hook` and so on.

    Attributes:
      metric: name of a metric that is one number, or "loss".
      mode: 'max' if larger values are better, 'min' if smaller ones are; None if the metric's name
        shows it.
      patience_steps: number of global steps from the best evaluation after which one without
        improvement stops; None for no limit.
      min_delta: difference that an improvement has to exceed.
      threshold: number beyond which a value stops: above it if mode is 'max', below it if mode is
        'min'. None for no threshold.
      check_finite: whether a value of NaN or infinity stops.
      restore_best: whether the training returns to the best checkpoint before its end. That
        one is the newest then, and later ones are deleted. In `EvalSpec.early_stopping` only.
      min_steps: global step before which evaluations do not count.
      evaluation: name of the EvalSpec. `EvalSpec.early_stopping` sets its name.
    """

    _: dataclasses.KW_ONLY
    threshold: float | None = None
    check_finite: bool = False
    restore_best: bool = False

    _checks: ClassVar[Mapping[str, checks.Check]] = {
        **MetricHook._checks,
        "threshold": checks.Check(checks.is_number, "a finite number", "0.9", optional=True),
        "check_finite": checks.boolean(),
        "restore_best": checks.boolean(),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        has_other = self.threshold is not None or self.check_finite
        if self.patience_steps is None and (self.restore_best or not has_other):
            raise UserValueError(
                "EarlyStopping.patience_steps is None: expected it, or a threshold or check_finite "
                "without restore_best. Set patience_steps=5000."
            )

    def reason(self, history: History) -> str | None:
        """Returns the reason to stop; None to continue.

        Args:
          history: evaluations by step.
        """
        for step, value, over in self.progress(history):
            at = f"{value:.6g} at step {step}"
            if self.check_finite and not math.isfinite(value):
                return f"{self.title}: {at}"
            if self.threshold is not None and self.is_better(value, self.threshold):
                word = "higher" if self.mode == "max" else "lower"
                return f"{self.title}: {at} is {word} than {self.threshold:.6g}"
            if over:
                return f"{self.title}: {over}, {at}"
        return None

    def act(self, run: RunContext, history: History) -> None:
        """Asks for the end of a training that has not reached its end anyway."""
        reason = None if run.has_ended or run.is_at_end else self.reason(history)
        if reason is not None:
            run.request_stop(reason)


def check(hooks: Sequence[Hook], metrics: Mapping[str, Sequence[str]], config: RunConfig) -> None:
    """Checks that hooks that follow a metric will get it.

    Args:
      hooks: hooks of a training.
      metrics: names of the metrics by name of the evaluation; none if they are not known.
      config: how to run.

    Raises:
      UserValueError: an evaluation or metric does not exist, or checkpoints are not saved.
    """
    for hook in hooks:
        if not isinstance(hook, MetricHook):
            continue
        if hook.evaluation not in metrics:
            raise UserValueError(
                f"{hook.title}.evaluation is {hook.evaluation!r}: expected the name of an EvalSpec "
                f"of this training, {sorted(metrics)}. Set evaluation, and pass the EvalSpec to "
                "train_and_evaluate."
            )
        if metrics[hook.evaluation]:
            check_metric(f"{type(hook).__name__}.metric", hook.metric, metrics[hook.evaluation])
        restores = isinstance(hook, EarlyStopping) and hook.restore_best
        if restores and (config.has_evaluator or config.save_checkpoints_steps == 0):
            raise UserValueError(
                f"{hook.title}.restore_best is True: expected checkpoints, and evaluations in the "
                "process that trains. Set RunConfig(evaluation='inline'), and "
                "save_checkpoints_steps above 0."
            )
