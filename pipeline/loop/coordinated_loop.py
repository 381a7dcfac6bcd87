"""Trains with parameter servers: the chief hands pieces of work to the workers.

Keras' own counters lose updates when several workers add to them. And a piece that a
worker did not finish before it died is done again by another. So nothing is counted on
the servers. Each piece returns its sums and its number of steps. What was returned
counts once, and the chief sets the global step and the optimizers' counts from it.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from pipeline.contract.train_op import TrainOp
from pipeline.feed.servers_feed import WorkerIterators
from pipeline.loop import losses
from pipeline.loop.compiled_loop import CompiledLoop
from pipeline.loop.losses import Totals
from pipeline.loop.metrics import MetricSet
from pipeline.loop.stretch import Segment, Showing, packed, unpacked
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy import parameter_server
from pipeline.strategy.parameter_server import ParameterServers
from pipeline.tracing.compiling import compiled

# Two, so that the others can take a slow worker's second piece.
_PIECES_PER_WORKER = 2
# Pause before steps are handed out again that no worker had data for.
_PAUSE_SECS = 0.02
# The job of a resource that TensorFlow made in this process before it connected to the
# cluster. No worker reaches it.
_HERE = "/job:localhost"
# Part of the error of a worker that TensorFlow has handed no table of its own.
_NO_TABLE = "Placeholder' with dtype resource"


@dataclasses.dataclass(frozen=True)
class Piece:
    """A few steps that one worker did in one go.

    Attributes:
      worker: index of the worker.
      first: step number before the first step.
      step: step number after the last step.
      more: whether data were left to the worker.
      nonfinite_step: first step whose loss was NaN or infinite; -1 without any.
      waited: seconds for which the worker waited for its input.
      totals: totals over these steps, as arrays.
    """

    worker: int
    first: int
    step: int
    more: bool
    nonfinite_step: int
    waited: float
    totals: Totals

    @property
    def num_steps(self) -> int:
        """Steps that the worker did."""
        return self.step - self.first


class CoordinatedLoop:
    """Runs steps on the workers through one or more boundaries, as `CompiledLoop` does.

    for each boundary:
        while steps are missing, data go on and the loss is finite:
            schedule pieces of a few steps, each with step numbers of its own
            wait for all pieces, and add up what they return
        set the optimizers' counts

    model_fn and `TrainOp(every=)` get one of the piece's numbers as `step`. So each
    number is used once, though not in order. Where the data end or a worker dies, some
    numbers are used again.
    """

    def __init__(
        self,
        loop: CompiledLoop,
        metrics: MetricSet,
        ops: Sequence[TrainOp],
        *,
        strategy: ParameterServers,
        at_end: Callable[[tf.Tensor], dict[str, tf.Tensor]],
        stop_at_nonfinite: bool,
    ) -> None:
        """Takes over how the ops' optimizers count their updates.

        Args:
          loop: loop that does a piece on a worker.
          metrics: metrics whose increments are in the totals.
          ops: train ops, whose optimizers count their updates.
          strategy: strategy whose workers compute.
          at_end: takes the step at a boundary (int64 scalar), and returns float32
            scalars by name, which join the step's own.
          stop_at_nonfinite: whether training ends where a loss is not finite. The
            pieces that are handed out are done before.
        """
        self._loop = loop
        self._metrics = metrics
        self._ops = ops
        self._strategy = strategy
        self._at_end = at_end
        self._stop_at_nonfinite = stop_at_nonfinite
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._calls: dict[Showing | None, Any] = {}
        self._row_spec: Any = None
        for op in ops:
            _count_atomically(op.optimizer)

    def __call__(
        self,
        iterator: WorkerIterators,
        start: int,
        boundaries: Sequence[int],
        *,
        tensors: bool = False,
    ) -> list[Segment]:
        """Runs until the last boundary or the input's end.

        Args:
          iterator: the workers' iterators.
          start: global step before the first step.
          boundaries: global steps to pass through, in order.
          tensors: whether segments have the tensors of their last step.

        Returns:
          One segment for each boundary that was reached. Where the input ended before
          a boundary, the last segment ends there.

        Raises:
          ValueError: model_fn uses a table or variable that no worker reaches.
          PeerLostError: no worker answers any more, or a task is stopped.
        """
        segments: list[Segment] = []
        for boundary in boundaries:
            showing = self._loop.showing_at(boundary, tensors)
            segments.append(self._segment(iterator, start, boundary, showing))
            start = segments[-1].step
            if segments[-1].ended or start < boundary:
                break
        return segments

    def _segment(
        self,
        iterator: WorkerIterators,
        start: int,
        stop: int,
        showing: Showing | None,
    ) -> Segment:
        """Hands out steps until the boundary is reached; returns what was done."""
        began = idle_since = time.monotonic()
        counts = {id(op.optimizer): _count(op.optimizer) for op in self._ops}
        pieces: list[Piece] = []
        step, bad, ended = start, None, False
        while step < stop and not ended and not (bad and self._stop_at_nonfinite):
            # The last step is shown: one worker does it when all others are done.
            waits = showing is not None and step < stop - 1
            given = (step, stop - 1, None) if waits else (step, stop, showing)
            done = self._hand_out(iterator, *given)
            pieces += done
            if done:
                idle_since = time.monotonic()
            else:
                time.sleep(_PAUSE_SECS)
            step = start + sum(piece.num_steps for piece in pieces)
            found = [p.nonfinite_step for p in pieces if p.nonfinite_step >= 0]
            bad = min(found, default=None)
            ended = self._have_ended(iterator, idle_since)
        # Counted from what was returned: the optimizers themselves have also counted
        # pieces that are done twice, as their first worker died. Several ops may share
        # an optimizer, so all are added before any count is set.
        for op in self._ops:
            counts[id(op.optimizer)] += sum(op.updates(p.first, p.step) for p in pieces)
        for op in self._ops:
            op.optimizer.iterations.assign(counts[id(op.optimizer)])
        at_end = self._at_end(tf.constant(step, tf.int64))
        totals = self._sum(pieces)
        return Segment(
            step=step,
            num_steps=step - start,
            seconds=time.monotonic() - began,
            totals=dataclasses.replace(
                totals,
                scalars={**losses.means(totals.scalars), **at_end},
                summaries={},
            ),
            metrics=self._metrics.results([totals.metrics]),
            nonfinite_step=bad,
            ended=ended,
            # Workers compute at the same time, and no worker waits for another one.
            waited=sum(p.waited for p in pieces) / self._strategy.num_workers,
            **self._loop.seen(showing, totals.summaries, step == stop),
        )

    def _hand_out(
        self,
        iterator: WorkerIterators,
        start: int,
        stop: int,
        showing: Showing | None,
    ) -> list[Piece]:
        """Lets the workers do the steps from `start` to `stop`; returns what they did.

        Where a worker's data end in the middle of a piece, fewer steps were done.

        Raises:
          ValueError: model_fn uses a table that a worker was not handed.
          PeerLostError: no worker answers any more, or a task is stopped.
        """
        if showing not in self._calls:
            work = functools.partial(self._on_worker, showing)
            self._calls[showing] = compiled(work)
        workers = self._strategy.num_workers - len(iterator.ended)
        share = -(-(stop - start) // (workers * _PIECES_PER_WORKER))
        size = min(share, self._strategy.steps_per_closure)
        results = []
        for first in range(start, stop, size):
            numbers = tf.constant([first, min(first + size, stop)], tf.int64)
            args = iterator.per_worker, numbers
            results.append(self._coordinator.schedule(self._calls[showing], args=args))
        try:
            parameter_server.wait_until_done(self._coordinator, self._strategy)
            fetched = self._coordinator.fetch(results)
        except tf.errors.InvalidArgumentError as error:
            if _NO_TABLE not in str(error):
                raise
            raise RefusedValueError(
                "model_fn looks up a table inside of tf.cond, tf.case or "
                "tf.switch_case, where TensorFlow gives a parameter server's workers "
                "no table: write ids = table.lookup(words) before it."
            ) from error
        pieces = [self._piece(row) for row in fetched]
        iterator.count(pieces)
        iterator.ended.update(piece.worker for piece in pieces if not piece.more)
        return [piece for piece in pieces if piece.num_steps]

    def _on_worker(
        self, showing: Showing | None, iterator: Any, numbers: tf.Tensor
    ) -> Any:
        """Does a piece, inside of the graph that a worker runs.

        Args:
          showing: what is shown of its one step; None for nothing.
          iterator: the worker's own iterator.
          numbers: int64 vector of two, the step numbers to start from and to stop at.
            The piece is shorter where this worker's data end.

        Returns:
          The fields of `Piece`, packed into one vector a dtype, and the summaries.
        """
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        # Taken here: TensorFlow tells it at the top of a worker's function alone.
        self._strategy.running = worker
        try:
            step, more, nonfinite, waited, totals, _ = self._loop.stretch(
                iterator, numbers[0], numbers[1], showing=showing
            )
        finally:
            self._strategy.running = None
        check_captures(tf.compat.v1.get_default_graph())
        mine = tf.one_hot(worker, self._strategy.num_workers, dtype=tf.int64)
        self._strategy.worker_steps.assign_add(mine * (step - numbers[0]))
        tree = totals.as_tree()[:5]
        row = worker, numbers[0], step, more, nonfinite, waited, tree
        self._row_spec = tf.nest.map_structure(tf.TensorSpec.from_tensor, row)
        return packed(row), totals.summaries

    def _piece(self, returned: Any) -> Piece:
        """Returns the piece that a worker returned as vectors and summaries."""
        vectors, states = returned
        *numbers, tree = unpacked(vectors, self._row_spec)
        return Piece(*(number.item() for number in numbers), Totals(*tree, states))

    def _have_ended(self, iterator: WorkerIterators, idle_since: float) -> bool:
        """Whether every worker's data have ended, or the worker is gone.

        A worker counts as gone where the others have ended and no step was done for
        `lost_after_secs`: the others get the steps that are left, and have no data.
        """
        left = set(range(self._strategy.num_workers)) - iterator.ended
        gone = time.monotonic() - idle_since > self._strategy.lost_after_secs
        if left and iterator.ended and gone:
            logging.warning(
                "train | the data of workers %s have ended; what is left of those of "
                "%s is not used, as they have not answered for %g s.",
                sorted(iterator.ended),
                sorted(left),
                self._strategy.lost_after_secs,
            )
            return True
        return not left

    def _sum(self, pieces: Sequence[Piece]) -> Totals:
        """Returns the sums over pieces, in float64, with the last step's scalars."""
        totals = [piece.totals for piece in pieces]
        if not totals:
            zero = np.zeros([])
            return Totals(zero, zero, self._metrics.zeros(), zero, {})
        last = max(pieces, key=lambda piece: piece.step).totals
        return Totals(
            np.sum([t.loss for t in totals], dtype=np.float64),
            np.sum([t.weight for t in totals], dtype=np.float64),
            self._metrics.total([t.metrics for t in totals]),
            np.sum([t.examples for t in totals], dtype=np.float64),
            last.scalars,
            last.summaries,
        )


def check_captures(graph: Any) -> None:
    """Refuses a graph that uses what no worker reaches.

    TensorFlow would have a worker ask for it without end.

    Args:
      graph: graph of a function for workers.

    Raises:
      ValueError: the graph uses a table or variable of this process.
    """
    for value, _ in graph.captures:
        if value.dtype == tf.resource and value.device.startswith(_HERE):
            raise RefusedValueError(
                "model_fn uses a lookup table or a variable that is none of its "
                "modules, and was made where a parameter server's workers cannot "
                "reach it: write Estimator(modules={'table': make_table, ...}), and "
                "take it as an argument of model_fn."
            )


def _count(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns how many updates an optimizer has counted."""
    return int(optimizer.iterations.numpy())


def _count_atomically(optimizer: keras.optimizers.Optimizer) -> None:
    """Lets several workers add to an optimizer's count of updates.

    Keras reads the count, adds to it and writes it, which loses updates of others. The
    learning rate and Adam's correction follow the count between boundaries.
    """
    count = optimizer.iterations
    count.assign_add = lambda value: count.value.assign_add(tf.cast(value, count.dtype))
