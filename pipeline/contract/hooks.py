# SPDX-License-Identifier: Apache-2.0
"""Hooks observe a run between compiled calls and can ask it to stop."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..errors import UserRuntimeError, UserTypeError
from .checks import Check, check, integer, objects
from .old_names import kind_of_hook
from .summaries import Summary

_TEXT = Check(lambda value: isinstance(value, str), "a text", "'enough'", error=UserTypeError)


@dataclasses.dataclass(frozen=True)
class Report:
    """Results of the steps of one or more compiled calls.

    Attributes:
      step: global step after the last one.
      num_steps: number of steps.
      num_examples: number of examples in all processes.
      seconds: duration of the calls.
      loss: weighted mean loss over the steps.
      metrics: results of the metrics over the steps, by name.
      scalars: means of the scalars over the examples of the last step, by name, and the
        learning rates that it used.
      tensors: arrays of `EstimatorSpec.tensors` of the last step, by name; empty unless the hook
        has `wants_tensors`.
      summaries: `EstimatorSpec.summaries` of the last step, as arrays, by name; empty unless the
        hook has `wants_summaries`.
      input_seconds: seconds in which the steps waited for input; None if unknown.
      losses: weighted mean loss of each step, as an array; empty unless the hook has
        `wants_losses`.
    """

    step: int
    num_steps: int
    num_examples: int
    seconds: float
    loss: float
    metrics: Mapping[str, Any]
    scalars: Mapping[str, float]
    tensors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    input_seconds: float | None = None
    losses: Sequence[float] = ()
    summaries: Mapping[str, Summary] = dataclasses.field(default_factory=dict)

    @property
    def steps_per_sec(self) -> float:
        """Steps per second; 0 without steps."""
        return self.num_steps / self.seconds if self.seconds > 0 else 0.0

    @property
    def examples_per_sec(self) -> float:
        """Examples per second, of all processes; 0 without steps."""
        return self.num_examples / self.seconds if self.seconds > 0 else 0.0

    @property
    def input_wait(self) -> float | None:
        """Share of the time in which the steps waited for input, 0 to 1; None if unknown."""
        if self.input_seconds is None or self.seconds <= 0:
            return None
        return min(1.0, self.input_seconds / self.seconds)


class SkippedStep(NamedTuple):
    """A step whose batches are read and not trained on.

    Attributes:
      step: global step after it.
      reason: the cause, for the log.
      ends: whether training ends when its batches were written.
    """

    step: int
    reason: str
    ends: bool = False


class SkipRequests(Protocol):
    """Takes the requests of hooks to skip a step; the training loop has them."""

    def check_supported(self, problem: str, remedy: str) -> None:
        """Refuses a training that cannot skip steps; see `RunContext.check_can_skip`."""

    def request(self, step: SkippedStep) -> None:
        """Asks to skip a step; of several requests after one call the smallest step counts."""


class RunContext:
    """What hooks may read of a run, and ways to stop it or to skip a step.

    Attributes:
      model_dir: directory of the run.
      step: global step.
      max_step: global step at which training ends; None for the end of the input.
      is_chief: whether this process logs and writes for all that train in lockstep.
      agree: function of a bool that returns whether any process passed True; each has to call it.
      stop_reasons: why training is going to end; empty while it continues.
      has_ended: whether the last step was made, so that a request to stop has no effect.
      saves_again: whether a hook has called `request_last_save`.
      evaluations: the evaluations of this run up to its step, by name of the EvalSpec; each has
        `step` and `metrics`.
      summaries: `EstimatorSpec.summaries` of the last evaluation, as arrays, by name of the
        EvalSpec.
      is_evaluator: whether an evaluator job makes the evaluations of the run here.
    """

    def __init__(
        self,
        model_dir: str,
        step: int,
        max_step: int | None = None,
        *,
        is_chief: bool = True,
        agree: Callable[[bool], bool] = bool,
        is_evaluator: bool = False,
        evaluations: dict[str, list[Any]] | None = None,
        skips: SkipRequests | None = None,
    ) -> None:
        self.model_dir = model_dir
        self.step = step
        self.max_step = max_step
        self.is_chief = is_chief
        self.agree = agree
        self.is_evaluator = is_evaluator
        self.evaluations = {} if evaluations is None else evaluations
        self.stop_reasons: list[str] = []
        self.has_ended = False
        self.saves_again = False
        self.summaries: dict[str, Mapping[str, Summary]] = {}
        self.read_report: Callable[[], Report] | None = None
        self._skips = skips

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises an error that has the new name of an attribute."""
            new = {"leads": "is_chief", "leave_out": "skip_step"}.get(name)
            remedy = f" Write instead: {new}." if new else ""
            raise AttributeError(
                f"RunContext has no attribute {name!r}.{remedy}", name=name, obj=self
            )

    @property
    def is_at_end(self) -> bool:
        """Whether the run has reached `max_step`."""
        return self.max_step is not None and self.step >= self.max_step

    @property
    def report(self) -> Report:
        """Results of the steps since the last `after_step` of the hook that reads it.

        For a hook without `after_step`, since it last read a report.
        """
        return self.read_report()

    @property
    def stop_reason(self) -> str | None:
        """Why training is going to end, in one text; None while it continues."""
        return "; ".join(self.stop_reasons) or None

    def request_stop(self, reason: str) -> None:
        """Ends training after the current call, in all processes; reasons accumulate."""
        check("request_stop.reason", reason, _TEXT)
        if reason not in self.stop_reasons:
            self.stop_reasons.append(reason)

    def request_last_save(self) -> None:
        """Saves the last step again when all hooks have ended.

        For hooks that set variables, or their own state, after the last step was saved.
        """
        self.saves_again = True

    def skip_step(self, step: int, reason: str, *, ends: bool = False) -> None:
        """Returns training to the last checkpoint, and continues without the batches of a step.

        Hooks call it in `after_loop`, the same in all processes. Their `begin` and `restore` are
        then called again. The batches and the weights before them are written to
        `model_dir/bad_batches`.

        Args:
          step: global step after the step; one of those in `report`. The smallest one counts.
          reason: the cause, for the log.
          ends: whether training ends when the batches were written.

        Raises:
          UserValueError: the training has no checkpoints, or its steps do not come again.
        """
        self.check_can_skip(f"skip_step({step}) was called", "Call request_stop.")
        self._skips.request(SkippedStep(step, reason, ends))

    def check_can_skip(self, problem: str, remedy: str) -> None:
        """Refuses what needs `skip_step` if it cannot be called.

        Args:
          problem: beginning of the message: "LossGuard.on is 'restore'".
          remedy: end of the message: "Set on='stop'."
        """
        if self._skips is None:
            raise UserRuntimeError(f"{problem}: expected a hook of a training. {remedy}")
        self._skips.check_supported(problem, remedy)


class Hook:
    """Base class of hooks. Each method does nothing by default.

    Attributes:
      every_steps: `after_step` is called at multiples of this step, 1 or more; None: never.
      wants_tensors: whether reports have the arrays of `EstimatorSpec.tensors`, or the names of
        those that they have.
      wants_losses: whether reports have the loss of each step.
      wants_summaries: whether reports have the summaries.
      continues_report: whether a report of the next training also has the steps that `end` got in
        this one. After a kill, it has all steps since the last `after_step` in any case.
      num_epochs: number of passes over the input after which training ends; None: not decided by
        this hook.
    """

    every_steps: int | None = None
    wants_tensors: bool | Sequence[str] = False
    wants_losses: bool = False
    wants_summaries: bool = False
    continues_report: bool = False
    num_epochs: float | None = None

    def next_step(self, step: int) -> int | None:
        """Returns the next step at which `after_step` is called, None for never.

        In an evaluation, a step of the evaluation at which a compiled call ends at the latest.

        Args:
          step: global step; the result is greater.
        """
        return None if not self.every_steps else step - step % self.every_steps + self.every_steps

    def begin(self, run: RunContext) -> None:
        """Called before the first step."""

    def restore(self, run: RunContext, state: Any) -> None:
        """Called after `begin` with the saved `state` if the run continues a checkpoint."""

    def after_loop(self, run: RunContext) -> None:
        """Called after each compiled call, before `after_step`; must be cheap."""

    def after_step(self, run: RunContext) -> None:
        """Called at each `next_step`, a multiple of `every_steps`, with results in `run.report`."""

    def after_evaluation(self, run: RunContext, name: str, metrics: Mapping[str, Any]) -> None:
        """Called after each evaluation with its metrics."""

    def end(self, run: RunContext) -> None:
        """Called after the last step, with the rest of the steps in `run.report`."""

    def close(self) -> None:
        """Called last, also after an error, and if `begin` was not called: releases resources."""

    def state(self) -> Any:
        """Returns what this hook needs after a restart, as JSON; saved with checkpoints."""
        return None


class SavingListener:
    """Called around each checkpoint of a training. Each method does nothing by default."""

    def begin(self, run: RunContext) -> None:
        """Called before the first step."""

    def before_save(self, run: RunContext) -> None:
        """Called before the checkpoint of `run.step` is written."""

    def after_save(self, run: RunContext) -> bool | None:
        """Called after the checkpoint of `run.step` was written; True ends the training.

        An asynchronous save may still be writing: a listener that reads the files needs
        RunConfig(async_checkpoint=False).
        """

    def end(self, run: RunContext) -> None:
        """Called after the last checkpoint of a training that ended without an error."""


class MetricWriter:
    """Base class of metric writers, which get the numbers of a training; see RunConfig.

    One process calls it, and an evaluator job calls it for its evaluations. An error of a method
    is logged once, and training continues.

    Attributes:
      is_remote: whether calls may wait for a server. They run in a thread then, with a queue of
        limited length: a server that does not answer never stops the training.
    """

    is_remote = False

    def begin(self, run: RunContext, hparams: Mapping[str, Any]) -> None:
        """Called before the first step, with the hyperparameters by name.

        If it fails, the writer is not called again.
        """

    def write(self, step: int, values: Mapping[str, float], name: str) -> None:
        """Called after some steps and after each evaluation.

        Args:
          step: global step.
          values: numbers by name; elements of arrays are `iou/0`, `iou/1`.
          name: 'train', or the folder of the evaluation: 'eval' or 'eval_NAME'.
        """

    def end(self) -> None:
        """Called at the end of the training, also after an error."""

    def abandon(self) -> None:
        """Called if a remote writer has not ended in time; returns at once."""


def check_hooks(name: str, hooks: Any, *, evaluation: bool = False) -> tuple[Hook, ...]:
    """Returns hooks as a tuple, after checking that each will be called.

    Args:
      name: name in the message: "TrainSpec.hooks".
      hooks: list of hooks; None is an empty list.
      evaluation: whether they are hooks of an evaluation.

    Raises:
      UserError: an object is not a hook, its `every_steps` is not a number of steps, or the
        methods that it overrides are never called.
    """
    found = objects(name, hooks, Hook, kind_of_hook)
    for hook in found:
        kind = type(hook).__name__
        check(f"{kind}.every_steps", hook.every_steps, integer(0, example=100, optional=True))
        own = {method for method in vars(Hook) if getattr(type(hook), method) != vars(Hook)[method]}
        if evaluation and ("after_step" in own or not own & {"begin", "after_loop", "end"}):
            raise UserTypeError(
                f"{name} has a {kind}: expected hooks of evaluations, for which begin, after_loop "
                "and end are called, and not after_step. Set TrainSpec(hooks=...)."
            )
        # An `every_steps` that is chosen later is set by these methods.
        chosen = own & {"next_step", "begin", "restore"} or hook.every_steps
        if "after_step" in own and not chosen:
            raise UserTypeError(
                f"{kind}.every_steps is {hook.every_steps}, so that after_step is never called: "
                "expected a number of steps. Set every_steps = 100."
            )
    return found


def as_text(metrics: Mapping[str, Any]) -> str:
    """Returns ` | loss 0.312 | accuracy 0.91`; of arrays the mean, without `global_step`."""
    return "".join(
        f" | {name} {np.mean(value):.4g}"
        for name, value in metrics.items()
        if name != "global_step"
    )
