"""Runs many steps in one call: the compiled loop from boundary to boundary.

An iterator, a step and the boundaries go in. One `Segment` for each boundary comes out.
A call from Python costs more than a small step computes. So one call runs through all
boundaries at which nobody has to act, and keeps what was measured at each of them.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from pipeline.feed.batch import Plan, Timed
from pipeline.loop import losses
from pipeline.loop.losses import Totals
from pipeline.loop.metrics import MetricSet
from pipeline.loop.packing import TotalsPacking, packed, unpacked
from pipeline.mistakes import user_errors
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy.peers import Peers
from pipeline.tracing.compiling import compiled

_HOW_TO_FIND_IT = (
    "RunConfig(steps_per_loop=1) tells the step, RunConfig(run_eagerly=True) stops in "
    "Python where it fails."
)

StepFn = Callable[[Any, tf.Tensor], Totals]

# The clock of this module: seconds as a float64 scalar, read when its operation runs.
_now: Callable[[], tf.Tensor] = tf.timestamp


@dataclasses.dataclass(frozen=True)
class Segment:
    """The steps from one boundary to the next, and what was measured over them.

    Attributes:
      step: global step afterwards.
      num_steps: steps from the boundary before to this one.
      seconds: seconds that these steps took.
      totals: totals over these steps, as arrays; their scalars are the last step's
        means over examples, and what `at_end` returned.
      metrics: the metrics' results over these steps, as arrays by name.
      nonfinite_step: first step whose loss was NaN or infinite; None without any.
      ended: whether the input has ended.
      waited: seconds for which the steps waited for their input; of several processes,
        the longest.
    """

    step: int
    num_steps: int
    seconds: float
    totals: Totals
    metrics: dict[str, Any]
    nonfinite_step: int | None
    ended: bool
    waited: float


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
        """
        self._name = name
        self._plan = plan
        self._step_fn = step_fn
        self._metrics = metrics
        self._scalars = tuple(scalars)
        self._peers = peers if peers is not None and not peers.alone else None
        self._stop_at_nonfinite = stop_at_nonfinite
        # Another process' loss may still be finite: they find out at the boundary.
        self._watch_each_step = stop_at_nonfinite and self._peers is None
        self._at_end = at_end
        self._at_end_scalars = tuple(at_end_scalars)
        self._pass_start = pass_start
        self._row_spec: Any = None
        self._run_eagerly = run_eagerly
        # By the iterator's type, which names the shapes that it yields: one iterator's
        # batches may have a fixed size, and another one's another size.
        self._calls: dict[Any, Callable[..., Any]] = {}

    def __call__(
        self, iterator: Any, start: int, boundaries: Sequence[int]
    ) -> list[Segment]:
        """Runs until the last boundary or the input's end.

        Args:
          iterator: iterator over the dataset that the plan was made for.
          start: global step before the first step.
          boundaries: global steps to pass through, in order.

        Returns:
          One segment for each boundary that was reached. Where the input ended before
          a boundary, the last segment ends there.

        Raises:
          StepError: an operation failed.
          ValueError: each process needs a batch, and this one has none.
        """
        call = self._call_for(iterator)
        try:
            with user_errors.running(
                lambda: self._name + _steps_in_words(start, boundaries[-1]),
                hint=_HOW_TO_FIND_IT,
            ):
                count, more, rows = call(
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
        segments = []
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
                )
            )
            start = int(step)
        return segments

    def _call_for(self, iterator: Any) -> Callable[..., Any]:
        """Returns `_run`, compiled for iterators of this type."""
        if self._run_eagerly:
            return self._run
        spec = tf.type_spec_from_value(iterator)
        if spec not in self._calls:
            signature = (
                spec,
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([None], tf.int64),
            )
            self._calls[spec] = compiled(self._run, input_signature=signature)
        return self._calls[spec]

    def _run(self, iterator: Any, start: tf.Tensor, boundaries: tf.Tensor) -> Any:
        """Runs through all boundaries, inside of the graph.

        Args:
          iterator: see `__call__`.
          start: int64 scalar, global step before the first step.
          boundaries: int64 vector of global steps.

        Returns:
          The number of segments; whether more data are left; and `_row()` of each
          segment, packed, by dtype as a matrix of one row a segment.
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

        def body(index: Any, step: Any, more: Any, _: Any, then: Any, rows: Any) -> Any:
            step, more, nonfinite, waited, totals = self.segment(
                iterator, step, boundaries[index]
            )
            if self._peers is not None:
                nonfinite = self._peers.least(nonfinite)
                waited, totals = _over_processes(waited, totals, self._peers)
            *sums, scalars = totals.as_tree()
            # The clock is read after the steps: it does not depend on them by itself.
            with tf.control_dependencies([step]):
                now = _now()
            at_end = self._at_end(step) if self._at_end is not None else {}
            tree = (*sums, {**losses.means(scalars), **at_end})
            values = self._metrics.compute(totals.metrics)
            vectors = packed((step, nonfinite, now - then, waited, tree, values))
            rows = {name: rows[name].write(index, vectors[name]) for name in rows}
            return index + 1, step, more, nonfinite, now, rows

        none, began = tf.constant(-1, tf.int64), _now()
        # Or the first steps might run before the clock is read.
        with tf.control_dependencies([began]):
            start = tf.identity(start)
        index, _, more, _, _, arrays = tf.while_loop(
            goes_on, body, (0, start, tf.constant(True), none, began, arrays)
        )
        return index, more, {name: array.stack() for name, array in arrays.items()}

    def segment(self, iterator: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
        """Runs the steps up to one boundary, inside of the graph.

        Each value that the loop carries costs about as much as an operation in each
        step. So sums are packed, and a value that nobody asks for is left out.

        Args:
          iterator: see `__call__`.
          start: int64 scalar, global step before the first step.
          stop: int64 scalar, the boundary.

        Returns:
          The step reached (int64 scalar); whether more data are left (bool scalar); the
          first step whose loss was not finite (int64 scalar, -1 without any); the
          seconds that the steps waited for input (float32 scalar); and the totals over
          these steps.
        """
        plan, packing = self._plan, TotalsPacking(self._zeros())
        last = stop
        if plan.num_steps is not None:
            data_end = tf.cast(self._pass_start, tf.int64) + plan.num_steps
            last = tf.minimum(stop, data_end)

        def one(batches: Any, carried: dict[str, Any]) -> dict[str, Any]:
            totals = self._step_fn(batches, carried["step"])
            step = carried["step"] + 1
            after = {
                "step": step,
                "waited": carried["waited"],
                **packing.plus(carried, totals),
            }
            finite = tf.math.is_finite(totals.loss)
            if self._watch_each_step:
                return {**after, "finite": finite}
            first = tf.logical_and(carried["nonfinite"] < 0, ~finite)
            return {**after, "nonfinite": tf.where(first, step, carried["nonfinite"])}

        def waited(timed: Timed, carried: dict[str, Any]) -> dict[str, Any]:
            return {**carried, "waited": carried["waited"] + timed.waited()}

        def goes_on(carried: dict[str, Any]) -> tf.Tensor:
            on = carried["step"] < last
            for flag in ("more", "finite"):
                if flag in carried:
                    on = tf.logical_and(on, carried[flag])
            return on

        def body(carried: dict[str, Any]) -> tuple[dict[str, Any]]:
            timed = Timed(iterator, carried["step"], _now)
            if not plan.asks:
                batches = plan.take(timed)
                return (one(batches, waited(timed, carried)),)
            more, take = plan.try_take(timed)
            carried = waited(timed, carried)
            if self._peers is not None:
                more = self._peers.anywhere(more)
            state = {key: carried[key] for key in carried if key != "more"}
            state = plan.where(more, lambda: one(take(), state), state)
            return ({**state, "more": more},)

        carried = {"step": start, "waited": tf.zeros([]), **packing.zeros()}
        if plan.asks:
            carried["more"] = tf.constant(True)
        none = tf.constant(-1, tf.int64)
        if self._watch_each_step:
            carried["finite"] = tf.constant(True)
        else:
            carried["nonfinite"] = none
        (carried,) = tf.while_loop(goes_on, body, (carried,))
        step = carried["step"]
        if self._watch_each_step:
            nonfinite = tf.where(carried["finite"], none, step)
        else:
            nonfinite = carried["nonfinite"]
        more = carried.get("more", tf.constant(True))
        if plan.num_steps is not None:
            # A plan that asks finds the end by wanting a step beyond it. So does this.
            more = stop <= data_end
        return step, more, nonfinite, carried["waited"], packing.unpack(carried)

    def _zeros(self) -> Totals:
        return Totals.zeros(self._metrics, self._scalars)

    def _row(self) -> Any:
        """Returns zeros in the nest, dtypes and shapes of a boundary's results."""
        names = (*self._scalars, *self._at_end_scalars)
        zeros = Totals.zeros(self._metrics, ())
        *sums, _ = zeros.as_tree()
        tree = (*sums, dict.fromkeys(names, tf.zeros([])))
        step, seconds = tf.zeros([], tf.int64), tf.zeros([], tf.float64)
        values = self._metrics.compute(zeros.metrics)
        return step, step, seconds, tf.zeros([]), tree, values


def _steps_in_words(start: int, stop: int) -> str:
    """Returns which steps a call runs, to follow the loop's name in a message."""
    first = start + 1
    return (
        f", step {stop}" if first == stop else f", one of the steps {first} to {stop}"
    )


def _over_processes(
    waited: tf.Tensor, totals: Totals, peers: Peers
) -> tuple[tf.Tensor, Totals]:
    """Returns the longest wait of any process, and the sums of totals over all.

    The others wait for a process whose input is slow, in their all-reduce.
    """
    replicas = peers.replicas
    # Each process writes to a place of its own, so that one exchange does for both.
    own = waited * tf.one_hot(replicas.process, replicas.num_processes)
    each, tree = peers.total((own, totals.as_tree()))
    return tf.reduce_max(each), Totals(*tree)
