"""Losses as weighted means, and sums of them that add up over anything.

A loss is kept as sum(loss * weights) and sum(weights): over replicas, micro-batches,
steps and loops these add up, and their quotient is the mean over all examples.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.contract.spec import EstimatorSpec
from pipeline.contract.train_op import MeanOverExamples, SpecError, TrainOp
from pipeline.feed.batch import Batch, rows_in
from pipeline.loop.metrics import MetricSet
from pipeline.mistakes.checks import kind_of
from pipeline.strategy.peers import Peers
from pipeline.tracing.summary_states import States, SummarySet, merged

# Far below the rounding of any other weight, and far above the least float32.
_LEAST_WEIGHT = 1e-20


@dataclasses.dataclass(frozen=True)
class Totals:
    """Sums over examples, which add up over replicas, steps and loops.

    Attributes:
      loss: float32 scalar, sum(loss * weights) + sum(weights) * regularization.
      weight: float32 scalar, sum(weights).
      metrics: increments of the metrics' states, by name.
      examples: float32 scalar, number of examples; whole numbers add up exactly to
        2**24 in one call of the loop, and without bound over calls.
      scalars: float32 [sum over examples, examples] of the last step, by name, so that
        scalars add up over replicas, too.
      summaries: states of the summaries, by name; empty in a step without them.
    """

    loss: tf.Tensor
    weight: tf.Tensor
    metrics: dict[str, list[tf.Tensor]]
    examples: tf.Tensor
    scalars: dict[str, tf.Tensor]
    summaries: States = dataclasses.field(default_factory=dict)

    def as_tree(self) -> tuple[Any, ...]:
        """Returns the fields as a nest, for `tf.while_loop` and `strategy.run`."""
        sums = self.loss, self.weight, self.metrics, self.examples
        return *sums, self.scalars, self.summaries

    def plus(self, more: "Totals") -> "Totals":
        """Returns the sum of two parts of one step."""
        sums = tf.nest.map_structure(tf.add, self.as_tree()[:5], more.as_tree()[:5])
        return Totals(*sums, merged(self.summaries, more.summaries))

    @classmethod
    def zeros(cls, metrics: MetricSet, scalars: Sequence[str]) -> "Totals":
        """Returns the totals before the first step.

        Args:
          metrics: the metrics of the mode.
          scalars: names of the scalars.
        """
        zero = tf.zeros([])
        none = dict.fromkeys(scalars, tf.zeros([2]))
        return cls(zero, zero, metrics.zeros(), zero, none)


class EachLoss(NamedTuple):
    """The loss of each step of a call, while it runs.

    Attributes:
      first: int64 scalar, global step before the call's first step.
      rows: float32 `[steps, 2]`: the losses' sum and the weights' sum of each step.
    """

    first: tf.Tensor
    rows: tf.Tensor

    @classmethod
    def zeros(cls, first: tf.Tensor, last: tf.Tensor) -> "EachLoss":
        """Returns what is known before the steps from `first` to `last`."""
        return cls(first, tf.zeros(tf.stack([last - first, 2])))

    def plus(self, step: tf.Tensor, totals: Totals) -> "EachLoss":
        """Returns what is known after one more step.

        Args:
          step: int64 scalar, global step before it.
          totals: totals of the step.
        """
        place = tf.reshape(step - self.first, [1, 1])
        row = tf.stack([totals.loss, totals.weight])[tf.newaxis]
        return self._replace(rows=tf.tensor_scatter_nd_update(self.rows, place, row))

    def sums(self, peers: Peers | None) -> tf.Tensor:
        """Returns the rows, added up over all processes.

        Args:
          peers: processes that run the loop in step; None for this one alone.
        """
        return self.rows if peers is None else peers.total(self.rows)


def mean(loss: Any, weights: Any, rows: Any) -> tuple[tf.Tensor, Any]:
    """Returns the weighted mean over one batch and the sum of weights, in float32.

    Args:
      loss: per-example losses `[batch, ...]`, or a scalar that is their mean.
      weights: weights that broadcast to `loss`, or None for 1.
      rows: examples in the batch, the weight of a scalar.

    Raises:
      SpecError: the loss has an unknown rank, or a length other than the batch's.
    """
    loss = _floating("TrainOp.loss", loss)
    if loss.shape.rank is None:
        raise SpecError(
            "loss has a shape that cannot be known before it runs: give it one, "
            "loss = tf.ensure_shape(loss, [None])."
        )
    if loss.shape.rank == 0:
        return loss, float(rows) if isinstance(rows, int) else tf.cast(rows, tf.float32)
    if loss.shape[0] not in (None, rows if isinstance(rows, int) else None):
        batch = rows if isinstance(rows, int) else "any number of"
        raise SpecError(
            f"loss has shape {loss.shape} for a batch of {batch} examples: return "
            "per-example losses [batch, ...] or the scalar mean."
        )
    if weights is not None:
        weights = tf.broadcast_to(tf.cast(weights, tf.float32), tf.shape(loss))
        weight = tf.reduce_sum(weights)
        return tf.math.divide_no_nan(tf.reduce_sum(loss * weights), weight), weight
    # Without a weight that is computed, a step needs no guard against division by 0.
    if loss.shape.is_fully_defined() and loss.shape.num_elements():
        return tf.reduce_mean(loss), float(loss.shape.num_elements())
    size = tf.cast(tf.size(loss), tf.float32)
    return tf.math.divide_no_nan(tf.reduce_sum(loss), size), size


def objective(spec: EstimatorSpec, rows: Any) -> tuple[tf.Tensor, Any]:
    """Returns a spec's mean loss with its regularization, and its sum of weights.

    Args:
      spec: the EstimatorSpec of one batch.
      rows: examples in the batch.

    Raises:
      SpecError: the loss does not fit the batch, or a regularization is no scalar.
    """
    loss, weight = mean(spec.loss, spec.loss_weights, rows)
    for term in spec.regularization_losses:
        term = _floating("regularization_losses", term)
        if term.shape.rank not in (0, None):
            raise SpecError(
                f"regularization_losses holds a tensor of shape {term.shape}: reduce "
                "it to a scalar, or hand in network.losses."
            )
        loss += term
    return loss, weight


def weight_of_gradient(spec: EstimatorSpec, weight: Any) -> Any:
    """Returns the weight that a batch's gradient counts with beside others.

    It is never 0. So where no batch of a step has weight, the regularization counts, as
    it does where one replica takes one batch. Beside any other the least is nothing.

    Args:
      spec: the EstimatorSpec of the batch.
      weight: sum of weights that `objective` returned.
    """
    if spec.loss_weights is None or not spec.regularization_losses:
        return weight
    return tf.where(tf.equal(weight, 0), _LEAST_WEIGHT, weight)


def of_op(
    op: TrainOp, loss: tf.Tensor, weight: Any, rows: Any
) -> tuple[tf.Tensor, Any]:
    """Returns the mean that an op minimises, and the weight of its gradient.

    Args:
      op: train op of one batch.
      loss: mean that `objective` returned.
      weight: weight that `weight_of_gradient` returned.
      rows: examples in the batch.
    """
    if op.loss is not None:
        return mean(op.loss, None, rows)
    # Of a scalar the weight is the number of examples.
    by_example = isinstance(op.gradients, MeanOverExamples)
    return mean(loss, None, rows) if by_example else (loss, weight)


def _floating(field: str, value: Any) -> tf.Tensor:
    try:
        value = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{field} has {kind_of(value)}, not a tensor: compute one from the "
            "network's output inside of model_fn."
        ) from error
    if not value.dtype.is_floating:
        raise SpecError(
            f"{field} has dtype {value.dtype.name}; it must be floating point: write "
            "tf.cast(loss, tf.float32)."
        )
    return tf.cast(value, tf.float32)


def shared(weight: Any, share: tf.Tensor | None) -> Any:
    """Returns `weight`, or 0 where the batch is a stand-in that counts for nothing."""
    return weight if share is None else weight * share


def num_counted(batches: Sequence[Batch], strategy: tf.distribute.Strategy) -> Any:
    """Returns how many of a step's batches one replica computes on.

    Stand-ins come last, where the data have ended. One replica alone leaves them out,
    as they would move moving statistics; several may wait for each other in each.

    Args:
      batches: the replica's batches.
      strategy: strategy of the replicas.

    Returns:
      An int where all of them count, else an int32 scalar.
    """
    shares = [batch.share for batch in batches if batch.share is not None]
    if not shares or strategy.num_replicas_in_sync > 1:
        return len(batches)
    return len(batches) - len(shares) + tf.cast(tf.add_n(shares), tf.int32)


def totals_of(
    spec: EstimatorSpec,
    loss: tf.Tensor,
    weight: Any,
    batch: Batch,
    metrics: MetricSet,
    summaries: SummarySet | None = None,
) -> Totals:
    """Returns the totals of one batch.

    Args:
      spec: the EstimatorSpec that model_fn returned for the batch.
      loss: mean that `objective` returned.
      weight: sum of weights that `objective` returned.
      batch: one replica's batch.
      metrics: the metrics of the mode.
      summaries: the summaries to take; None for none.
    """
    weight = tf.convert_to_tensor(shared(weight, batch.share), tf.float32)
    rows = rows_in(batch.features)
    increments = metrics.increments(spec.metrics, rows, batch.share)
    if spec.loss.shape.rank == 1 and spec.loss_weights is None:
        count = weight  # The number of losses: one operation computes both.
    else:
        count = shared(tf.cast(rows, tf.float32), batch.share)
    # A stand-in's scalar may be NaN, and 0 * NaN would not be 0.
    scalars = {
        name: tf.stack([tf.math.multiply_no_nan(value, count), count])
        for name, value in spec.scalars.items()
    }
    states = summaries.of(spec, batch.share) if summaries else {}
    return Totals(loss * weight, weight, increments, count, scalars, states)


def means(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Returns each scalar's mean over examples, from `Totals.scalars`."""
    return {
        name: tf.math.divide_no_nan(pair[0], pair[1]) for name, pair in scalars.items()
    }


def mean_of_each(sums: Any) -> np.ndarray:
    """Returns the mean loss of each step, NaN where its weights are 0.

    Args:
      sums: what `EachLoss.sums` returned; empty for no steps.
    """
    loss, weight = np.asarray(sums, np.float64).reshape(-1, 2).T
    return np.divide(loss, weight, out=np.full(len(loss), np.nan), where=weight != 0)


def sum_over_replicas(strategy: tf.distribute.Strategy, tree: Any) -> Totals:
    """Adds up the totals of the local replicas.

    Args:
      strategy: the strategy that computed them.
      tree: `Totals.as_tree()` of each replica, as `strategy.run` returned it.
    """
    if strategy.num_replicas_in_sync == 1:
        return Totals(*tree)

    local = strategy.experimental_local_results
    *sums, summaries = tree
    states = [
        tf.nest.map_structure(lambda value, i=i: local(value)[i], summaries)
        for i in range(len(local(sums[0])))
    ]
    sums = tf.nest.map_structure(lambda value: tf.add_n(local(value)), sums)
    return Totals(*sums, functools.reduce(merged, states))
