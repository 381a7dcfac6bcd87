"""The base of stopping rules and of other hooks that follow one metric of one evaluation."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..contract import old_names
from ..contract.checks import Check, check_fields, integer, number
from ..contract.hooks import Hook, Run
from ..contract.run_config import RunConfig
from ..errors import UserTypeError, UserValueError
from ..model_dir.evaluated import Evaluated

# The evaluations of one name, by step.
History = Sequence[Evaluated]

_NAME = Check(
    lambda v: isinstance(v, str) and v, "the name of a metric", "'accuracy'", error=UserTypeError
)
_EVALUATION = Check(
    lambda v: isinstance(v, str),
    "the name of an EvalSpec",
    "'test'",
    optional=True,
    error=UserTypeError,
)


@dataclasses.dataclass(frozen=True)
class MetricHook(Hook):
    """A hook that decides by the record of evaluations alone, so it has no state to save.

    Attributes:
      metric: name of a metric that is one number, or "loss".
      evaluation: name of the EvalSpec; None for the one without a name, and in
        `EvalSpec.early_stopping`, for that one.
      min_steps: global step before which evaluations do not count.
    """

    metric: str
    _: dataclasses.KW_ONLY
    evaluation: str | None = None
    min_steps: int = 0

    # Fields of some subclasses.
    higher_is_better: ClassVar[Any] = None
    baseline: ClassVar[Any] = None
    restore_best: ClassVar[Any] = False
    _checks: ClassVar[Mapping[str, Check]] = {}

    def __post_init__(self) -> None:
        checks = {"metric": _NAME, "evaluation": _EVALUATION, "min_steps": integer(0, example=1000)}
        check_fields(self, {**checks, **self._checks})

    def begin(self, run: Run) -> None:
        """Decides by the evaluations of earlier trainings in model_dir."""
        self.act(run, self.history(run))

    def after_evaluation(self, run: Run, name: str, metrics: Mapping[str, Any]) -> None:
        """Decides after an evaluation of the name."""
        if name == (self.evaluation or ""):
            self.act(run, self.history(run))

    def act(self, run: Run, history: History) -> None:
        """Called with all evaluations up to the step of the run."""
        raise NotImplementedError

    def history(self, run: Run) -> History:
        """Returns the evaluations of the name."""
        return run.evaluations.get(self.evaluation or "", ())

    def values(self, history: History) -> Iterator[tuple[int, float]]:
        """Yields the step and the value of each evaluation that counts."""
        for each in history:
            if each.step >= self.min_steps:
                if self.metric not in each.metrics:
                    raise self._missing(each.metrics)
                value = each.metrics[self.metric]
                if np.ndim(value):
                    raise UserTypeError(
                        f"{self.title}: the metric has shape {np.shape(value)}: expected one "
                        "number. Add one to EstimatorSpec.metrics."
                    )
                yield each.step, float(value)

    def check_metric(self, names: Iterable[str]) -> None:
        """Checks the metric before an evaluation was made.

        Args:
          names: names of the metrics; a metric of several results has `NAME/RESULT`.

        Raises:
          UserValueError: it is not one of them.
        """
        if not {*names, "loss"} & {self.metric, self.metric.partition("/")[0]}:
            raise self._missing(names)

    def _missing(self, names: Iterable[str]) -> UserValueError:
        known = sorted({*names, "loss"} - {"global_step"})
        near = old_names.hint(self.metric, known, {})
        return UserValueError(f"{self.title}: expected a metric of the evaluation, {known}.{near}")

    @property
    def title(self) -> str:
        """The hook in messages: `StopIfHigher('accuracy')`."""
        return f"{type(self).__name__}({self.metric!r})"


@dataclasses.dataclass(frozen=True)
class PatientHook(MetricHook):
    """A hook that acts when a metric has not improved for some time.

    Attributes:
      max_steps: maximum number of global steps from the best evaluation to the last one.
      max_evaluations: maximum number of evaluations after the best one.
      min_delta: difference that an improvement has to exceed.
    """

    _: dataclasses.KW_ONLY
    max_steps: int | None = None
    max_evaluations: int | None = None
    min_delta: float = 0.0

    _checks: ClassVar[Mapping[str, Check]] = {
        "max_steps": integer(1, example=5000, optional=True),
        "max_evaluations": integer(1, example=5, optional=True),
        "min_delta": number(0, example=0.001),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_steps is None and self.max_evaluations is None:
            raise UserValueError(
                f"{self.title} has no patience: expected max_steps or max_evaluations. Set "
                "max_steps=5000."
            )


class Patience:
    """Counts how long the metric of a hook has not improved. NaN is never an improvement.

    Attributes:
      best: step and value of the best evaluation; None before the first.
    """

    def __init__(self, hook: PatientHook) -> None:
        self._hook = hook
        self._since: int | None = None
        self._evaluations = 0
        self.best: tuple[int, float] | None = None

    def add(self, step: int, value: float) -> str | None:
        """Counts an evaluation; returns the time without improvement in words if it is over."""
        hook = self._hook
        self._evaluations += 1
        if self._since is None:
            self.restart(step)
        if self._beats(value, self.best and self.best[1]):
            self.best = step, value
            if self._beats(value, hook.baseline):
                self.restart(step)
        if hook.max_steps is not None and step - self._since >= hook.max_steps:
            return f"{step - self._since} steps"
        if hook.max_evaluations is not None and self._evaluations >= hook.max_evaluations:
            return f"{self._evaluations} evaluations"
        return None

    def restart(self, step: int) -> None:
        """Counts from the evaluation of this step on."""
        self._since, self._evaluations = step, 0

    def _beats(self, value: float, other: float | None) -> bool:
        if other is None or math.isnan(value):
            return not math.isnan(value)
        better = value > other if self._hook.higher_is_better else value < other
        return better and abs(value - other) > self._hook.min_delta


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
        name = hook.evaluation or ""
        if name not in metrics:
            raise UserValueError(
                f"{hook.title}.evaluation is {hook.evaluation!r}: expected the name of an EvalSpec "
                f"of this training, {sorted(metrics)}. Set evaluation, and pass the EvalSpec to "
                "train_and_evaluate."
            )
        if metrics[name]:
            hook.check_metric(metrics[name])
        if hook.restore_best and (config.has_evaluator or config.save_checkpoints_steps == 0):
            raise UserValueError(
                f"{hook.title}.restore_best is True: expected checkpoints, and evaluations in the "
                "process that trains. Set RunConfig(evaluation='inline'), and "
                "save_checkpoints_steps above 0."
            )
