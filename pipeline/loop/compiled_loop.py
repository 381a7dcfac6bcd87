"""Many steps in one call: the compiled loop from boundary to boundary."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contract import user_errors
from pipeline.feed.feed import Plan
from pipeline.loop import losses
from pipeline.loop.losses import Totals
from pipeline.loop.metrics import MetricSet
from pipeline.loop.packing import TotalsPacking, packed, unpacked
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy.peers import Peers
from pipeline.tracing.compiling import compiled

_HOW_TO_FIND_IT = (
    "RunConfig(steps_per_loop=1) tells the step, RunConfig(run_eagerly=True) stops in "
    "Python where it fails."
)

StepFn = Callable[[Any, tf.Tensor], Totals]


@dataclasses.dataclass(frozen=True)
class Segment:
    """What the compiled loop did from one boundary to the next.

    Attributes:
      step: global step afterwards.
      num_steps: steps that it ran.
      seconds: how long they took.
      totals: over these steps; arrays.
      metrics: what the totals' metrics come to; arrays.
      nonfinite_step: first step whose loss was NaN or infinite, or None.
      ended: whether the input has ended.
    """

    step: int
    num_steps: int
    seconds: float
    totals: Totals
    metrics: dict[str, Any]
    nonfinite_step: int | None
    ended: bool


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
        """
        Args:
          plan: how a step's batches are taken.
          step_fn: of one step's batches and the steps before.
          metrics: what the steps keep.
          scalars: names of what they report besides.
          name: of the loop, for messages.
          peers: the processes that run it in step; None for this one alone.
          stop_at_nonfinite: ends the loop after a step whose loss was not finite.
          at_end: of the step at a boundary; what it returns joins the scalars.
          at_end_scalars: the names in what it returns.
          pass_start: step at which the pass over the data began (int64 variable, or a
            number), for a plan that counts its steps.
          run_eagerly: runs it as plain Python.
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
        # By the type of the iterator: what one yields may have a batch of fixed size,
        # and what another yields a batch of another size.
        self._calls: dict[Any, Callable[..., Any]] = {}

    def __call__(
        self, iterator: Any, start: int, boundaries: Sequence[int]
    ) -> list[Segment]:
        """Runs until the last boundary or the input's end.

        Args:
          iterator: over the dataset that `plan` is of.
          start: global step before.
          boundaries: global steps to pass through, in order.

        Returns:
          What was done up to each boundary; fewer where the input ended.

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
            # Padding is made of the first batch, and so ends only if there is none.
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
            step, nonfinite, seconds, tree, values = row
            segments.append(
                Segment(
                    step=int(step),
                    num_steps=int(step) - start,
                    seconds=float(seconds),
                    totals=Totals(*tree),
                    metrics=values,
                    nonfinite_step=None if nonfinite < 0 else int(nonfinite),
                    ended=index == count - 1 and not more,
                )
            )
            start = int(step)
        return segments

    def _call_for(self, iterator: Any) -> Callable[..., Any]:
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
            step, more, nonfinite, totals = self.segment(
                iterator, step, boundaries[index]
            )
            if self._peers is not None:
                nonfinite = self._peers.least(nonfinite)
                totals = _over_processes(totals, self._peers)
            tree = totals.as_tree()
            with tf.control_dependencies([step]):
                now = tf.timestamp()
            at_end = self._at_end(step) if self._at_end is not None else {}
            tree = (*tree[:3], {**losses.means(tree[3]), **at_end})
            values = self._metrics.compute(tree[2])
            vectors = packed((step, nonfinite, now - then, tree, values))
            rows = {name: rows[name].write(index, vectors[name]) for name in rows}
            return index + 1, step, more, nonfinite, now, rows

        none = tf.constant(-1, tf.int64)
        index, _, more, _, _, arrays = tf.while_loop(
            goes_on, body, (0, start, tf.constant(True), none, tf.timestamp(), arrays)
        )
        return index, more, {name: array.stack() for name, array in arrays.items()}

    def segment(self, iterator: Any, start: tf.Tensor, stop: tf.Tensor) -> Any:
        """Steps up to one boundary: step, whether there is more, nonfinite, totals.

        Each value that the loop carries costs about as much as an operation in each
        step, so sums are packed, and what is not needed is left out.
        """
        plan, packing = self._plan, TotalsPacking(self._zeros())
        last = stop
        if plan.num_steps is not None:
            data_end = tf.cast(self._pass_start, tf.int64) + plan.num_steps
            last = tf.minimum(stop, data_end)

        def one(batches: Any, carried: dict[str, Any]) -> dict[str, Any]:
            totals = self._step_fn(batches, carried["step"])
            step = carried["step"] + 1
            after = {"step": step, **packing.plus(carried, totals)}
            finite = tf.math.is_finite(totals.loss)
            if self._watch_each_step:
                return {**after, "finite": finite}
            first = tf.logical_and(carried["nonfinite"] < 0, ~finite)
            return {**after, "nonfinite": tf.where(first, step, carried["nonfinite"])}

        def goes_on(carried: dict[str, Any]) -> tf.Tensor:
            on = carried["step"] < last
            for flag in ("more", "finite"):
                if flag in carried:
                    on = tf.logical_and(on, carried[flag])
            return on

        def body(carried: dict[str, Any]) -> tuple[dict[str, Any]]:
            if not plan.asks:
                return (one(plan.take(iterator), carried),)
            more, take = plan.try_take(iterator)
            if self._peers is not None:
                more = self._peers.anywhere(more)
            state = {key: carried[key] for key in carried if key != "more"}
            state = plan.where(more, lambda: one(take(), state), state)
            return ({**state, "more": more},)

        carried = {"step": start, **packing.zeros()}
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
            # As where a step asks: the end is found by wanting a step beyond it.
            more = stop <= data_end
        return step, more, nonfinite, packing.unpack(carried)

    def _zeros(self) -> Totals:
        return Totals.zeros(self._metrics, self._scalars)

    def _row(self) -> Any:
        """What is kept at a boundary, of the right dtypes and shapes."""
        names = (*self._scalars, *self._at_end_scalars)
        *sums, _ = Totals.zeros(self._metrics, ()).as_tree()
        zeros = (*sums, dict.fromkeys(names, tf.zeros([])))
        step, seconds = tf.zeros([], tf.int64), tf.zeros([], tf.float64)
        return step, step, seconds, zeros, self._metrics.compute(zeros[2])


def _steps_in_words(start: int, stop: int) -> str:
    first = start + 1
    return (
        f", step {stop}" if first == stop else f", one of the steps {first} to {stop}"
    )


def _over_processes(totals: Totals, peers: Peers) -> Totals:
    """Totals over all processes."""
    return Totals(*peers.total(totals.as_tree()))
