"""The stock hooks: a loss of NaN, logs, summaries, a profile.

The driver adds some of them by the fields of RunConfig; users hand in the others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from pipeline.contract.hooks import Hook, Report, Run
from pipeline.contract.summaries import Seen
from pipeline.hooks import summary
from pipeline.mistakes.checks import check_count, check_every
from pipeline.model_dir import paths
from pipeline.process import progress
from pipeline.process.refusals import Refusal, RefusedTypeError, RefusedValueError

_RATE = "global_step/sec"


class NanLossDuringTrainingError(Refusal, RuntimeError):
    """A loss that became NaN or infinite."""


class NanHook(Hook):
    """Ends the run at a loss of NaN or Inf, or warns of it, or leaves its batch out.

    The compiled loop looks at the loss of each step, so that the message names the
    step itself.
    """

    def __init__(self, fail_on_nan_loss: bool = True, on: str | None = None) -> None:
        """Takes the choice between an error, a warning and another batch.

        Args:
          fail_on_nan_loss: whether to raise an error; False logs a warning, and
            training goes on.
          on: `RunConfig.on_nan`, in place of `fail_on_nan_loss`.
        """
        self._on = on or ("stop" if fail_on_nan_loss else "warn")
        self.leaves_out = self._on in ("restore", "record")

    def after_loop(self, run: Run) -> None:
        """Acts where a loss was not finite.

        Raises:
          NanLossDuringTrainingError: a loss was not finite, and that stops the run.
        """
        if run.nonfinite_step is None:
            return
        text = f"the loss was NaN or infinite at step {run.nonfinite_step}"
        if self._on == "warn":
            logging.warning("%s; training goes on.", text)
            return
        if self._on != "stop":
            run.leave_out(run.nonfinite_step, text, ends=self._on == "record")
            return
        raise NanLossDuringTrainingError(
            f"{text}. No checkpoint was saved after it. Lower the learning rate, clip "
            "the gradient (TrainOp(..., clip_norm=1.0)), leave out such batches by "
            "RunConfig(on_nan='restore'), or go on regardless with on_nan='warn'."
        )


class LoggingHook(Hook):
    """Logs a line for each window; in a terminal or a notebook, moves one line on."""

    only_watches = True

    def __init__(self, every_steps: int = 100) -> None:
        """Takes the length of the windows.

        Args:
          every_steps: steps between two lines; None or 0 logs the end of the run only.

        Raises:
          ValueError: `every_steps` is neither None nor an int of at least 0.
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
        # To read the report is to wait for the device: not where nobody would see it.
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
            self._bar.move(run.step, [*_wait(report), *formatted(report.values())])
            return
        parts = [log_line("train", report)]
        if run.max_step and run.step < run.max_step:
            left = progress.time_left(run.max_step - run.step, report.steps_per_sec)
            parts.append(f"ETA {left} to step {run.max_step}")
        logging.info("%s", " | ".join(parts))


class SummaryHook(Hook):
    """Writes loss, metrics, scalars and speed of each window for TensorBoard.

    Pictures and other summaries are those of the window's last summary step.
    """

    only_watches = True

    def __init__(self, every_steps: int = 100) -> None:
        """Takes the length of the windows.

        Args:
          every_steps: steps between two points; None or 0 writes the end of the run
            only.

        Raises:
          ValueError: `every_steps` is neither None nor an int of at least 0.
        """
        check_every(f"{type(self).__name__}.every_steps", every_steps)
        self.every_steps = every_steps
        self._writer: summary.Writer | None = None

    def begin(self, run: Run) -> None:
        if self._writer is not None:
            self._writer.close()  # The training goes back.
        self._writer = summary.Writer(run.model_dir)

    def after_step(self, run: Run) -> None:
        if run.leads:
            report = run.report
            self._writer.scalars(run.step, self.values(report))
            self._writer.summaries(run.step, self.summaries(report))

    def end(self, run: Run) -> None:
        if run.report.num_steps:
            self.after_step(run)
        self._writer.close()

    def values(self, report: Report) -> dict[str, Any]:
        """Returns the values to write, by tag."""
        return measured(report)

    def summaries(self, report: Report) -> Mapping[str, Seen]:
        """Returns the pictures and other summaries to write, by tag."""
        return report.summaries


class StepCounterHook(SummaryHook):
    """Writes steps per second alone, as `global_step/sec`."""

    def values(self, report: Report) -> dict[str, Any]:
        """Returns the steps per second, by its tag."""
        return {_RATE: report.steps_per_sec}

    def summaries(self, report: Report) -> Mapping[str, Seen]:
        """Returns none."""
        del report
        return {}


class TensorHook(Hook):
    """Logs tensors that model_fn hands out, `EstimatorSpec(tensors={"ids": ids})`."""

    only_watches = True

    def __init__(
        self,
        every_steps: int | None = 100,
        tensors: Sequence[str] | None = None,
        *,
        formatter: Callable[[Mapping[str, np.ndarray]], str] | None = None,
        at_end: bool = False,
    ) -> None:
        """Takes what is logged, and when.

        Args:
          every_steps: steps between two lines; None or 0 logs none but at the end.
          tensors: names of the tensors; None for all.
          formatter: takes NumPy arrays by name, strings as bytes, and returns the text;
            None writes `ids [3 1 4]`, of large ones the first and the last values.
          at_end: whether the last step is logged, too.

        Raises:
          TypeError: `tensors` are no names, or `formatter` cannot be called.
          ValueError: `every_steps` is neither None nor an int of at least 0.
        """
        check_every("TensorHook.every_steps", every_steps)
        wrong = isinstance(tensors, str) or not all(
            isinstance(name, str) for name in tensors or ()
        )
        if wrong:
            raise RefusedTypeError(
                f"TensorHook.tensors is {tensors!r}: write tensors=['ids'], names of "
                "EstimatorSpec.tensors."
            )
        if formatter is not None and not callable(formatter):
            raise RefusedTypeError(
                f"TensorHook.formatter is {formatter!r}: write formatter=str, or "
                "another function of the tensors by name."
            )
        self.every_steps = every_steps
        self.wants_tensors = True if tensors is None else tuple(tensors)
        self._formatter, self._at_end = formatter, at_end
        self._logged_at = 0

    def begin(self, run: Run) -> None:
        self._logged_at = run.step

    def after_step(self, run: Run) -> None:
        self._logged_at = run.step
        if not run.leads:
            return
        found = run.report.tensors
        if self.wants_tensors is not True:
            found = {name: found[name] for name in self.wants_tensors if name in found}
        if found:
            text = (self._formatter or _as_text)(found)
            logging.info("train | step %d | %s", run.step, text)

    def end(self, run: Run) -> None:
        if self._at_end and run.step > self._logged_at:
            self.after_step(run)


class ProfilerHook(Hook):
    """Records some steps with TensorFlow's profiler, once."""

    def __init__(
        self, first_step: int = 100, num_steps: int = 10, logdir: str | None = None
    ) -> None:
        """Takes the steps to record.

        Args:
          first_step: global step after which recording begins. The first steps of a
            run are no good: they are traced and warm up.
          num_steps: number of steps to record.
          logdir: directory of the profile; None for model_dir, where TensorBoard
            looks.

        Raises:
          ValueError: `first_step` or `num_steps` is no int above 0.
        """
        check_count("ProfilerHook.first_step", first_step, least=1)
        check_count("ProfilerHook.num_steps", num_steps, least=1)
        self._bounds = (first_step, first_step + num_steps)
        self._logdir = paths.normal(logdir) if logdir else None
        self._recording = False

    def next_step(self, step: int) -> int | None:
        return next((bound for bound in self._bounds if bound > step), None)

    def after_step(self, run: Run) -> None:
        # A training that goes back may come here again while it records.
        if run.step == self._bounds[0] and run.leads and not self._recording:
            tf.profiler.experimental.start(self._logdir or run.model_dir)
            self._recording = True
        elif self._recording:
            self.end(run)

    def end(self, run: Run) -> None:
        if self._recording:
            tf.profiler.experimental.stop()
            self._recording = False


def wants_tensors(hooks: Sequence[Hook], declared: Sequence[str]) -> bool:
    """Returns whether a hook wants tensors of the steps.

    Args:
      hooks: hooks of a training.
      declared: names of `EstimatorSpec.tensors`.

    Raises:
      ValueError: a hook wants one that is not declared.
    """
    wanting = [hook for hook in hooks if hook.wants_tensors]
    for hook in wanting:
        names = () if hook.wants_tensors is True else hook.wants_tensors
        wrong = [name for name in names if name not in declared]
        if wrong or not declared:
            name = wrong[0] if wrong else "ids"
            raise RefusedValueError(
                f"{type(hook).__name__} wants {wrong or 'tensors'} of EstimatorSpec, "
                f"whose tensors in TRAIN are {list(declared)}: write EstimatorSpec("
                f"mode, ..., tensors={{{name!r}: tensor}})."
            )
    return bool(wanting)


def measured(report: Report) -> dict[str, Any]:
    """Returns the values of a window with its speed, by tag.

    Args:
      report: numbers of the window.
    """
    speed = {
        _RATE: report.steps_per_sec,
        "examples/sec": report.examples_per_sec,
        "input_wait": report.input_wait,
    }
    known = {name: value for name, value in speed.items() if value is not None}
    return {**report.values(), **known}


def log_line(phase: str, report: Report) -> str:
    """Returns the line of a window.

        train | step 1200 | 83.1 steps/s | 5318 examples/s | input 37 % | loss 0.312

    "input" is the share of time for which the model waited for input. Where it is high,
    the input is slow; else the model is.

    Args:
      phase: word that begins the line, such as "train".
      report: numbers of the window.
    """
    parts = [phase, f"step {report.step}", f"{report.steps_per_sec:.1f} steps/s"]
    rate = report.examples_per_sec
    if rate is not None:
        parts.append(
            f"{rate:.0f} examples/s" if rate >= 10 else f"{rate:.1f} examples/s"
        )
    return " | ".join([*parts, *_wait(report), *formatted(report.values())])


def _as_text(tensors: Mapping[str, np.ndarray]) -> str:
    """Returns `"ids [3 1 4], temperature 0.5"`."""
    some = {"precision": 6, "threshold": 100, "separator": " "}
    texts = {name: np.array2string(x, **some) for name, x in tensors.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items())


def _wait(report: Report) -> list[str]:
    """Returns `["input 37 %"]`, or nothing where it is not known."""
    share = report.input_wait
    return [] if share is None else [f"input {share:.0%}".replace("%", " %")]


def formatted(values: Mapping[str, Any]) -> list[str]:
    """Returns `["loss 0.312", "accuracy 0.91"]`; an array is shown by its mean."""
    return [
        f"{name} {float(value):.4g}"
        if np.ndim(value) == 0
        else f"{name} (mean) {float(np.mean(value)):.4g}"
        for name, value in values.items()
    ]
