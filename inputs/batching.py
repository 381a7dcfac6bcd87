"""Sharding, epochs and batches, which every input_fn here shares.

A pipeline yields *per-replica* batches, and the driver takes one for each local
replica, in replica order. So L consecutive batches of a pipeline with L replicas are
that pipeline's part of one global batch.
"""

import dataclasses
import numbers

import tensorflow as tf

from pipeline import ModeKeys, RefusedValueError


@dataclasses.dataclass(frozen=True)
class Batching:
    """The splitting, repeating and batching of one pipeline's examples in one mode.

    Attributes:
      mode: one of `ModeKeys`.
      context: this pipeline's number, and the number of pipelines and replicas.
      batch_size: examples in a batch of one replica.
      num_epochs: passes over the data; None is forever. 1 outside of TRAIN.
      drop_remainder: whether an incomplete last batch is dropped. Endless data have no
        last batch: it is True for them, for a static batch dimension.
      first_batch: batches of this pipeline to leave out at the beginning; used by
        `row_numbers` alone.
    """

    mode: str
    context: tf.distribute.InputContext
    batch_size: int
    num_epochs: int | None
    drop_remainder: bool
    first_batch: int = 0

    @property
    def is_training(self) -> bool:
        """Whether to shuffle and repeat."""
        return self.mode == ModeKeys.TRAIN

    @property
    def num_pipelines(self) -> int:
        """Pipelines that share the data, each with examples of its own."""
        return self.context.num_input_pipelines

    @property
    def pipeline_id(self) -> int:
        """This pipeline's number, from 0."""
        return self.context.input_pipeline_id

    def shard(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Keeps every `num_pipelines`-th element, beginning with this pipeline's."""
        if self.num_pipelines == 1:
            return dataset
        return dataset.shard(self.num_pipelines, self.pipeline_id)

    def shuffle_and_repeat(
        self, dataset: tf.data.Dataset, *, buffer_size: int | None, seed: int | None
    ) -> tf.data.Dataset:
        """Shuffles within each epoch, in TRAIN only, and repeats.

        Args:
          dataset: one epoch of this pipeline's examples.
          buffer_size: examples in the shuffle buffer; None or 0 keeps the order.
          seed: seed of the order; None: each run has another order.
        """
        # repeat() directly after shuffle(): TensorFlow then saves the shuffle's seeds
        # with the iterator, and a resumed run has the same order in later epochs.
        if self.is_training and buffer_size:
            dataset = dataset.shuffle(buffer_size, seed=seed)
        return dataset if self.num_epochs == 1 else dataset.repeat(self.num_epochs)

    def batch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Makes batches for one replica."""
        return dataset.batch(self.batch_size, drop_remainder=self.drop_remainder)

    def for_model(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Leaves the labels out where `mode` has none, and prefetches."""
        has_labels = isinstance(dataset.element_spec, tuple)
        if has_labels and self.mode == ModeKeys.PREDICT:
            dataset = dataset.map(lambda features, labels: features)
        return dataset.prefetch(tf.data.AUTOTUNE)


def of_known_rows(ragged: tf.RaggedTensor, size: int | None) -> tf.RaggedTensor:
    """Returns a ragged tensor that says how many rows it has.

    TensorFlow forgets it on the way, and the driver knows the size of a batch by it.

    Args:
      ragged: tensor of `size` rows.
      size: its rows; None where they are not known.
    """
    if size is None:
        return ragged
    splits = tf.ensure_shape(ragged.row_splits, [size + 1])
    return tf.RaggedTensor.from_row_splits(ragged.values, splits, validate=False)


def make_batching(
    mode: str,
    input_context: tf.distribute.InputContext | None,
    *,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    first_batch: int = 0,
) -> Batching:
    """Checks the arguments that every input_fn here takes.

    Args:
      mode: one of `ModeKeys`.
      input_context: this pipeline; None is one pipeline that feeds one replica.
      batch_size: examples in a global batch, of all replicas together.
      batch_size_per_replica: examples in the batch of one replica. Exactly one of the
        two batch sizes is given.
      num_epochs: passes over the data in TRAIN; None is forever. EVAL and PREDICT
        always make one.
      drop_remainder: whether an incomplete last batch is left out. A TPU needs that.
        EVAL and PREDICT then lack the examples of that batch, unless the batch size
        divides the number of examples.
      first_batch: batches of this pipeline to leave out at the beginning.

    Raises:
      ValueError: the mode is unknown, a number is not positive, both batch sizes or
        none are given, or the replicas cannot share a global batch equally.
    """
    modes = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
    if mode not in modes:
        raise RefusedValueError(
            f"mode is {mode!r}, not one of {modes}: write mode=ModeKeys.TRAIN."
        )
    context = input_context or tf.distribute.InputContext()
    if num_epochs is not None:
        num_epochs = _check_positive(num_epochs, "num_epochs")
    is_training = mode == ModeKeys.TRAIN
    num_epochs = num_epochs if is_training else 1
    return Batching(
        mode=mode,
        context=context,
        batch_size=_per_replica(batch_size, batch_size_per_replica, context),
        num_epochs=num_epochs,
        drop_remainder=drop_remainder or num_epochs is None,
        first_batch=first_batch,
    )


def _per_replica(
    batch_size: int | None,
    batch_size_per_replica: int | None,
    context: tf.distribute.InputContext,
) -> int:
    if (batch_size is None) == (batch_size_per_replica is None):
        raise RefusedValueError(
            f"batch_size={batch_size} and batch_size_per_replica="
            f"{batch_size_per_replica}: give exactly one, batch_size for the examples "
            "of all replicas together or batch_size_per_replica for those of one."
        )
    if batch_size is None:
        return _check_positive(batch_size_per_replica, "batch_size_per_replica")
    batch_size = _check_positive(batch_size, "batch_size")
    replicas = context.num_replicas_in_sync
    below = batch_size // replicas * replicas
    if below != batch_size:
        nearest = [str(size) for size in (below, below + replicas) if size]
        raise RefusedValueError(
            f"batch_size={batch_size} is the global batch and does not divide among "
            f"{replicas} replicas. Write batch_size={' or '.join(nearest)}, or give "
            "batch_size_per_replica."
        )
    return context.get_per_replica_batch_size(batch_size)


def _check_positive(number: int | None, name: str) -> int:
    is_integer = isinstance(number, numbers.Integral) and not isinstance(number, bool)
    if not is_integer or number < 1:
        raise RefusedValueError(
            f"{name} is {number!r}, not a positive integer: write {name}=10, say."
        )
    return int(number)
