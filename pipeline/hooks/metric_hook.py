"""The base of hooks that go by one metric of one evaluation along a training.

Whoever evaluates, this process or an evaluator job, each training process is told of
each evaluation by `Hook.after_evaluation`, in the order of steps.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from absl import logging

from pipeline.contract.hooks import Hook, Run
from pipeline.hooks.limits import TrainingTime
from pipeline.mistakes.checks import check_count, is_number, kind_of
from pipeline.process.refusals import RefusedTypeError, RefusedValueError, near

# Numbers to write instead of a field's wrong value.
_EXAMPLES = {"max_secs": "3600", "min_delta": "0.001"}
# Arguments that say which evaluation is better than another; others say what follows.
_WHAT_IS_BETTER = (
    *("metric", "evaluation", "higher_is_better"),
    *("min_steps", "min_delta", "baseline"),
)


@dataclasses.dataclass(eq=False)
class MetricHook(Hook):
    """A hook that is told the value of a metric after each evaluation of a name.

    Attributes:
      metric: name of the metric, a scalar; "loss" is one.
      evaluation: name of the evaluation that it comes of; None for the one without a
        name. `EvalSpec(early_stopping=...)` gives its own name.
      min_steps: global step before which evaluations do not count.
    """

    metric: str
    _: dataclasses.KW_ONLY
    evaluation: str | None = None
    min_steps: int = 0

    def __post_init__(self) -> None:
        own = type(self).__name__
        if not isinstance(self.metric, str) or not self.metric:
            raise RefusedTypeError(
                f"{own}.metric is {kind_of(self.metric)}: write {own}('accuracy', ...)."
            )
        if self.evaluation is not None and not isinstance(self.evaluation, str):
            raise RefusedTypeError(
                f"{own}.evaluation is {kind_of(self.evaluation)}: write the name of "
                "the EvalSpec, evaluation='test', or None for the one without a name."
            )
        check_count(f"{own}.min_steps", self.min_steps, least=0)
        self._begin_anew()

    def begin(self, run: Run) -> None:
        self._begin_anew()

    def after_evaluation(
        self, run: Run, name: str | None, metrics: Mapping[str, Any]
    ) -> None:
        """Tells `after_value` of the metric, where it is this hook's evaluation.

        Each step counts once: a run that goes on from a checkpoint may repeat the
        evaluation of its step, and so may an evaluator that was started again.
        """
        step = int(metrics["global_step"])
        if name != self.evaluation or step <= self._last_step or step < self.min_steps:
            return
        self.check_metric(metrics)
        self._last_step = step
        self.after_value(run, step, float(metrics[self.metric]))

    def after_value(self, run: Run, step: int, value: float) -> None:
        """Called after each evaluation of the hook's name.

        Args:
          run: the run; with an evaluator job it may be steps ahead of `step`.
          step: global step of the weights that were evaluated.
          value: value of the metric, maybe NaN or infinite.
        """
        raise NotImplementedError

    def check_metric(self, metrics: Mapping[str, Any]) -> None:
        """Checks that an evaluation has the metric, and that it is a scalar.

        Args:
          metrics: values of the evaluation's metrics by name.

        Raises:
          ValueError: it is not among them; names them.
          TypeError: it is no scalar.
        """
        known = sorted(set(metrics) - {"global_step"})
        if self.metric not in known:
            raise RefusedValueError(
                f"{self.title} goes by a metric that {self.source} does not have. It "
                f"has {', '.join(known)}.{near(self.metric, known)}"
            )
        shape = np.shape(metrics[self.metric])
        if shape:
            raise RefusedTypeError(
                f"{self.title} goes by a metric of shape {shape}: name a scalar, or "
                "have model_fn add one to its metrics."
            )

    @property
    def title(self) -> str:
        """The hook as a message names it: `StopIfHigher('accuracy')`."""
        return f"{type(self).__name__}({self.metric!r})"

    @property
    def source(self) -> str:
        """The evaluation as a message names it."""
        if self.evaluation is None:
            return "the evaluation"
        return f"the evaluation {self.evaluation!r}"

    def state(self) -> Any:
        """Returns the arguments, and the last step that was seen."""
        return {"settings": self.settings(), "last_step": self._last_step}

    def _begin_anew(self) -> None:
        """Forgets all evaluations."""
        self._last_step = -1

    def settings(self) -> dict[str, Any]:
        """Returns the arguments by name, as JSON: what a checkpoint's state is of."""
        return {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }

    def _check_number(self, field: str, example: str) -> None:
        """Checks that a field is a finite number.

        Raises:
          TypeError: it is none.
        """
        value = getattr(self, field)
        if not is_number(value) or not np.isfinite(value):
            raise RefusedTypeError(
                f"{type(self).__name__}.{field} is {kind_of(value)}, which is no "
                f"finite number: write {field}={example}."
            )


@dataclasses.dataclass(eq=False)
class StoppingRule(MetricHook):
    """A rule: looks at each evaluation once, and may ask for the end."""

    def after_value(self, run: Run, step: int, value: float) -> None:
        reason = self._judge(run, step, value)
        # A run that has reached its end is not stopped: one that goes on beyond it is,
        # at its next evaluation.
        if reason is not None and self._stopped is None and not run.finished:
            self._stop(run, f"{self.title}: {reason}")

    def _stop(self, run: Run, reason: str) -> None:
        """Asks for the end of the run."""
        self._stopped = reason
        run.request_stop(reason)

    def _judge(self, run: Run, step: int, value: float) -> str | None:
        """Returns the reason to stop at the value of a step's evaluation, or None."""
        raise NotImplementedError

    def state(self) -> Any:
        """Returns the arguments, the last step that was seen, the reason to stop."""
        return {**super().state(), "stopped": self._stopped}

    def restore(self, run: Run, state: Any) -> None:
        """Goes on with a rule of the same arguments, and begins anew with another's."""
        stopped = state["stopped"]
        if state["settings"] == self.settings():
            self._last_step = state["last_step"]
            if stopped is not None and self._stopped is None:
                self._stopped = stopped
                run.request_stop(stopped)
        elif stopped is not None and run.leads:
            logging.info(
                "train | an earlier rule had ended this training (%s), and it is "
                "another one now: training goes on.",
                stopped,
            )

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._stopped: str | None = None


class Patience:
    """How long a metric has not improved, and the best value so far."""

    def __init__(self, hook: "PatientHook") -> None:
        """Takes the hook that counts, whose fields say how long is too long."""
        self._hook = hook
        self._time = TrainingTime()
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets all evaluations."""
        self._time.go_on_from(0.0)
        self.best: tuple[int, float] | None = None
        # Step and seconds of training from which patience counts; evaluations since.
        self._since: tuple[int, float] | None = None
        self._evaluations = 0

    def see(self, step: int, value: float, *, enough: float | None = None) -> bool:
        """Counts an evaluation.

        Args:
          step: global step that was evaluated.
          value: value of the metric; NaN is no improvement.
          enough: value up to which an improvement does not count for the patience.

        Returns:
          Whether it is an improvement.
        """
        self._evaluations += 1
        if self._since is None:
            self.count_from(step)
        if not self._beats(value, self.best and self.best[1]):
            return False
        self.best = step, value
        if self._beats(value, enough):
            self.count_from(step)
        return True

    def count_from(self, step: int) -> None:
        """Has patience count from an evaluation on.

        Args:
          step: global step that was evaluated, now.
        """
        self._since, self._evaluations = (step, self._time.secs), 0

    def over(self, run: Run, step: int) -> str | None:
        """Returns in words for how long there was no improvement, where it is too long.

        Args:
          run: the run; all processes ask.
          step: global step of the last evaluation.
        """
        most, (since, then) = self._hook, self._since
        if most.max_steps is not None and step - since >= most.max_steps:
            return f"{step - since} steps"
        if (
            most.max_evaluations is not None
            and self._evaluations >= most.max_evaluations
        ):
            return f"{self._evaluations} evaluations"
        secs = self._time.secs - then
        # Clocks of processes differ: the first that is over decides for all.
        if most.max_secs is not None and run.agree(secs >= most.max_secs):
            return f"{secs:.0f} s"
        return None

    def state(self) -> dict[str, Any]:
        """Returns JSON for `restore`."""
        return {
            "best": self.best,
            "since": self._since,
            "evaluations": self._evaluations,
            "secs": self._time.secs,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from the `state` of an earlier process."""
        self.best = state["best"] and tuple(state["best"])
        self._since = state["since"] and tuple(state["since"])
        self._evaluations = state["evaluations"]
        self._time.go_on_from(state["secs"])

    def _beats(self, value: float, other: float | None) -> bool:
        """Returns whether a value is better than another by more than `min_delta`."""
        if other is None or math.isnan(value):
            return not math.isnan(value)
        better = value > other if self._hook.higher_is_better else value < other
        return better and abs(value - other) > self._hook.min_delta


@dataclasses.dataclass(eq=False)
class PatientHook(MetricHook):
    """A hook that acts when a metric has not improved for too long.

    Attributes:
      max_steps: most global steps from the best evaluation to the last one.
      max_evaluations: most evaluations after the best one.
      max_secs: most seconds of training from the best evaluation to the last one.
      min_delta: improvement that is none yet.
      higher_is_better: whether to improve is to increase.
    """

    _: dataclasses.KW_ONLY
    max_steps: int | None = None
    max_evaluations: int | None = None
    max_secs: float | None = None
    min_delta: float = 0.0

    higher_is_better: ClassVar[bool]

    def __post_init__(self) -> None:
        self.patience = Patience(self)
        super().__post_init__()
        own = type(self).__name__
        for field in ("max_steps", "max_evaluations"):
            if getattr(self, field) is not None:
                check_count(f"{own}.{field}", getattr(self, field), least=1)
        for field, example in _EXAMPLES.items():
            if getattr(self, field) is None:
                continue
            self._check_number(field, example)
            if getattr(self, field) < 0:
                raise RefusedValueError(
                    f"{own}.{field} is {getattr(self, field)!r}: write a number >= 0, "
                    f"{field}={example}."
                )
        if (self.max_steps, self.max_evaluations, self.max_secs) == (None, None, None):
            raise RefusedValueError(
                f"{self.title} has no patience that could end: write max_steps=5000, "
                "max_evaluations=5 or max_secs=3600."
            )

    @property
    def best(self) -> tuple[int, float] | None:
        """Global step and value of the best evaluation so far; None without any."""
        return self.patience.best

    def state(self) -> Any:
        """Returns the arguments, the last step, and what patience counts from."""
        return {**super().state(), "patience": self.patience.state()}

    def restore(self, run: Run, state: Any) -> None:
        """Goes on with what was the best, where only the patience is another."""
        super().restore(run, state)
        then, now = state["settings"], self.settings()
        if all(then.get(name) == now.get(name) for name in _WHAT_IS_BETTER):
            self._last_step = state["last_step"]
            self.patience.restore(state["patience"])
        elif run.leads:
            logging.info(
                "train | %s has other arguments than in the checkpoint: what was best "
                "is not known, and its patience begins anew.",
                self.title,
            )

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self.patience.begin_anew()


def check_fed(hooks: Sequence[Hook], *, has_evaluations: bool) -> None:
    """Checks that evaluations are made where hooks go by them.

    Args:
      hooks: hooks of a training.
      has_evaluations: whether there are evaluations along it.

    Raises:
      ValueError: a hook would never hear of its metric.
    """
    for hook in hooks:
        if isinstance(hook, MetricHook) and not has_evaluations:
            raise RefusedValueError(
                f"{hook.title} goes by the metrics of evaluations, and this training "
                "has none: write train_and_evaluate(estimator, TrainSpec(...), "
                "EvalSpec(...)), or --job=train_and_evaluate."
            )
