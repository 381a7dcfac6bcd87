"""The hooks of a training: where each wants to stop, and what it is told there.

The loop asks `Watchers` for the next stops, runs to the last of them in one call, and
hands back a `Segment` for each. `Window` adds segments up to the `Report` of a hook.
"""

import collections
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.contract.hooks import Hook, Report, Run
from pipeline.contract.summaries import Seen
from pipeline.loop.metrics import MetricSet, States, as_arrays
from pipeline.loop.stretch import Segment
from pipeline.mistakes.checks import is_int
from pipeline.mistakes.user_errors import call_method
from pipeline.process.durations import Pace
from pipeline.process.refusals import RefusedTypeError, RefusedValueError

# Segments that a window keeps before it adds them up: adding many at once is cheaper.
_MOST_PENDING = 64
# About the longest time of one call of the loop, and so of a signal's wait; returning
# more often makes steps slower.
_MOST_SECS_A_CALL = 5.0
# About the longest time for which a hook that only watches waits for its report.
_MOST_SECS_UNSEEN = 0.5
# Steps of a call that are added up in float32, and most stops of one call, whose
# results wait in memory for its end.
_MOST_STEPS_SUMMED = 1000
_MOST_STOPS = 1000
# Key, among the hooks, of the window since the last checkpoint.
_SAVING = object()


class Watchers:
    """The hooks of one run, called in their order, each with a window of its own.

    A window holds what happened since the hook's last call. Hooks that are called at
    the same step share their next window, so that it is added up once.

    Attributes:
      hooks: hooks in the order in which they are called.
    """

    def __init__(
        self, hooks: Sequence[Hook], metrics: MetricSet, *, steps_per_loop: int | str
    ) -> None:
        """Takes the hooks; their windows begin in `begin`.

        Args:
          hooks: hooks in the order in which they are called.
          metrics: metrics of the mode TRAIN.
          steps_per_loop: most steps in one call of the loop, or about its time, "30s".
        """
        self.hooks = hooks
        self._metrics = metrics
        self._pace = Pace(steps_per_loop, most_secs=_MOST_SECS_A_CALL)
        self._windows: dict[Any, Window] = {}

    def begin(self, run: Run, saved: Mapping[str, Any]) -> None:
        """Calls `begin` of all hooks; gives back to each its saved state and window.

        Args:
          run: run at its first step.
          saved: result of `state` that the checkpoint keeps, see `hook_states`.
        """
        fresh = Window(self._metrics)
        windows = [Window(self._metrics) for _ in saved["windows"]]
        held = [w.restore(s) for w, s in zip(windows, saved["windows"], strict=True)]
        self._windows = dict.fromkeys([*self.hooks, _SAVING], fresh)
        for name, hook in zip(names_of(self.hooks), self.hooks, strict=True):
            self._call(hook, "begin", run)
            mine = saved["hooks"].get(name, {})
            if "window" in mine and held[mine["window"]]:
                self._windows[hook] = windows[mine["window"]]
            if "state" in mine:
                call_method("hook", hook, "restore", run, mine["state"])

    def stops(self, run: Run, *others: int | None) -> list[int]:
        """Returns the steps that hooks watch, up to the first at which one may act.

        A hook that only watches is told of its steps afterwards, so the loop need not
        return for it. Where steps are slow it returns all the same, so that no log
        comes late.

        Args:
          run: run at the step to go on from.
          *others: further steps at which the loop has to return; None for none.

        Returns:
          Global steps in order; the loop returns at the last one.
        """
        acting = [_asked(hook, run.step) for hook in self.hooks if _acts(hook)]
        acting += [*others, run.max_step, run.step + self._pace.most()]
        last = min(step for step in acting if step is not None)
        watched = {
            step
            for hook in self.hooks
            if not _acts(hook)
            for step in _steps_of(hook, run.step, last)
        }
        # Sums over more steps would be less exact, in float32.
        summed = range(run.step + _MOST_STEPS_SUMMED, last, _MOST_STEPS_SUMMED)
        stops = sorted({*watched, *summed, last})[:_MOST_STOPS]
        if self._pace.timed:  # Whoever gives a time wants to hear of steps that often.
            return stops
        unseen = self._pace.steps_in(_MOST_SECS_UNSEEN)
        return [step for step in stops if step <= run.step + unseen] or stops[:1]

    def after_steps(self, run: Run, segments: Sequence[Segment]) -> None:
        """Calls `after_loop` and `after_step`, at the stops that the loop went through.

        Args:
          run: run, which moves on to the last stop.
          segments: segments that the loop returned, one for each stop.
        """
        steps = sum(segment.num_steps for segment in segments)
        self._pace.measured(steps, sum(segment.seconds for segment in segments))
        *passed, last = segments
        for segment in passed:
            self._report_to(self._due(run, segment), run)
        due = self._due(run, last)
        # `after_loop` comes first at the last stop: a hook may raise there, on a loss
        # that is no number, before others report it.
        bad = [segment.nonfinite_step for segment in segments]
        run.nonfinite_step = next((step for step in bad if step is not None), None)
        each = [s.losses for s in segments if s.losses is not None]
        run.losses = np.concatenate([np.zeros([0]), *each])
        for hook in self.hooks:
            call_method("hook", hook, "after_loop", run)
        if run.going_back is None:
            self._report_to(due, run)

    def after_evaluation(
        self, run: Run, name: str | None, metrics: Mapping[str, Any]
    ) -> None:
        """Calls `after_evaluation`.

        Args:
          run: run at the step at which the evaluation becomes known.
          name: name of the evaluation, or None.
          metrics: result of the evaluation.
        """
        for hook in self.hooks:
            self._call(hook, "after_evaluation", run, name, metrics)

    def after_hooks(self, run: Run) -> None:
        """Calls `after_hooks`."""
        for hook in self.hooks:
            call_method("hook", hook, "after_hooks", run)

    def end(self, run: Run) -> None:
        """Calls `end`."""
        for hook in self.hooks:
            self._call(hook, "end", run)

    def before_save(self, run: Run) -> None:
        """Sets `run.report` to what happened since the last checkpoint."""
        run.read_report = self._windows[_SAVING].report

    def after_save(self) -> None:
        """Begins a new window for the next checkpoint."""
        self._windows[_SAVING] = Window(self._metrics)

    def state(self, *, reported: bool) -> dict[str, Any]:
        """Returns the states of hooks and of their open windows, see `hook_states`.

        Args:
          reported: whether all windows were reported for good, and are left out.
        """
        windows: list[Window] = []
        held: dict[str, dict[str, Any]] = {}
        for name, hook in zip(names_of(self.hooks), self.hooks, strict=True):
            state, window = call_method("hook", hook, "state"), self._windows[hook]
            if state is not None:
                held.setdefault(name, {})["state"] = state
            if window.num_steps and not reported:
                # A window that several hooks share is saved once.
                windows += [] if window in windows else [window]
                held.setdefault(name, {})["window"] = windows.index(window)
        return {"hooks": held, "windows": [window.state() for window in windows]}

    def _due(self, run: Run, segment: Segment) -> list[Hook]:
        """Moves the run on to the segment's end; returns the hooks to call there."""
        for window in set(self._windows.values()):
            window.add(segment)
        due = [hook for hook in self.hooks if _asked(hook, run.step) == segment.step]
        run.step = segment.step
        return due

    def _report_to(self, due: Sequence[Hook], run: Run) -> None:
        """Calls `after_step` of hooks, and begins one new window for all of them."""
        window = Window(self._metrics)
        for hook in due:
            self._call(hook, "after_step", run)
            # At once: what was reported is not saved as part of an open window.
            self._windows[hook] = window

    def _call(self, hook: Hook, method: str, run: Run, *args: Any) -> None:
        run.read_report = self._windows[hook].report
        call_method("hook", hook, method, run, *args)


def names_of(hooks: Sequence[Hook], *, others: Sequence[str] = ()) -> list[str]:
    """Returns a name for each hook: its class's, for a second one `LoggingHook_1`.

    Args:
      hooks: hooks in their order, which tells hooks of one class apart.
      others: names to add after the hooks', numbered in the same way.
    """
    taken: collections.Counter[str] = collections.Counter()
    result = []
    for name in [*(type(hook).__name__ for hook in hooks), *others]:
        result.append(f"{name}_{taken[name]}" if taken[name] else name)
        taken[name] += 1
    return result


def _acts(hook: Hook) -> bool:
    """Returns whether a hook may change the run, so that the loop has to return."""
    return not hook.only_watches


def _asked(hook: Hook, step: int) -> int | None:
    """Returns the step that a hook wants to see next; None for none.

    Raises:
      TypeError: the hook's answer is no int.
      ValueError: the step is not ahead, so that the loop would never come to it.
    """
    answer = call_method("hook", hook, "next_step", step)
    if answer is None:
        return None
    said = f"{type(hook).__name__}.next_step({step}) is {answer!r}"
    if not is_int(answer):
        raise RefusedTypeError(f"{said}: return an int, {step + 1} or more, or None.")
    if answer <= step:
        raise RefusedValueError(
            f"{said}, which is not ahead of step {step}: return {step + 1} or more, "
            "or None to be called no more."
        )
    return int(answer)


def _steps_of(hook: Hook, step: int, last: int) -> Iterator[int]:
    """Yields the steps after `step` and before `last` that `hook` wants to see."""
    while (next_step := _asked(hook, step)) is not None and next_step < last:
        yield next_step
        step = next_step


class Window:
    """The sums over the segments since a stop, and their report."""

    def __init__(self, metrics: MetricSet) -> None:
        """Begins with nothing.

        Args:
          metrics: metrics of the mode.
        """
        self._metrics = metrics
        self._step = 0
        self._num_steps = 0
        self._seconds = 0.0
        self._loss = 0.0
        self._weight = 0.0
        # NaN where a checkpoint was saved before these were counted.
        self._examples = 0.0
        self._waited = 0.0
        self._states: list[States] = []
        self._scalars: dict[str, Any] = {}
        self._summaries: dict[str, Seen] = {}
        self._tensors: dict[str, np.ndarray] = {}
        self._pending: list[Segment] = []
        self._report: Report | None = None

    def add(self, segment: Segment) -> None:
        """Adds a segment to the window.

        Args:
          segment: segment that the loop returned for a stop.
        """
        self._report = None
        self._seconds += segment.seconds
        self._waited += segment.waited
        self._step = segment.step
        self._num_steps += segment.num_steps
        self._summaries = segment.summaries or self._summaries
        if segment.num_steps:  # A segment without steps only found the input's end.
            self._scalars = segment.totals.scalars
            self._tensors = segment.tensors
            self._pending.append(segment)
        if len(self._pending) >= _MOST_PENDING:
            self._fold()

    def report(self) -> Report:
        """Returns the report of all segments; computed once."""
        if self._report is None:
            self._report = self._computed()
        return self._report

    @property
    def num_steps(self) -> int:
        """The number of steps in the window."""
        return self._num_steps

    def state(self) -> dict[str, Any]:
        """Returns the sums as JSON."""
        self._fold()
        return {
            "step": self._step,
            "num_steps": self._num_steps,
            "seconds": self._seconds,
            "loss": self._loss,
            "weight": self._weight,
            "examples": _known(self._examples),
            "waited": _known(self._waited),
            "metrics": {
                name: [value.tolist() for value in state]
                for name, state in self._totals().items()
            },
            "scalars": {name: float(value) for name, value in self._scalars.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Goes on with the sums of another window, unless its metrics were others.

        Args:
          state: result of the other window's `state`.

        Returns:
          Whether the window goes on with them.
        """
        metrics = {
            name: [np.asarray(value) for value in values]
            for name, values in state["metrics"].items()
        }
        if not self._metrics.holds(metrics):
            return False
        self._step, self._num_steps = state["step"], state["num_steps"]
        self._seconds, self._scalars = state["seconds"], dict(state["scalars"])
        self._loss, self._weight = state["loss"], state["weight"]
        self._examples = _or_unknown(state.get("examples"))
        self._waited = _or_unknown(state.get("waited"))
        self._states = [metrics]
        return True

    def _totals(self) -> States:
        return self._states[0] if self._states else {}

    def _computed(self) -> Report:
        # Most windows have one segment, and its metrics are computed already.
        if len(self._pending) == 1 and not self._states:
            totals = self._pending[0].totals
            loss, weight = float(totals.loss), float(totals.weight)
            examples = float(totals.examples)
            metrics = as_arrays(self._pending[0].metrics)
        else:
            self._fold()
            loss, weight = self._loss, self._weight
            examples = self._examples
            metrics = self._metrics.results(self._states)
        return Report(
            step=self._step,
            num_steps=self._num_steps,
            seconds=self._seconds,
            loss=loss / weight if weight else 0.0,
            metrics=metrics,
            scalars={name: float(value) for name, value in self._scalars.items()},
            num_examples=None if math.isnan(examples) else round(examples),
            input_seconds=_known(self._waited),
            summaries=self._summaries,
            tensors=self._tensors,
        )

    def _fold(self) -> None:
        """Adds the pending segments to the sums."""
        totals = [segment.totals for segment in self._pending]
        self._loss += sum(float(t.loss) for t in totals)
        self._weight += sum(float(t.weight) for t in totals)
        self._examples += sum(float(t.examples) for t in totals)
        states = [*self._states, *(t.metrics for t in totals)]
        self._states = [self._metrics.total(states)] if states else []
        self._pending = []


def _known(number: float) -> float | None:
    """Returns a number; None for NaN, which stands for one that nobody knows."""
    return None if math.isnan(number) else number


def _or_unknown(number: float | None) -> float:
    """Returns a number; NaN for None."""
    return math.nan if number is None else number
