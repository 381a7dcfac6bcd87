"""Many batches: compiled loops up to the next boundary, and the hooks there."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.hooks import Hook, Report, Run
from pipeline.input_fn import Feed, Plan
from pipeline.losses import Totals
from pipeline.metrics import MetricSet, States, as_arrays

# Segments whose values a window leaves on the device.
_MOST_PENDING = 64

StepFn = Callable[[Any, tf.Tensor], Totals]


@dataclasses.dataclass(frozen=True)
class Segment:
    """What one call of a compiled loop did.

    Attributes:
      step: global step afterwards.
      num_steps: steps that it ran.
      totals: over these steps, on the device.
      metrics: what the totals' metrics come to, as tensors.
      nonfinite_step: first step whose loss was NaN or infinite, or None.
      ended: whether the input has ended.
    """

    step: int
    num_steps: int
    totals: Totals
    metrics: dict[str, Any]
    nonfinite_step: int | None
    ended: bool


class CompiledLoop:
    """Runs steps from one boundary to the next in one call of a `tf.function`.

    while step < stop, the input goes on and the loss is finite:
        take one batch a replica, run the step, add up its totals
    """

    def __init__(
        self,
        plan: Plan,
        step_fn: StepFn,
        metrics: MetricSet,
        scalars: Iterable[str],
        *,
        stop_at_nonfinite: bool = False,
        at_end: Callable[[tf.Tensor], dict[str, tf.Tensor]] | None = None,
        run_eagerly: bool = False,
    ) -> None:
        """
        Args:
          plan: how a step's batches are taken.
          step_fn: of one step's batches and the steps before.
          metrics: what the steps keep.
          scalars: names of what they report besides.
          stop_at_nonfinite: ends the loop after a step whose loss was not finite.
          at_end: of the step afterwards; what it returns joins the scalars.
          run_eagerly: runs it as plain Python.
        """
        self._plan = plan
        self._step_fn = step_fn
        self._metrics = metrics
        self._zeros = Totals.zeros(metrics, scalars).as_tree()
        self._stop_at_nonfinite = stop_at_nonfinite
        self._at_end = at_end
        self._call = self._run
        if not run_eagerly:
            self._call = tf.function(self._run, autograph=False, reduce_retracing=True)

    def __call__(self, iterator: Any, start: int, stop: int) -> Segment:
        """Runs until `stop` or the input's end.

        Args:
          iterator: over the dataset that `plan` is of.
          start: global step before.
          stop: global step to reach.
        """
        bounds = tf.constant(start, tf.int64), tf.constant(stop, tf.int64)
        step, more, nonfinite, tree, values = self._call(iterator, *bounds)
        step, nonfinite = int(step), int(nonfinite)
        return Segment(
            step=step,
            num_steps=step - start,
            totals=Totals(*tree),
            metrics=values,
            nonfinite_step=None if nonfinite < 0 else nonfinite,
            ended=not bool(more),
        )

    def _run(self, iterator: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
        plan = self._plan

        def goes_on(step: Any, more: Any, nonfinite: Any, tree: Any) -> tf.Tensor:
            del tree
            on = step < stop
            if not plan.endless:
                on = tf.logical_and(on, more)
            if self._stop_at_nonfinite:
                on = tf.logical_and(on, nonfinite < 0)
            return on

        def one(batches: Any, step: Any, nonfinite: Any, tree: Any) -> Any:
            totals = self._step_fn(batches, step)
            bad = tf.logical_and(nonfinite < 0, ~tf.math.is_finite(totals.loss))
            nonfinite = tf.where(bad, step + 1, nonfinite)
            return step + 1, nonfinite, Totals(*tree).plus(totals).as_tree()

        def body(step: Any, more: Any, nonfinite: Any, tree: Any) -> Any:
            if plan.endless:
                state = one(plan.take(iterator), step, nonfinite, tree)
            else:
                more, take = plan.try_take(iterator)
                state = tf.cond(
                    more,
                    lambda: one(take(), step, nonfinite, tree),
                    lambda: (step, nonfinite, tree),
                )
            step, nonfinite, tree = state
            return step, more, nonfinite, tree

        step, more, nonfinite, tree = tf.while_loop(
            goes_on,
            body,
            (start, tf.constant(True), tf.constant(-1, tf.int64), self._zeros),
        )
        if self._at_end is not None:
            tree = (*tree[:3], {**tree[3], **self._at_end(step)})
        return step, more, nonfinite, tree, self._metrics.compute(tree[2])


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
        self._scalars: dict[str, tf.Tensor] = {}
        self._pending: list[Segment] = []
        self._report: Report | None = None

    def add(self, segment: Segment, seconds: float) -> None:
        """Adds what a call of the loop did, and how long it took."""
        self._report = None
        self._seconds += seconds
        self._step = segment.step
        self._num_steps += segment.num_steps
        if segment.num_steps:  # Else it only found the input's end.
            self._scalars = segment.totals.scalars
            self._pending.append(segment)
        # Values stay on the device until they are read or grow many.
        if len(self._pending) >= _MOST_PENDING:
            self._fold()

    def report(self) -> Report:
        """The window's values; computed once."""
        if self._report is None:
            self._report = self._computed()
        return self._report

    def _computed(self) -> Report:
        if len(self._pending) == 1 and not self._states:
            metrics = as_arrays(self._pending[0].metrics)
            self._fold()
        else:
            self._fold()
            metrics = self._metrics.results(self._states)
        return Report(
            step=self._step,
            num_steps=self._num_steps,
            seconds=self._seconds,
            loss=self._loss / self._weight if self._weight else 0.0,
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


class TrainLoop:
    """Trains up to a step, calling each hook at the steps that it asked for.

    hooks begin
    while the step is below max_step and nobody asked to stop:
        run the compiled loop up to the next step that a hook wants to see
        hooks after_loop; those that are due after_step
    hooks end
    """

    def __init__(
        self, compiled: CompiledLoop, metrics: MetricSet, *, steps_per_loop: int
    ) -> None:
        """
        Args:
          compiled: the loop over train steps.
          metrics: of the mode TRAIN.
          steps_per_loop: most steps in one call.
        """
        self._compiled = compiled
        self._metrics = metrics
        self._steps_per_loop = steps_per_loop
        self._run: Run | None = None
        self._windows: dict[Hook, Window] = {}

    def __call__(
        self,
        run: Run,
        iterator: Any,
        hooks: Sequence[Hook],
        *,
        begin_anew: Callable[[], Any] | None = None,
    ) -> bool:
        """Trains.

        Args:
          run: at the step to start from; its `step` goes along.
          iterator: over the training input.
          hooks: in the order in which they are called.
          begin_anew: gives another iterator where this one ends, once; None ends the
            run there.

        Returns:
          Whether the input ended first.
        """
        self._renew(hooks)
        for hook in hooks:
            with self._windowed(run, hook):
                hook.begin(run)
        ended = False
        while not (ended or run.stop_reasons or run.step == run.max_step):
            stop = self._next_boundary(run, hooks)
            began = time.perf_counter()
            segment = self._compiled(iterator, run.step, stop)
            seconds = time.perf_counter() - began
            for window in set(self._windows.values()):
                window.add(segment, seconds)
            due = [h for h in hooks if h.next_step(run.step) == segment.step]
            run.step, ended = segment.step, segment.ended
            run.nonfinite_step = segment.nonfinite_step
            for hook in hooks:
                hook.after_loop(run)
            for hook in due:
                with self._windowed(run, hook):
                    hook.after_step(run)
            self._renew(due)
            if ended and begin_anew is not None:
                iterator, begin_anew, ended = begin_anew(), None, False
        run.finished = True
        for hook in hooks:
            with self._windowed(run, hook):
                hook.end(run)
        reasons = [*run.stop_reasons, *(["the input ended"] if ended else [])]
        logging.info("%s", " | ".join(["train", f"ended at step {run.step}", *reasons]))
        return ended

    def _next_boundary(self, run: Run, hooks: Sequence[Hook]) -> int:
        wanted = [hook.next_step(run.step) for hook in hooks]
        wanted += [run.max_step, run.step + self._steps_per_loop]
        return min(step for step in wanted if step is not None)

    def _renew(self, hooks: Sequence[Hook]) -> None:
        """Starts a new window, one for all hooks that were called at this step."""
        window = Window(self._metrics)
        self._windows = {**self._windows, **dict.fromkeys(hooks, window)}

    @contextlib.contextmanager
    def _windowed(self, run: Run, hook: Hook) -> Iterator[None]:
        run.read_report = self._windows[hook].report
        yield


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
        hook.begin(run)
    iterator = iter(feed.dataset)
    done, ended = 0, False
    while not (ended or done == steps or run.stop_reasons):
        stop = done + steps_per_loop
        began = time.perf_counter()
        segment = compiled(iterator, done, stop if steps is None else min(stop, steps))
        window.add(segment, time.perf_counter() - began)
        done, ended = segment.step, segment.ended
        for hook in hooks:
            hook.after_loop(run)
    for hook in hooks:
        hook.end(run)
    return report()
