"""Runs the steps up to one boundary inside of a graph, and packs what they carry.

Each tensor that a loop carries costs about as much as an operation in each step. So all
of them go in few vectors, one for each dtype.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contract.summaries import Seen
from pipeline.feed.batch import Plan, Timed
from pipeline.loop.losses import EachLoss, Totals
from pipeline.strategy.peers import Peers
from pipeline.tracing.compiling import seconds_now
from pipeline.tracing.summary_states import SummarySet, merged

StepFn = Callable[[Any, tf.Tensor], Totals]

# The clock of the loop: seconds as a float64 scalar, read when its operation runs.
now: Callable[[], tf.Tensor] = seconds_now


@dataclasses.dataclass(frozen=True)
class Showing:
    """What some steps of a loop show of themselves: summaries, tensors for hooks.

    Attributes:
      step_fn: does what the loop's own does, and its totals hold what is shown.
      summaries: the summaries, and the tensors beside them.
      each: whether each step takes them, and a segment's are put together; else the
        last one before a boundary.
    """

    step_fn: StepFn
    summaries: SummarySet
    each: bool = False


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
      summaries: summaries that were taken at its end, by name; of an evaluation, over
        these steps.
      tensors: tensors of its last step for hooks, by name; empty where none were taken.
      losses: float64 `[num_steps]`, the mean loss of each step, NaN where its weights
        are 0; None where nobody asked for it.
    """

    step: int
    num_steps: int
    seconds: float
    totals: Totals
    metrics: dict[str, Any]
    nonfinite_step: int | None
    ended: bool
    waited: float
    summaries: dict[str, Seen] = dataclasses.field(default_factory=dict)
    tensors: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    losses: np.ndarray | None = None


class TotalsPacking:
    """Totals as one vector of sums a dtype, and a matrix of the last step's scalars.

    The seconds of waiting for input are among the sums. Summaries, where there are any,
    go by themselves.
    """

    def __init__(self, example: Totals) -> None:
        """Takes totals of zeros, for their nest, dtypes and shapes."""
        self._example = example
        self._sums = tf.nest.flatten((_sums_of(example), tf.zeros([])))
        self._dtypes = sorted({x.dtype.name for x in self._sums})

    def zeros(self) -> dict[str, Any]:
        """Returns what the loop carries before the first step."""
        return self._packed(self._example, tf.zeros([]))

    def plus(
        self, carried: dict[str, Any], totals: Totals, waited: tf.Tensor
    ) -> dict[str, Any]:
        """Returns what the loop carries after another step.

        Args:
          carried: vectors that the loop carried before the step.
          totals: totals of the step. Sums are added; scalars take the others' place.
          waited: seconds that the step waited for input, a float32 scalar.
        """
        packed = self._packed(totals, waited)
        sums = {name: carried[name] + packed[name] for name in self._dtypes}
        if self._example.summaries:
            sums["summaries"] = merged(carried["summaries"], totals.summaries)
        return {**packed, **sums}

    def unpack(self, carried: dict[str, Any]) -> tuple[Totals, tf.Tensor]:
        """Returns the totals that the loop has carried, and the seconds of waiting."""
        flat: list[Any] = [None] * len(self._sums)
        for name in self._dtypes:
            places = self._places(name)
            sizes = [self._sums[i].shape.num_elements() for i in places]
            for i, part in zip(places, tf.split(carried[name], sizes), strict=True):
                flat[i] = tf.reshape(part, self._sums[i].shape)
        *flat, waited = flat
        tree = tf.nest.pack_sequence_as(_sums_of(self._example), flat)
        scalars = dict(self._example.scalars)
        if scalars:
            scalars = dict(zip(scalars, tf.unstack(carried["scalars"]), strict=True))
        return Totals(*tree, scalars, carried.get("summaries", {})), waited

    def _packed(self, totals: Totals, waited: tf.Tensor) -> dict[str, Any]:
        flat = [*tf.nest.flatten(_sums_of(totals)), waited]
        packed = {n: _joined([flat[i] for i in self._places(n)]) for n in self._dtypes}
        if self._example.scalars:
            values = [totals.scalars[name] for name in self._example.scalars]
            packed["scalars"] = tf.stack(values)
        if self._example.summaries:
            packed["summaries"] = totals.summaries
        return packed

    def _places(self, dtype: str) -> list[int]:
        """Returns where the sums of a dtype stand among all sums."""
        return [i for i, x in enumerate(self._sums) if x.dtype.name == dtype]


class Stretch:
    """The steps from one boundary to the next, as a loop in a graph."""

    def __init__(
        self,
        plan: Plan,
        step_fn: StepFn,
        zeros: Callable[[], Totals],
        *,
        peers: Peers | None,
        stop_at_nonfinite: bool,
        pass_start: Any,
    ) -> None:
        """Takes what a step does, see `CompiledLoop`.

        Args:
          plan: how a step's batches are taken.
          step_fn: the step.
          zeros: returns the totals before the first step.
          peers: other processes that run the loop in step; None for this one alone.
          stop_at_nonfinite: whether the loop ends after a step whose loss is not
            finite.
          pass_start: step at which the pass over the data began.
        """
        self._plan = plan
        self._step_fn = step_fn
        self._zeros = zeros
        self._peers = peers
        # Another process' loss may still be finite: they find out at the boundary.
        self._watch_each_step = stop_at_nonfinite and peers is None
        self._pass_start = pass_start

    def __call__(
        self,
        iterator: Any,
        start: tf.Tensor,
        stop: tf.Tensor,
        *,
        showing: Showing | None = None,
        each_loss: EachLoss | tuple[()] = (),
    ) -> Any:
        """Runs the steps up to one boundary, inside of the graph.

        Each value that the loop carries costs about as much as an operation in each
        step. So sums are packed, and a value that nobody asks for is left out.

        Args:
          iterator: iterator over the plan's dataset.
          start: int64 scalar, global step before the first step.
          stop: int64 scalar, the boundary.
          showing: what the last step shows of itself, or each; None for nothing.
          each_loss: losses of the call's earlier steps; empty to keep none.

        Returns:
          The step reached (int64 scalar); whether more data are left (bool scalar); the
          first step whose loss was not finite (int64 scalar, -1 without any); the
          seconds that the steps waited for input (float32 scalar); the totals over
          these steps; and `each_loss` with theirs.
        """
        plan, zeros = self._plan, self._zeros()
        packing, last = TotalsPacking(zeros), stop
        if plan.num_steps is not None:
            data_end = tf.cast(self._pass_start, tf.int64) + plan.num_steps
            last = tf.minimum(stop, data_end)

        carried = {"step": start, **packing.zeros()}
        if plan.asks:
            carried["more"] = tf.constant(True)
        if each_loss:
            carried["each_loss"] = each_loss
        none = tf.constant(-1, tf.int64)
        if self._watch_each_step:
            carried["finite"] = tf.constant(True)
        else:
            carried["nonfinite"] = none
        if showing is None or not showing.each:
            plain = last if showing is None else tf.minimum(last, stop - 1)
            carried = self._steps(iterator, carried, plain, self._step_fn, packing)
        if showing is not None:
            states = showing.summaries.zeros()
            packing = TotalsPacking(dataclasses.replace(zeros, summaries=states))
            carried["summaries"] = states
            carried = self._steps(iterator, carried, last, showing.step_fn, packing)
        step = carried["step"]
        if self._watch_each_step:
            nonfinite = tf.where(carried["finite"], none, step)
        else:
            nonfinite = carried["nonfinite"]
        more = carried.get("more", tf.constant(True))
        if plan.num_steps is not None:
            # A plan that asks finds the end by wanting a step beyond it. So does this.
            more = stop <= data_end
        totals, waited = packing.unpack(carried)
        return step, more, nonfinite, waited, totals, carried.get("each_loss", ())

    def _steps(
        self,
        iterator: Any,
        carried: dict[str, Any],
        until: tf.Tensor,
        step_fn: StepFn,
        packing: TotalsPacking,
    ) -> dict[str, Any]:
        """Runs steps while there is no reason to stop.

        Args:
          iterator: iterator over the plan's dataset.
          carried: tensors that go from step to step, by name.
          until: int64 scalar, step to stop at.
          step_fn: the step.
          packing: packing of its totals.

        Returns:
          The tensors after the last step.
        """
        plan = self._plan

        def one(
            batches: Any, carried: dict[str, Any], waited: tf.Tensor
        ) -> dict[str, Any]:
            totals = step_fn(batches, carried["step"])
            step = carried["step"] + 1
            after = {"step": step, **packing.plus(carried, totals, waited)}
            if "each_loss" in carried:
                after["each_loss"] = carried["each_loss"].plus(carried["step"], totals)
            finite = tf.math.is_finite(totals.loss)
            if self._watch_each_step:
                return {**after, "finite": finite}
            first = tf.logical_and(carried["nonfinite"] < 0, ~finite)
            return {**after, "nonfinite": tf.where(first, step, carried["nonfinite"])}

        def goes_on(carried: dict[str, Any]) -> tf.Tensor:
            on = carried["step"] < until
            for flag in ("more", "finite"):
                if flag in carried:
                    on = tf.logical_and(on, carried[flag])
            return on

        def body(carried: dict[str, Any]) -> tuple[dict[str, Any]]:
            timed = Timed(iterator, carried["step"], now)
            if not plan.asks:
                batches = plan.take(timed)
                return (one(batches, carried, timed.waited()),)
            more, take = plan.try_take(timed)
            if self._peers is not None:
                more = self._peers.anywhere(more)
            state = {key: carried[key] for key in carried if key != "more"}
            state = plan.where(more, lambda: one(take(), state, timed.waited()), state)
            return ({**state, "more": more},)

        return tf.while_loop(goes_on, body, (carried,))[0]


def packed(tree: Any) -> dict[str, tf.Tensor]:
    """Returns all tensors of a nest, joined into one vector for each dtype."""
    flat = tf.nest.flatten(tree)
    names = sorted({tensor.dtype.name for tensor in flat})
    return {name: _joined([t for t in flat if t.dtype.name == name]) for name in names}


def unpacked(vectors: dict[str, np.ndarray], spec: Any) -> Any:
    """Returns the nest of arrays that `packed` has joined.

    Args:
      vectors: one vector for each dtype, by its name.
      spec: the nest, of type specs with static shapes.
    """
    taken = dict.fromkeys(vectors, 0)
    flat = []
    for leaf in tf.nest.flatten(spec):
        name, size = leaf.dtype.name, leaf.shape.num_elements()
        part = vectors[name][taken[name] : taken[name] + size]
        flat.append(part.reshape(leaf.shape.as_list()))
        taken[name] += size
    return tf.nest.pack_sequence_as(spec, flat)


def _sums_of(totals: Totals) -> Any:
    """Returns the totals without scalars and summaries, which are no sums."""
    return totals.as_tree()[:4]


def _joined(tensors: list[tf.Tensor]) -> tf.Tensor:
    # One operation, in place of one for each tensor and another one.
    if all(tensor.shape.rank == 0 for tensor in tensors):
        return tf.stack(tensors)
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
