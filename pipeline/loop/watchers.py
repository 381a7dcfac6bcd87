"""The hooks of a training, where each wants to stop, and what happened in between."""

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.contract.checks import is_int
from pipeline.contract.hooks import Hook, Report, Run
from pipeline.contract.user_errors import call_method
from pipeline.loop.compiled_loop import Segment
from pipeline.loop.metrics import MetricSet, States, as_arrays
from pipeline.process.refusals import RefusedTypeError, RefusedValueError

# Segments that a window keeps apart; adding up many at once is cheaper.
_MOST_PENDING = 64
# Longest time, about, for which a signal waits; returning more often costs more.
_MOST_SECS_A_CALL = 5.0
# Longest time for which hooks that only watch are kept waiting.
_MOST_SECS_UNSEEN = 0.5
# Stands among the hooks for what is told of saved checkpoints.
_SAVING = object()


class Watchers:
    """The hooks of one run, called in their order, each with a window of its own.

    A window holds what happened since the hook's last call. Hooks that are called at
    the same step begin the same new window.

    Attributes:
      hooks: in the order in which they are called.
    """

    def __init__(
        self, hooks: Sequence[Hook], metrics: MetricSet, *, steps_per_loop: int
    ) -> None:
        """
        Args:
          hooks: in the order in which they are called.
          metrics: of the mode TRAIN.
          steps_per_loop: most steps from one stop to the next.
        """
        self.hooks = hooks
        self._metrics = metrics
        self._steps_per_loop = steps_per_loop
        self._steps_per_sec = 0.0
        self._windows: dict[Any, Window] = {}

    def begin(self, run: Run, saved: Mapping[str, Any]) -> None:
        """Begins with all hooks, and gives back to each what was saved of it.

        Args:
          run: at its first step.
          saved: what `state` gave in the run that this one goes on with.
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
        """Steps that hooks watch, up to the first at which one may act.

        Where steps are slow, up to the first of all, so that no log comes late.

        Args:
          run: at the step to go on from.
          *others: steps at which the loop has to return besides, or None.
        """
        acting = [_asked(hook, run.step) for hook in self.hooks if _acts(hook)]
        acting += [*others, run.max_step, run.step + self._steps_per_loop]
        if self._steps_per_sec:
            acting.append(run.step + 1 + int(self._steps_per_sec * _MOST_SECS_A_CALL))
        last = min(step for step in acting if step is not None)
        unseen = int(self._steps_per_sec * _MOST_SECS_UNSEEN)
        watched = {
            step
            for hook in self.hooks
            if not _acts(hook)
            for step in _steps_of(hook, run.step, last)
        }
        stops = sorted({*watched, last})
        return [step for step in stops if step <= run.step + unseen] or stops[:1]

    def after_steps(self, run: Run, segments: Sequence[Segment]) -> None:
        """Calls `after_loop` and `after_step`, at the stops that the loop went through.

        Args:
          run: moves on to the last of them.
          segments: what the loop did up to each.
        """
        *passed, last = segments
        for segment in passed:
            self._report_to(self._due(run, segment), run)
        due = self._due(run, last)
        bad = [segment.nonfinite_step for segment in segments]
        run.nonfinite_step = next((step for step in bad if step is not None), None)
        for hook in self.hooks:
            call_method("hook", hook, "after_loop", run)
        self._report_to(due, run)

    def after_hooks(self, run: Run) -> None:
        """Calls `after_hooks`."""
        for hook in self.hooks:
            call_method("hook", hook, "after_hooks", run)

    def end(self, run: Run) -> None:
        """Calls `end`."""
        for hook in self.hooks:
            self._call(hook, "end", run)

    def before_save(self, run: Run) -> None:
        """Lets `run.report` be what happened since the last checkpoint."""
        run.read_report = self._windows[_SAVING].report

    def after_save(self) -> None:
        """Begins a new window for the next checkpoint."""
        self._windows[_SAVING] = Window(self._metrics)

    def state(self, *, reported: bool) -> dict[str, Any]:
        """Returns what hooks and their open windows hold now, see `hook_states`.

        Args:
          reported: whether all windows were reported for good.
        """
        windows: list[Window] = []
        held: dict[str, dict[str, Any]] = {}
        for name, hook in zip(names_of(self.hooks), self.hooks, strict=True):
            state, window = call_method("hook", hook, "state"), self._windows[hook]
            if state is not None:
                held.setdefault(name, {})["state"] = state
            if window.num_steps and not reported:
                # One that several hooks share is saved once.
                windows += [] if window in windows else [window]
                held.setdefault(name, {})["window"] = windows.index(window)
        return {"hooks": held, "windows": [window.state() for window in windows]}

    def _due(self, run: Run, segment: Segment) -> list[Hook]:
        """Moves on to the segment's end; the hooks that asked for that step."""
        for window in set(self._windows.values()):
            window.add(segment)
        due = [hook for hook in self.hooks if _asked(hook, run.step) == segment.step]
        run.step = segment.step
        if segment.seconds > 0:
            self._steps_per_sec = segment.num_steps / segment.seconds
        return due

    def _report_to(self, due: Sequence[Hook], run: Run) -> None:
        """Calls `after_step`, and begins a new window, one for all of them."""
        window = Window(self._metrics)
        for hook in due:
            self._call(hook, "after_step", run)
            # At once: what is saved next holds what is in no report.
            self._windows[hook] = window

    def _call(self, hook: Hook, method: str, run: Run) -> None:
        run.read_report = self._windows[hook].report
        call_method("hook", hook, method, run)


def names_of(hooks: Sequence[Hook], *, others: Sequence[str] = ()) -> list[str]:
    """Returns a name for each hook: its class', for a second one `LoggingHook_1`.

    Args:
      hooks: in their order, by which hooks of one class are told apart.
      others: names of what comes after the hooks, and gets a name in the same way.
    """
    taken: collections.Counter[str] = collections.Counter()
    result = []
    for name in [*(type(hook).__name__ for hook in hooks), *others]:
        result.append(f"{name}_{taken[name]}" if taken[name] else name)
        taken[name] += 1
    return result


def _acts(hook: Hook) -> bool:
    return not hook.only_watches


def _asked(hook: Hook, step: int) -> int | None:
    """The step that a hook wants to see next.

    Raises:
      TypeError: the hook answers with no int.
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
    """The steps after `step` that `hook` wants to see, before `last`."""
    while (next_step := _asked(hook, step)) is not None and next_step < last:
        yield next_step
        step = next_step


class Window:
    """Sums over the segments since a boundary, and what they come to."""

    def __init__(self, metrics: MetricSet) -> None:
        """
        Args:
          metrics: of the mode.
        """
        self._metrics = metrics
        self._step = 0
        self._num_steps = 0
        self._seconds = 0.0
        self._loss = 0.0
        self._weight = 0.0
        self._states: list[States] = []
        self._scalars: dict[str, Any] = {}
        self._pending: list[Segment] = []
        self._report: Report | None = None

    def add(self, segment: Segment) -> None:
        """Adds what the loop did up to a boundary."""
        self._report = None
        self._seconds += segment.seconds
        self._step = segment.step
        self._num_steps += segment.num_steps
        if segment.num_steps:  # Else it only found the input's end.
            self._scalars = segment.totals.scalars
            self._pending.append(segment)
        if len(self._pending) >= _MOST_PENDING:
            self._fold()

    def report(self) -> Report:
        """The window's values; computed once."""
        if self._report is None:
            self._report = self._computed()
        return self._report

    @property
    def num_steps(self) -> int:
        """Steps in it."""
        return self._num_steps

    def state(self) -> dict[str, Any]:
        """What it holds, as JSON."""
        self._fold()
        return {
            "step": self._step,
            "num_steps": self._num_steps,
            "seconds": self._seconds,
            "loss": self._loss,
            "weight": self._weight,
            "metrics": {
                name: [value.tolist() for value in state]
                for name, state in self._totals().items()
            },
            "scalars": {name: float(value) for name, value in self._scalars.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Goes on with what another one held; not if its metrics were others.

        Args:
          state: what `state` gave.

        Returns:
          Whether it does.
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
        self._states = [metrics]
        return True

    def _totals(self) -> States:
        return self._states[0] if self._states else {}

    def _computed(self) -> Report:
        if len(self._pending) == 1 and not self._states:
            totals = self._pending[0].totals
            loss, weight = float(totals.loss), float(totals.weight)
            metrics = as_arrays(self._pending[0].metrics)
        else:
            self._fold()
            loss, weight = self._loss, self._weight
            metrics = self._metrics.results(self._states)
        return Report(
            step=self._step,
            num_steps=self._num_steps,
            seconds=self._seconds,
            loss=loss / weight if weight else 0.0,
            metrics=metrics,
            scalars={name: float(value) for name, value in self._scalars.items()},
        )

    def _fold(self) -> None:
        totals = [segment.totals for segment in self._pending]
        self._loss += sum(float(t.loss) for t in totals)
        self._weight += sum(float(t.weight) for t in totals)
        states = [*self._states, *(t.metrics for t in totals)]
        self._states = [self._metrics.total(states)] if states else []
        self._pending = []
