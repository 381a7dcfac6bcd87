"""Runs many steps in one call: the compiled loop from boundary to boundary.

An iterator, a step and the boundaries go in. One `Segment` for each boundary comes out.
A call from Python costs more than a small step computes. So one call runs through all
boundaries at which nobody has to act, and keeps what was measured at each of them.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from pipeline.feed.batch import Plan
from pipeline.loop import losses, stretch
from pipeline.loop.losses import EachLoss, Totals
from pipeline.loop.metrics import MetricSet
from pipeline.loop.stretch import (
    Segment,
    Showing,
    StepFn,
    Stretch,
    packed,
    unpacked,
)
from pipeline.mistakes import user_errors
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy.peers import Peers
from pipeline.tracing.compiling import compiled
from pipeline.tracing.summary_states import States, over_processes

_HOW_TO_FIND_IT = (
    "RunConfig(steps_per_loop=1) tells the step, RunConfig(run_eagerly=True) stops in "
    "Python where it fails."
)


class StepsLoop(Protocol):
    """Runs steps through one or more stops: in this process, or by its workers."""

    def __call__(
        self, iterator: Any, start: int, boundaries: Sequence[int]
    ) -> list[Segment]:
        """Runs until the last stop or the input's end, see `CompiledLoop`."""


class CompiledLoop:
    """Runs steps through one or more boundaries in one call of a `tf.function`.

    for each boundary:
        while step < boundary, the input goes on and the loss is finite:
            take one batch a replica, run the step, add up its totals
        keep the totals, the metrics and the time, and begin at zero

    A boundary at which something is shown, summaries or tensors for hooks, ends a call.
    The step before it is compiled by itself, so that others pay nothing for it.

    Attributes:
      stretch: the steps up to one boundary, inside of a graph.
    """

    def __init__(
        self,
        plan: Plan,
        step_fn: StepFn,
        metrics: MetricSet,
        scalars: Iterable[str],
        *,
        name: str = "the loop",
        peers: Peers | None = None,
        stop_at_nonfinite: bool = False,
        at_end: Callable[[tf.Tensor], dict[str, tf.Tensor]] | None = None,
        at_end_scalars: Iterable[str] = (),
        pass_start: Any = 0,
        run_eagerly: bool = False,
        showing_at: Callable[[int, bool], Showing | None] = lambda *_: None,
    ) -> None:
        """Takes what a step does; nothing is traced before the first call.

        Args:
          plan: how a step's batches are taken.
          step_fn: takes one step's batches and the number of steps before it (int64
            scalar), and returns the step's totals.
          metrics: metrics whose increments are in the totals.
          scalars: names of the totals' scalars.
          name: name of the loop, for messages.
          peers: processes that run the loop in step; None for this one alone.
          stop_at_nonfinite: whether the loop ends after a step whose loss is not
            finite.
          at_end: takes the step at a boundary (int64 scalar), and returns float32
            scalars by name, which join the step's own.
          at_end_scalars: names of the scalars that `at_end` returns.
          pass_start: step at which the pass over the data began (int64 variable, or a
            number), for a plan that counts its steps.
          run_eagerly: whether the loop runs as plain Python.
          showing_at: takes a boundary, and whether hooks want tensors; returns what is
            shown there, None for nothing.
        """
        self._name = name
        self._metrics = metrics
        self._scalars = tuple(scalars)
        self._peers = peers if peers is not None and not peers.alone else None
        self._stop_at_nonfinite = stop_at_nonfinite
        self._at_end = at_end
        self._at_end_scalars = tuple(at_end_scalars)
        self._row_spec: Any = None
        self._run_eagerly = run_eagerly
        self.showing_at = showing_at
        self.stretch = Stretch(
            plan,
            step_fn,
            lambda: Totals.zeros(metrics, self._scalars),
            peers=self._peers,
            stop_at_nonfinite=stop_at_nonfinite,
            pass_start=pass_start,
        )
        # By the iterator's type, which names the shapes that it yields: one iterator's
        # batches may have a fixed size, and another one's another size.
        self._calls: dict[Any, Callable[..., Any]] = {}

    def __call__(
        self,
        iterator: Any,
        start: int,
        boundaries: Sequence[int],
        *,
        each_loss: bool = False,
        tensors: bool = False,
    ) -> list[Segment]:
        """Runs until the last boundary or the input's end.

        Args:
          iterator: iterator over the dataset that the plan was made for.
          start: global step before the first step.
          boundaries: global steps to pass through, in order.
          each_loss: whether segments have the loss of each of their steps.
          tensors: whether segments have the tensors of their last step.

        Returns:
          One segment for each boundary that was reached. Where the input ended before
          a boundary, the last segment ends there.

        Raises:
          StepError: an operation failed.
          ValueError: each process needs a batch, and this one has none.
        """
        segments: list[Segment] = []
        for showing, part in self._parts(boundaries, tensors):
            segments += self._one_call(iterator, start, part, showing, each_loss)
            last = segments[-1]
            failed = self._stop_at_nonfinite and last.nonfinite_step is not None
            if last.ended or failed or last.step < part[-1]:
                break
            start = last.step
        return segments

    def _parts(
        self, boundaries: Sequence[int], tensors: bool
    ) -> Iterator[tuple[Showing | None, list[int]]]:
        """Yields each call's boundaries; one at which something is shown is alone."""
        shown = ((self.showing_at(each, tensors), each) for each in boundaries)
        for showing, group in itertools.groupby(shown, lambda pair: pair[0]):
            part = [each for _, each in group]
            for some in [part] if showing is None else ([each] for each in part):
                yield showing, some

    def _one_call(
        self,
        iterator: Any,
        start: int,
        boundaries: Sequence[int],
        showing: Showing | None,
        each_loss: bool,
    ) -> list[Segment]:
        """Calls the compiled loop, see `__call__`."""
        call = self._call_for(iterator, showing=showing, each_loss=each_loss)
        try:
            with user_errors.running(
                lambda: self._name + _steps_in_words(start, boundaries[-1]),
                hint=_HOW_TO_FIND_IT,
            ):
                count, more, rows, states, sums = call(
                    iterator,
                    tf.constant(start, tf.int64),
                    tf.constant(list(boundaries), tf.int64),
                )
        except tf.errors.OutOfRangeError as error:
            # A padded input repeats its first batch without end. It can only be at its
            # end where there was no first batch.
            raise RefusedValueError(
                "input_fn yielded no examples in this process, and each process needs "
                "a batch: has the data fewer parts than input_context."
                "num_input_pipelines?"
            ) from error
        count, more = int(count), bool(more)
        rows = {name: np.asarray(vectors) for name, vectors in rows.items()}
        means, first, segments = losses.mean_of_each(sums), start, []
        for index in range(count):
            vectors = {name: rows[name][index] for name in rows}
            row = unpacked(vectors, self._row_spec)
            step, nonfinite, seconds, waited, tree, values = row
            segments.append(
                Segment(
                    step=int(step),
                    num_steps=int(step) - start,
                    seconds=float(seconds),
                    totals=Totals(*tree),
                    metrics=values,
                    nonfinite_step=None if nonfinite < 0 else int(nonfinite),
                    ended=index == count - 1 and not more,
                    waited=float(waited),
                    **self.seen(showing, states, int(step) == boundaries[index]),
                    losses=means[start - first : step - first] if each_loss else None,
                )
            )
            start = int(step)
        return segments

    def seen(
        self, showing: Showing | None, states: States, reached: bool
    ) -> dict[str, Any]:
        """Returns fields of a segment: what it shows; all processes call it together.

        Args:
          showing: what is shown at its boundary; None for nothing.
          states: this process' states.
          reached: whether the segment's boundary was reached: its last step takes them.
        """
        if showing is None or not (reached or showing.each):
            return {}
        shown, peers = showing.summaries, self._peers
        tensors = shown.tensors.seen(states, peers and peers.gather_bytes)
        states = {name: states[name] for name in shown.kinds}
        if states and peers is not None:
            states = over_processes(states, peers.gather)
        return {"summaries": shown.seen(states), "tensors": tensors}

    def _call_for(
        self, iterator: Any, *, showing: Showing | None, each_loss: bool
    ) -> Callable[..., Any]:
        """Returns `_run` or `_run_and_show`, compiled for iterators of this type."""
        run = functools.partial(self._run, each_loss)
        if showing is not None:
            run = functools.partial(self._run_and_show, showing, each_loss)
        if self._run_eagerly:
            return run
        spec = tf.type_spec_from_value(iterator), showing, each_loss
        if spec not in self._calls:
            signature = (
                spec[0],
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([None], tf.int64),
            )
            self._calls[spec] = compiled(run, input_signature=signature)
        return self._calls[spec]

    def _run(
        self, each_loss: bool, iterator: Any, start: tf.Tensor, boundaries: tf.Tensor
    ) -> Any:
        """Runs through all boundaries, inside of the graph.

        Args:
          each_loss: see `__call__`.
          iterator: see `__call__`.
          start: int64 scalar, global step before the first step.
          boundaries: int64 vector of global steps.

        Returns:
          The number of segments; whether more data are left; `_row()` of each segment,
          packed, by dtype as a matrix of one row a segment; the summaries' states; and
          each step's sums of losses and weights, see `EachLoss.rows`.
        """
        size = tf.size(boundaries)
        row = self._row()
        self._row_spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, row)
        arrays = {
            name: tf.TensorArray(vector.dtype, size, element_shape=vector.shape)
            for name, vector in packed(row).items()
        }

        def goes_on(index: Any, step: Any, more: Any, nonfinite: Any, *_: Any) -> Any:
            on = tf.logical_and(index < size, more)
            if self._stop_at_nonfinite:
                on = tf.logical_and(on, nonfinite < 0)
            return on

        def body(index: Any, step: Any, *state: Any) -> Any:
            _, _, then, rows, each = state
            reached = self.stretch(iterator, step, boundaries[index], each_loss=each)
            more, row, now = self._at_boundary(reached, then)
            vectors = packed(row)
            rows = {name: rows[name].write(index, vectors[name]) for name in rows}
            return index + 1, row[0], more, row[1], now, rows, reached[-1]

        none, (start, began) = tf.constant(-1, tf.int64), _timed(start)
        each = EachLoss.zeros(start, boundaries[-1]) if each_loss else ()
        index, _, more, _, _, arrays, each = tf.while_loop(
            goes_on, body, (0, start, tf.constant(True), none, began, arrays, each)
        )
        rows = {name: array.stack() for name, array in arrays.items()}
        return index, more, rows, {}, each.sums(self._peers) if each_loss else ()

    def _run_and_show(
        self,
        showing: Showing,
        each_loss: bool,
        iterator: Any,
        start: tf.Tensor,
        boundaries: tf.Tensor,
    ) -> Any:
        """Runs to one boundary at which something is shown; otherwise as `_run`."""
        self._row_spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, self._row())
        start, began = _timed(start)
        each = EachLoss.zeros(start, boundaries[0]) if each_loss else ()
        reached = self.stretch(
            iterator, start, boundaries[0], showing=showing, each_loss=each
        )
        more, row, _ = self._at_boundary(reached, began)
        rows = {name: vector[tf.newaxis] for name, vector in packed(row).items()}
        *_, totals, each = reached
        sums = each.sums(self._peers) if each_loss else ()
        return tf.constant(1), more, rows, totals.summaries, sums

    def _at_boundary(self, reached: Any, then: tf.Tensor) -> Any:
        """Puts the processes' totals together, and computes what a segment tells.

        Args:
          reached: what the stretch returned.
          then: time at the boundary before (float64 scalar).

        Returns:
          Whether more data are left; the nest that `_row` shows; and the time now.
        """
        step, more, nonfinite, waited, totals, _ = reached
        if self._peers is not None:
            nonfinite = self._peers.least(nonfinite)
            waited, totals = _over_processes(waited, totals, self._peers)
        *sums, scalars, _ = totals.as_tree()
        # The clock is read after the steps: it does not depend on them by itself.
        with tf.control_dependencies([step]):
            now = stretch.now()
        at_end = self._at_end(step) if self._at_end is not None else {}
        tree = (*sums, {**losses.means(scalars), **at_end})
        values = self._metrics.compute(totals.metrics)
        return more, (step, nonfinite, now - then, waited, tree, values), now

    def _row(self) -> Any:
        """Returns zeros in the nest, dtypes and shapes of a boundary's results."""
        names = (*self._scalars, *self._at_end_scalars)
        zeros = Totals.zeros(self._metrics, ())
        tree = (*zeros.as_tree()[:4], dict.fromkeys(names, tf.zeros([])))
        step, seconds = tf.zeros([], tf.int64), tf.zeros([], tf.float64)
        values = self._metrics.compute(zeros.metrics)
        return step, step, seconds, tf.zeros([]), tree, values


def _steps_in_words(start: int, stop: int) -> str:
    """Returns which steps a call runs, to follow the loop's name in a message."""
    first = start + 1
    return (
        f", step {stop}" if first == stop else f", one of the steps {first} to {stop}"
    )


def _timed(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the step to start from and the time, which is read before the steps."""
    began = stretch.now()
    with tf.control_dependencies([began]):
        return tf.identity(start), began


def _over_processes(
    waited: tf.Tensor, totals: Totals, peers: Peers
) -> tuple[tf.Tensor, Totals]:
    """Returns the longest wait of any process, and the sums of totals over all.

    The others wait for a process whose input is slow, in their all-reduce.
    """
    replicas = peers.replicas
    # Each process writes to a place of its own, so that one exchange does for both.
    own = waited * tf.one_hot(replicas.process, replicas.num_processes)
    each, tree = peers.total((own, totals.as_tree()[:5]))
    return tf.reduce_max(each), Totals(*tree, totals.summaries)
