"""Training and evaluation: compiled loops from boundary to boundary, and the hooks."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import hook_states
from pipeline.contract.checks import is_int
from pipeline.contract.hooks import Hook, Report, Run
from pipeline.contract.user_errors import call_method
from pipeline.feed.feed import Feed, opened
from pipeline.hooks import preemption
from pipeline.loop.compiled_loop import CompiledLoop, Segment
from pipeline.loop.metrics import MetricSet
from pipeline.loop.windows import Window
from pipeline.process import progress
from pipeline.process.refusals import RefusedTypeError, RefusedValueError
from pipeline.strategy.peers import Peers

# Longest time, about, for which a signal waits; returning more often costs more.
_MOST_SECS_A_CALL = 5.0
# An evaluation begins with so many steps in a call, and doubles them while a call takes
# less than so long: it shows how far it is, and hears a signal.
_FIRST_EVAL_STEPS = 16
_MOST_EVAL_SECS = 1.0
# Longest time for which hooks that only watch are kept waiting.
_MOST_SECS_UNSEEN = 0.5


class TrainLoop:
    """Trains up to a step, calling each hook at the steps that it asked for.

    hooks begin, and get back the state that was saved of them
    while the step is below max_step and nobody asked to stop:
        run the compiled loop up to the next step at which a hook may act
        for each boundary on the way: hooks that only watch, after_step
        hooks after_loop; those that are due after_step; hooks after_hooks
    hooks end
    """

    def __init__(
        self,
        compiled: CompiledLoop,
        metrics: MetricSet,
        *,
        steps_per_loop: int,
        peers: Peers | None = None,
    ) -> None:
        """
        Args:
          compiled: the loop over train steps.
          metrics: of the mode TRAIN.
          steps_per_loop: most steps in one call.
          peers: the processes that train in step; None for this one alone.
        """
        self._peers = peers or Peers(tf.distribute.get_strategy())
        self._compiled = compiled
        self._metrics = metrics
        self._steps_per_loop = steps_per_loop
        self._steps_per_sec = 0.0
        self._hooks: Sequence[Hook] = ()
        self._windows: dict[Hook, Window] = {}

    def __call__(
        self,
        run: Run,
        iterator: Any,
        hooks: Sequence[Hook],
        *,
        next_pass: Callable[[], Any] | None = None,
        saved: Mapping[str, Any] | None = None,
    ) -> bool:
        """Trains.

        Args:
          run: at the step to start from; its `step` goes along.
          iterator: over the training input.
          hooks: in the order in which they are called.
          next_pass: called where the input ends, for an iterator to go on with; None,
            or its answer None, ends the run there.
          saved: what `state` gave in the run that this one goes on with, or None.

        Returns:
          Whether the input ended first.
        """
        self._begin(run, hooks, saved)
        ended = False
        while not (ended or _reached(run)):
            boundaries = self._agreed(run, self._next_boundaries(run, hooks))
            if not boundaries:
                break
            segments = self._compiled(iterator, run.step, boundaries)
            *passed, last = segments
            for segment in passed:
                self._call(self._due(run, segment, hooks), run)
            due = self._due(run, last, hooks)
            bad = [segment.nonfinite_step for segment in segments]
            run.nonfinite_step = next((step for step in bad if step is not None), None)
            for hook in hooks:
                call_method("hook", hook, "after_loop", run)
            self._call(due, run)
            for hook in hooks:
                call_method("hook", hook, "after_hooks", run)
            ended = last.ended
            if ended and next_pass is not None:
                following = next_pass()
                if following is not None:
                    iterator, ended = following, False
        run.finished = True
        for hook in hooks:
            with self._windowed(run, hook):
                call_method("hook", hook, "end", run)
        reasons = [*run.stop_reasons, *(["the input ended"] if ended else [])]
        if run.leads:
            words = ["train", f"ended at step {run.step}", *reasons]
            logging.info("%s", " | ".join(words))
        return ended

    def state(self, run: Run) -> dict[str, Any]:
        """What hooks and their open windows hold now, see `hook_states`.

        Args:
          run: that is under way. At its end all windows were reported, unless it was
            broken off, and is to go on with them.
        """
        reported = run.finished and not preemption.is_stopped(run)
        windows: list[Window] = []
        held: dict[str, dict[str, Any]] = {}
        for name, hook in hook_states.named(self._hooks).items():
            state, window = call_method("hook", hook, "state"), self._windows[hook]
            if state is not None:
                held.setdefault(name, {})["state"] = state
            if window.num_steps and not reported:
                # One that several hooks share is saved once.
                windows += [] if window in windows else [window]
                held.setdefault(name, {})["window"] = windows.index(window)
        return {"hooks": held, "windows": [window.state() for window in windows]}

    def _begin(
        self, run: Run, hooks: Sequence[Hook], saved: Mapping[str, Any] | None
    ) -> None:
        """Begins with all hooks, and gives back to each what was saved of it."""
        saved = saved or {"hooks": {}, "windows": []}
        self._hooks, fresh = hooks, Window(self._metrics)
        windows = [Window(self._metrics) for _ in saved["windows"]]
        held = [w.restore(s) for w, s in zip(windows, saved["windows"], strict=True)]
        left = dict(saved["hooks"])
        self._windows = dict.fromkeys(hooks, fresh)
        for name, hook in hook_states.named(hooks).items():
            with self._windowed(run, hook):
                call_method("hook", hook, "begin", run)
            mine = left.pop(name, {})
            if "window" in mine and held[mine["window"]]:
                self._windows[hook] = windows[mine["window"]]
            if "state" in mine:
                call_method("hook", hook, "restore", run, mine["state"])
        lost = [name for name, each in left.items() if "state" in each]
        if lost and run.leads:
            text = "train | the checkpoint holds the state of %s, which is no hook now."
            logging.info(text, ", ".join(lost))

    def _next_boundaries(self, run: Run, hooks: Sequence[Hook]) -> list[int]:
        """Steps that hooks watch, up to the first at which one may act.

        Where steps are slow, up to the first of all, so that no log comes late.
        """
        acting = [_asked(hook, run.step) for hook in hooks if not hook.only_watches]
        acting += [run.max_step, run.step + self._steps_per_loop]
        if self._steps_per_sec:
            acting.append(run.step + 1 + int(self._steps_per_sec * _MOST_SECS_A_CALL))
        last = min(step for step in acting if step is not None)
        unseen = int(self._steps_per_sec * _MOST_SECS_UNSEEN)
        watched = {
            step
            for hook in hooks
            if hook.only_watches
            for step in _steps_of(hook, run.step, last)
        }
        boundaries = sorted({*watched, last})
        return [b for b in boundaries if b <= run.step + unseen] or boundaries[:1]

    def _agreed(self, run: Run, boundaries: list[int]) -> list[int]:
        """Everybody's boundaries up to the first that is anybody's last.

        Hooks, clocks and speed differ between processes. Empty where one is to stop.
        """
        given = self._peers.gather([] if run.stop_reasons else boundaries)
        if not all(given):
            if not run.stop_reasons:
                run.request_stop("another process asked for it")
            return []
        last = min(theirs[-1] for theirs in given)
        return sorted({step for theirs in given for step in theirs if step <= last})

    def _due(self, run: Run, segment: Segment, hooks: Sequence[Hook]) -> list[Hook]:
        """Moves on to the segment's end; the hooks that asked for that step."""
        for window in set(self._windows.values()):
            window.add(segment)
        due = [hook for hook in hooks if _asked(hook, run.step) == segment.step]
        run.step = segment.step
        if segment.seconds > 0:
            self._steps_per_sec = segment.num_steps / segment.seconds
        return due

    def _call(self, due: Sequence[Hook], run: Run) -> None:
        """Calls hooks, and starts a new window, one for all of them."""
        window = Window(self._metrics)
        for hook in due:
            with self._windowed(run, hook):
                call_method("hook", hook, "after_step", run)
            # At once: the last one saves what the others hold.
            self._windows[hook] = window

    @contextlib.contextmanager
    def _windowed(self, run: Run, hook: Hook) -> Iterator[None]:
        run.read_report = self._windows[hook].report
        yield


def _reached(run: Run) -> bool:
    """Whether the run is at its last step, or was beyond it to begin with."""
    return run.max_step is not None and run.step >= run.max_step


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


def evaluate(
    compiled: CompiledLoop,
    metrics: MetricSet,
    feed: Feed,
    *,
    run: Run,
    hooks: Sequence[Hook],
    steps: int | None,
    steps_per_loop: int,
) -> Report:
    """Runs the evaluation loop over the input.

    Args:
      compiled: the loop over eval steps.
      metrics: of the mode EVAL.
      feed: the input.
      run: what hooks see.
      hooks: `begin`, `after_loop` and `end` are called.
      steps: most steps; None for all of the input.
      steps_per_loop: most steps in one call.

    Returns:
      What it came to, at the global step of `run`.
    """
    window = Window(metrics)

    def report() -> Report:
        return dataclasses.replace(window.report(), step=run.step)

    run.read_report = report
    for hook in hooks:
        call_method("hook", hook, "begin", run)
    done, ended, size = 0, False, min(_FIRST_EVAL_STEPS, steps_per_loop)
    total = _num_steps(feed) if steps is None else steps
    shown = progress.bar("eval", last_step=total, shown=run.shows_progress)
    with opened(feed) as box, shown as bar:
        while not (ended or done == steps or run.agree(bool(run.stop_reasons))):
            stop = done + size if steps is None else min(done + size, steps)
            (segment,) = compiled(box[0], done, [stop])
            window.add(segment)
            done, ended = segment.step, segment.ended
            if bar:
                bar.move(done)
            # All processes take as many steps a call.
            if size < steps_per_loop and not run.agree(
                segment.seconds > _MOST_EVAL_SECS
            ):
                size = min(2 * size, steps_per_loop)
            for hook in hooks:
                call_method("hook", hook, "after_loop", run)
    for hook in hooks:
        call_method("hook", hook, "end", run)
    return report()


def _num_steps(feed: Feed) -> int | None:
    """Steps in one pass over the input, None where nobody knows before its end."""
    if feed.plan.num_steps is not None or not isinstance(feed, Feed):
        return feed.plan.num_steps
    length = int(feed.dataset.cardinality())
    return -(-length // feed.plan.nexts_per_step) if length >= 0 else None
