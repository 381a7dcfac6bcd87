"""Hooks watch the training loop from outside; the stock hooks.

The driver runs one compiled loop up to the next step that any hook asks to see, and
calls the hooks there. A hook costs nothing between its steps.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline import progress, summary
from pipeline.checks import check_count, check_every

_RATE = "global_step/sec"


class NanLossDuringTrainingError(RuntimeError):
    """The loss became NaN or infinite."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What happened in a hook's window: since its last call, or the beginning.

    Attributes:
      step: the global step at its end.
      num_steps: steps in it.
      seconds: wall time of it, evaluations and checkpoints left out.
      loss: mean over its examples, with the regularization.
      metrics: value by name, over its examples.
      scalars: the last step's value by name; the learning rate is among them.
    """

    step: int
    num_steps: int
    seconds: float
    loss: float
    metrics: Mapping[str, Any]
    scalars: Mapping[str, float]

    @property
    def steps_per_sec(self) -> float:
        """Rate over the window; 0 where it is empty."""
        return self.num_steps / self.seconds if self.seconds > 0 else 0.0

    def values(self) -> dict[str, Any]:
        """Loss, metrics and scalars together, as they are logged."""
        return {"loss": self.loss, **self.metrics, **self.scalars}


class Run:
    """What a hook sees of the run, and the one thing that it may ask for.

    Attributes:
      model_dir: of the Estimator.
      first_step: global step at the beginning of this run.
      step: global step now.
      max_step: where the run ends by itself; None where the input decides.
      nonfinite_step: first step whose loss was NaN or infinite in the last call of
        the compiled loop; None where all were finite.
      finished: whether the last step was run, and only `end` is still called.
      stop_reasons: what stops were asked for; they accumulate.
      leads: whether this process logs and writes for all that train in step; hooks are
        called in each.
      agree: whether any process gives True; each has to call it. For what a hook
        decides by its own lights, such as a clock.
      shows_progress: whether to show a line that moves where somebody looks.
    """

    def __init__(
        self,
        model_dir: str,
        step: int,
        max_step: int | None,
        *,
        leads: bool = True,
        agree: Callable[[bool], bool] = bool,
        progress: bool = True,
    ) -> None:
        self.model_dir = model_dir
        self.leads = leads
        self.agree = agree
        self.shows_progress = progress and leads
        self.first_step = step
        self.step = step
        self.finished = False
        self.max_step = max_step
        self.nonfinite_step: int | None = None
        self.stop_reasons: list[str] = []
        self.read_report: Callable[[], Report] | None = None

    @property
    def report(self) -> Report:
        """The calling hook's window; reading it waits for the device."""
        return self.read_report()

    def request_stop(self, reason: str) -> None:
        """Ends the run after this step; what was done is saved."""
        self.stop_reasons.append(str(reason))


class Hook:
    """Called at the steps that it asks for. Override what you need.

    begin, and restore where the run goes on from a checkpoint
    after_loop   whenever the compiled loop returns, for clocks and guards
    after_step   at step 100, 200, ... with every_steps = 100
    after_hooks  when all hooks had their turn
    end          after a run that ended cleanly

    What it has to know from one step to the next is its `state`, which is saved with
    each checkpoint. So are the windows of all hooks: a run that is broken off and goes
    on reports what it would have.
    """

    every_steps: int | None = None
    # Whether `after_step` only reads its report, and so may be called up to half a
    # second late, when the loop has gone on; the report is that of the step itself.
    only_watches: bool = False

    def next_step(self, step: int) -> int | None:
        """The first step after `step` that this hook wants to see; None for none.

        Raises:
          ValueError: `every_steps` is no such number.
        """
        check_every(f"{type(self).__name__}.every_steps", self.every_steps)
        if not self.every_steps:
            return None
        return (step // self.every_steps + 1) * self.every_steps

    def begin(self, run: Run) -> None:
        """Before the first step."""

    def after_step(self, run: Run) -> None:
        """At each step that `next_step` gave; `run.report` is the window since."""

    def after_loop(self, run: Run) -> None:
        """Whenever the compiled loop returned, before any `after_step`."""

    def after_hooks(self, run: Run) -> None:
        """Whenever the compiled loop returned, after every `after_step`."""

    def end(self, run: Run) -> None:
        """After the last step; `run.report` is the window since the last call."""

    def state(self) -> Any:
        """What `restore` needs in another process, as JSON; None for nothing."""
        return None

    def restore(self, run: Run, state: Any) -> None:
        """Called after `begin` where the run goes on from a checkpoint of this hook.

        Args:
          run: at the checkpoint's step. A stop that was asked for there is to be asked
            for again, as the process may have been killed before it ended.
          state: what `state` returned when the checkpoint was saved.
        """


class StopAtStepHook(Hook):
    """Stops the run at a step: after `num_steps` of this run, or at `last_step`."""

    def __init__(
        self, num_steps: int | None = None, last_step: int | None = None
    ) -> None:
        """
        Args:
          num_steps: steps from here.
          last_step: a global step.

        Raises:
          ValueError: both or neither is given, or one that is no int above 0.
        """
        if (num_steps is None) == (last_step is None):
            raise ValueError(
                f"StopAtStepHook takes one of num_steps ({num_steps}) and last_step "
                f"({last_step}): write StopAtStepHook(last_step=1000)."
            )
        if num_steps is not None:
            check_count("StopAtStepHook.num_steps", num_steps, least=1)
        else:
            check_count("StopAtStepHook.last_step", last_step, least=1)
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self, run: Run) -> None:
        if self._num_steps is not None:
            self._last_step = run.step + self._num_steps

    def next_step(self, step: int) -> int | None:
        return max(self._last_step, step + 1)

    def after_step(self, run: Run) -> None:
        if run.step >= self._last_step:
            run.request_stop(f"step {self._last_step} was reached")

    def state(self) -> Any:
        """Where a count of steps began, until it is over and the run has ended."""
        if self._num_steps is None or self._last_step is None:
            return None
        return {"num_steps": self._num_steps, "last_step": self._last_step}

    def restore(self, run: Run, state: Any) -> None:
        if state["num_steps"] == self._num_steps:
            self._last_step = state["last_step"]
            self.after_step(run)

    def end(self, run: Run) -> None:
        if self._num_steps is not None and run.step >= self._last_step:
            self._last_step = None


class NanHook(Hook):
    """Ends the run at a loss of NaN or Inf, or warns of it.

    The loop itself looks at each step's loss, so the step that is named is exact.
    """

    def __init__(self, fail_on_nan_loss: bool = True) -> None:
        """
        Args:
          fail_on_nan_loss: raises; else a warning is logged and training goes on.
        """
        self._fail = fail_on_nan_loss

    def after_loop(self, run: Run) -> None:
        """
        Raises:
          NanLossDuringTrainingError: where `fail_on_nan_loss`.
        """
        if run.nonfinite_step is None:
            return
        text = f"the loss was NaN or infinite at step {run.nonfinite_step}"
        if not self._fail:
            logging.warning("%s; training goes on.", text)
            return
        raise NanLossDuringTrainingError(
            f"{text}. No checkpoint was saved after it. Lower the learning rate, clip "
            "the gradient (TrainOp(..., clip_norm=1.0)), or go on regardless with "
            "RunConfig(on_nan='warn')."
        )


class LoggingHook(Hook):
    """One line a window; in a terminal or a notebook one line that moves on."""

    only_watches = True

    def __init__(self, every_steps: int = 100) -> None:
        """
        Args:
          every_steps: steps a line; None or 0: only the last one.

        Raises:
          ValueError: it is no such number.
        """
        check_every("LoggingHook.every_steps", every_steps)
        self.every_steps = every_steps
        self._logged_at = 0
        self._bar: progress.Bar | None = None

    def begin(self, run: Run) -> None:
        self._logged_at = run.step
        if run.shows_progress and progress.is_seen():
            self._bar = progress.Bar("train", step=run.step, last_step=run.max_step)

    def after_loop(self, run: Run) -> None:
        if self._bar:
            self._bar.move(run.step)

    def after_step(self, run: Run) -> None:
        self._logged_at = run.step
        # Else nothing is fetched from the device, as nobody would see it.
        if run.leads and (self._bar is None or self._bar.is_due):
            self._show(run, run.report)

    def end(self, run: Run) -> None:
        if run.leads and run.step > self._logged_at:
            self._show(run, run.report)
        if self._bar:
            self._bar.close()
            self._bar = None

    def _show(self, run: Run, report: Report) -> None:
        if self._bar:
            self._bar.move(run.step, summary.formatted(report.values()))
            return
        parts = [log_line("train", report)]
        if run.max_step and run.step < run.max_step:
            left = progress.time_left(run.max_step - run.step, report.steps_per_sec)
            parts.append(f"ETA {left} to step {run.max_step}")
        logging.info("%s", " | ".join(parts))


class SummaryHook(Hook):
    """Writes the window's loss, metrics, scalars and steps/s for TensorBoard."""

    only_watches = True

    def __init__(self, every_steps: int = 100) -> None:
        """
        Args:
          every_steps: steps a point; None or 0: only the last one.

        Raises:
          ValueError: it is no such number.
        """
        check_every(f"{type(self).__name__}.every_steps", every_steps)
        self.every_steps = every_steps
        self._writer: summary.Writer | None = None

    def begin(self, run: Run) -> None:
        self._writer = summary.Writer(run.model_dir)

    def after_step(self, run: Run) -> None:
        if run.leads:
            self._writer.scalars(run.step, self.values(run.report))

    def end(self, run: Run) -> None:
        if run.report.num_steps:
            self.after_step(run)
        self._writer.close()

    def values(self, report: Report) -> dict[str, Any]:
        """What is written: value by tag."""
        return {**report.values(), _RATE: report.steps_per_sec}


class StepCounterHook(SummaryHook):
    """Writes steps per second alone, as `global_step/sec`."""

    def values(self, report: Report) -> dict[str, Any]:
        """The rate by its tag."""
        return {_RATE: report.steps_per_sec}


class ProfilerHook(Hook):
    """Records some steps with TensorFlow's profiler, once."""

    def __init__(
        self, first_step: int = 100, num_steps: int = 10, logdir: str | None = None
    ) -> None:
        """
        Args:
          first_step: step after which recording begins; steps before it trace and
            warm up.
          num_steps: steps to record.
          logdir: where to write; None for model_dir, where TensorBoard looks.

        Raises:
          ValueError: `first_step` or `num_steps` is no int above 0.
        """
        check_count("ProfilerHook.first_step", first_step, least=1)
        check_count("ProfilerHook.num_steps", num_steps, least=1)
        self._bounds = (first_step, first_step + num_steps)
        self._logdir = logdir
        self._recording = False

    def next_step(self, step: int) -> int | None:
        return next((bound for bound in self._bounds if bound > step), None)

    def after_step(self, run: Run) -> None:
        if run.step == self._bounds[0] and run.leads:
            tf.profiler.experimental.start(self._logdir or run.model_dir)
            self._recording = True
        elif self._recording:
            self.end(run)

    def end(self, run: Run) -> None:
        if self._recording:
            tf.profiler.experimental.stop()
            self._recording = False


def log_line(phase: str, report: Report) -> str:
    """`train | step 1200 | 83.1 steps/s | loss 0.312 | accuracy 0.91`."""
    parts = [phase, f"step {report.step}", f"{report.steps_per_sec:.1f} steps/s"]
    return " | ".join(parts + summary.formatted(report.values()))
