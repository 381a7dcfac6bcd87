"""Hooks, which watch the training from outside, listeners, its checkpoints, and tools.

The driver runs one compiled loop up to the next step that any hook asks to see, and
calls the hooks there. A hook costs nothing between its steps.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.contract.summaries import Seen
from pipeline.contract.train_op import Rate
from pipeline.mistakes.checks import check_every
from pipeline.process.refusals import RefusedRuntimeError, RefusedValueError


@dataclasses.dataclass(frozen=True)
class Report:
    """The numbers of a hook's window: since its last call, or the run's beginning.

    Attributes:
      step: global step at the end of the window.
      num_steps: number of steps in the window.
      seconds: wall time of the window, without evaluations and checkpoints.
      loss: mean over the window's examples, with the regularization.
      metrics: value of each metric over the window's examples, by name.
      scalars: value of each scalar at the last step, by name; the learning rate is
        among them.
      num_examples: number of the window's examples, of all replicas; an example that is
        used by several forward passes counts once. None where nobody knows, as in a
        window that an earlier version has saved.
      input_seconds: seconds of the window for which the model waited for input; of
        several processes the longest. None as above.
      summaries: what `EstimatorSpec.summaries` declares, by name: of the last step
        that ended `RunConfig.save_summary_steps`, or of an evaluation's examples.
      tensors: what `EstimatorSpec.tensors` declares, as NumPy arrays by name: of the
        step at the end of the window, the same in each process. Empty where no hook
        `wants_tensors`, and where the input or a loss of NaN ended the loop early.
    """

    step: int
    num_steps: int
    seconds: float
    loss: float
    metrics: Mapping[str, Any]
    scalars: Mapping[str, float]
    num_examples: int | None = None
    input_seconds: float | None = None
    summaries: Mapping[str, Seen] = dataclasses.field(default_factory=dict)
    tensors: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def steps_per_sec(self) -> float:
        """Steps per second of the window; 0 where it is empty."""
        return self.num_steps / self.seconds if self.seconds > 0 else 0.0

    @property
    def examples_per_sec(self) -> float | None:
        """Examples per second of the window; None where nobody knows."""
        if self.num_examples is None or self.seconds <= 0:
            return None
        return self.num_examples / self.seconds

    @property
    def input_wait(self) -> float | None:
        """The share of time spent waiting for input, from 0 to 1; None as above."""
        if self.input_seconds is None or self.seconds <= 0:
            return None
        return min(1.0, self.input_seconds / self.seconds)

    def values(self) -> dict[str, Any]:
        """Returns loss, metrics and scalars together, by name, as they are logged."""
        return {"loss": self.loss, **self.metrics, **self.scalars}


@dataclasses.dataclass(frozen=True)
class Return:
    """A way back to a checkpoint, which a hook asked for.

    Attributes:
      reason: text for the log.
      choose: function that returns the checkpoint's path prefix, called in each process
        when no save is under way any more; None for the newest checkpoint.
    """

    reason: str
    choose: Callable[[], str] | None = None


@dataclasses.dataclass(frozen=True)
class BadStep:
    """A step that a hook wants to leave out.

    Attributes:
      step: global step after it.
      reason: text for the log.
      ends: whether the run is to end there, once its batch is written to a file.
    """

    step: int
    reason: str
    ends: bool = False


class Run:
    """The run as a hook sees it. A hook may ask it to stop, or to go back.

    Attributes:
      model_dir: directory of the Estimator.
      first_step: global step at the beginning of this run.
      step: global step now.
      max_step: global step at which the run ends by itself; None where the input
        decides.
      nonfinite_step: first step whose loss was NaN or infinite in the last call of
        the compiled loop; None where all were finite.
      finished: whether the last step was run, so that only the last evaluation and
        `end` still come.
      stop_reasons: reasons of the stops that were asked for. They accumulate, so that
        no hook takes back the stop of another.
      going_back: way back to a checkpoint that a hook asked for; None without any.
      losses: float64 vector, the loss of each step of the loop's last call, the last
        that of `step`; where a hook `wants_losses`. NaN where no example counts.
      bad_step: first step that hooks asked to leave out; None without any.
      leaves_out: whether `leave_out` may be called: a hook says so by its `leaves_out`.
      leads: whether this process logs and writes for all that train in step. Hooks are
        called in each of these.
      agree: function of a bool that returns whether any process gave True; each has to
        call it. For decisions in which processes may differ, such as by a clock.
      from_leader: function of a text that returns the text of the process that leads;
        each has to call it. For what one process reads for all.
      shows_progress: whether to show a line that moves where somebody looks.
      most_examples: most examples that one step takes, on all replicas; None where
        nothing tells.
      rates: learning rates by the names of their optimizers' modules, where a hook
        `sets_rates`; else empty.
    """

    def __init__(
        self,
        model_dir: str,
        step: int,
        max_step: int | None,
        *,
        leads: bool = True,
        agree: Callable[[bool], bool] = bool,
        from_leader: Callable[[str], str] = str,
        progress: bool = True,
    ) -> None:
        self.model_dir = model_dir
        self.leads = leads
        self.agree = agree
        self.from_leader = from_leader
        self.shows_progress = progress and leads
        self.first_step = step
        self.step = step
        self.finished = False
        self.max_step = max_step
        self.nonfinite_step: int | None = None
        self.losses: Any = ()
        self.stop_reasons: list[str] = []
        self.going_back: Return | None = None
        self.rates: Mapping[str, Rate] = {}
        self.most_examples: int | None = None
        self.bad_step: BadStep | None = None
        self.leaves_out = False
        self.read_report: Callable[[], Report] | None = None

    @property
    def report(self) -> Report:
        """The report of the calling hook's window; reading it waits for the device."""
        return self.read_report()

    def request_stop(self, reason: str) -> None:
        """Ends the run after this step, with a checkpoint.

        Args:
          reason: text for the log.
        """
        self.stop_reasons.append(str(reason))

    def go_back(self, reason: str, choose: Callable[[], str] | None = None) -> None:
        """Leaves this run at once, unsaved; another begins at an earlier checkpoint.

        Hooks of all processes that train in step ask for it together, in `after_loop`
        or along an evaluation. The other run has the same hooks: `begin` is called on
        each of them again, and `restore` with what the checkpoint holds. Checkpoints
        that are newer are deleted. Of several requests the first one counts.

        Args:
          reason: text for the log.
          choose: function that returns the checkpoint's path prefix, see `Return`.
        """
        self.going_back = self.going_back or Return(reason, choose)

    def leave_out(self, step: int, reason: str, *, ends: bool = False) -> None:
        """Has training go back, and go on without the batch of a step.

        Hooks of all processes ask for it together, in `after_loop`; the first counts.

        Args:
          step: global step after it, one of the last call of the compiled loop.
          reason: text for the log: "the loss was NaN".
          ends: whether to end the run there, once the batch is written to a file.

        Raises:
          RuntimeError: no hook has said that it may call this.
        """
        if not self.leaves_out:
            raise RefusedRuntimeError(
                "run.leave_out was called, and no hook said that it would be: write "
                "leaves_out = True in the hook's class."
            )
        if self.bad_step is None or step < self.bad_step.step:
            self.bad_step = BadStep(step, reason, ends)


class Hook:
    """A watcher, called at the steps that it asks for. Override what you need.

        begin             before the first step
        restore           after begin, where the run goes on from a checkpoint
        after_loop        whenever the compiled loop returns, for clocks and guards
        after_step        at steps 100, 200, ... with every_steps = 100
        after_evaluation  after each evaluation along the training
        after_hooks       whenever the compiled loop returns, after all of these
        end               after a run that ended cleanly, and its last evaluation

    A hook that has to know something of earlier steps returns it as its `state`, which
    is saved with each checkpoint. The windows of all hooks are saved, too: a run that
    is broken off and goes on reports the same as one that never stopped.
    """

    every_steps: int | None = None
    # Whether it changes learning rates, by `run.rates`.
    sets_rates: bool = False
    # Whether `after_step` only reads its report. It may then be called up to half a
    # second late, so that the loop need not wait; the report is still the step's own.
    only_watches: bool = False
    # Whether it may call `run.leave_out`; whether it reads `run.losses`; whether it
    # reads `run.report.tensors`, or which of them, by name.
    leaves_out: bool = False
    wants_losses: bool = False
    wants_tensors: bool | Sequence[str] = False

    def next_step(self, step: int) -> int | None:
        """Returns the first step after `step` that this hook wants to see, or None.

        Args:
          step: global step.

        Raises:
          ValueError: `every_steps` is neither None nor an int of at least 0, or it is
            not set and the hook has an `after_step`. None, set on purpose, means never.
        """
        own = type(self)
        check_every(f"{own.__name__}.every_steps", self.every_steps)
        if not self.every_steps:
            # None that a user's class or object sets is on purpose; Hook's own is not.
            places = (vars(self), *map(vars, own.__mro__[: own.__mro__.index(Hook)]))
            is_set = any("every_steps" in place for place in places)
            if not is_set and own.after_step is not Hook.after_step:
                raise RefusedValueError(
                    f"{own.__name__}.every_steps is not set, and after_step would "
                    "never be called: write every_steps = 100 in the class."
                )
            return None
        return (step // self.every_steps + 1) * self.every_steps

    def begin(self, run: Run) -> None:
        """Called before the first step."""

    def after_step(self, run: Run) -> None:
        """Called at each step that `next_step` gave.

        Args:
          run: the run; `run.report` is the window since the last call.
        """

    def after_loop(self, run: Run) -> None:
        """Called whenever the compiled loop returns, before any `after_step`."""

    def after_evaluation(
        self, run: Run, name: str | None, metrics: Mapping[str, Any]
    ) -> None:
        """Called after each evaluation along the training, in the order of their steps.

        Every process that trains makes the call, with the same metrics. Where training
        evaluates, it comes right after the evaluation, and that of the last step comes
        before `end`. Beside an evaluator job it comes at one of the next times that the
        loop returns, and not for what is evaluated after training has ended.

        A checkpoint holds the `state` from before its evaluation, and a run that goes
        on from there calls this again: each evaluation counts once in what `state`
        says.

        Args:
          run: the run; beside an evaluator job `run.step` may be a later step.
          name: name of the EvalSpec, or None.
          metrics: the values that `Estimator.evaluate` returned: `loss`, `global_step`
            and the metrics by name.
        """

    def after_hooks(self, run: Run) -> None:
        """Called whenever the compiled loop returns, after all other calls there."""

    def end(self, run: Run) -> None:
        """Called after the last step of a run that ended cleanly, as the last call.

        The last checkpoint is saved before, and evaluated. It keeps the `state` that
        holds after this call.

        Args:
          run: the run; `run.report` is the window since the last call.
        """

    def state(self) -> Any:
        """Returns JSON for `restore` in another process; None for nothing."""
        return None

    def restore(self, run: Run, state: Any) -> None:
        """Called after `begin` where the run goes on from a checkpoint of this hook.

        Args:
          run: the run, at the checkpoint's step. A stop that was asked for there is to
            be asked for again, as the process may have been killed before it ended.
          state: the value that `state` returned when the checkpoint was saved.
        """


class SavingListener:
    """A watcher, called before and after each checkpoint. Override what you need."""

    def begin(self, run: Run) -> None:
        """Called before the first step; one that is a `Hook`, too, as that."""

    def before_save(self, run: Run) -> None:
        """Called before the checkpoint of `run.step` is written."""

    def after_save(self, run: Run) -> None:
        """Called after the checkpoint of `run.step` was written.

        Where saving is asynchronous, as it is unless much is saved, the files come
        later: a listener that reads them needs RunConfig(async_checkpoint=False).

        Returns:
          True to stop the run, as `run.request_stop(reason)` does.
        """

    def end(self, run: Run) -> None:
        """Called after the last checkpoint of a run that ended cleanly."""


class Tool:
    """A place for the numbers of a training, beside TensorBoard. Override all three.

        begin   before the first step
        write   the numbers of a window of training steps, or of an evaluation
        end     after a run that ended cleanly

    One process calls, the one that leads. What a method raises is logged, once for each
    tool, and training goes on.
    """

    def begin(self, run: Run, hparams: Mapping[str, Any]) -> None:
        """Called before the first step.

        Args:
          run: the run. Where it goes on from a checkpoint, or goes back to one,
            `run.step` is its step: what was written of later steps is void, and is
            written again.
          hparams: hyperparameters by name: numbers, bools, strings.
        """

    def write(self, step: int, values: Mapping[str, float], name: str) -> None:
        """Called with numbers that were measured.

        An evaluation may be written again after a restart, with the same step.

        Args:
          step: global step.
          values: floats by name; an array's elements are `name/0`, `name/1`.
          name: 'train' for a window, and the name of the evaluation's folder for an
            evaluation: 'eval', or 'eval_test' of EvalSpec.name = 'test'.
        """

    def end(self) -> None:
        """Called after a run that ended cleanly; another run may begin."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
