# SPDX-License-Identifier: Apache-2.0
"""Batch sizes, epochs and sharding, as every input_fn here takes them."""

import dataclasses
import numbers
from typing import Any

import tensorflow as tf

from gin_estimator import ModeKeys, errors

_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


@dataclasses.dataclass(frozen=True)
class Batching:
    """How one pipeline divides its examples into batches of one replica.

    Attributes:
      mode: one of `ModeKeys`.
      num_pipelines: pipelines that share the data.
      pipeline: index of this pipeline.
      batch_size: examples in a batch of one replica.
      num_epochs: passes over the data; None without end.
      drop_remainder: whether an incomplete last batch is dropped.
      first_batch: number of this pipeline's batches to leave out at the start.
    """

    mode: str
    num_pipelines: int
    pipeline: int
    batch_size: int
    num_epochs: int | None
    drop_remainder: bool
    first_batch: int

    @property
    def is_training(self) -> bool:
        """Whether to shuffle and repeat."""
        return self.mode == ModeKeys.TRAIN

    def shard(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Keeps this pipeline's elements."""
        if self.num_pipelines == 1:
            return dataset
        return dataset.shard(self.num_pipelines, self.pipeline)

    def batch(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Makes batches of one replica."""
        return dataset.batch(self.batch_size, drop_remainder=self.drop_remainder)

    def shuffle_and_repeat(
        self, dataset: tf.data.Dataset, *, buffer_size: int | None, seed: int | None
    ) -> tf.data.Dataset:
        """Returns the examples, in TRAIN shuffled in each epoch, and repeated.

        A position in the input can only be saved if `repeat` directly follows `shuffle`.

        Args:
          dataset: this pipeline's examples.
          buffer_size: number of examples among which the next one is drawn; None or 0 keeps
            the order.
          seed: seed of the order; None for another order in each run.
        """
        if not self.is_training:
            return dataset
        if buffer_size:
            dataset = dataset.shuffle(buffer_size, seed=seed)
        return dataset.repeat(self.num_epochs)

    def finish(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Removes the labels in PREDICT, and reads ahead."""
        if self.mode == ModeKeys.PREDICT and isinstance(batches.element_spec, tuple):
            batches = batches.map(lambda features, labels: features)
        return batches.prefetch(tf.data.AUTOTUNE)


def element(features: Any, labels: Any) -> Any:
    """Returns an element of a dataset: features alone if labels are None."""
    return features if labels is None else (features, labels)


def is_integer(value: Any) -> bool:
    """Returns whether a value is an integer, also of NumPy, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


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
    """Returns the checked arguments that every input_fn here takes.

    Args:
      mode: one of `ModeKeys`.
      input_context: this pipeline; None for one pipeline of one replica.
      batch_size: examples in a global batch. Set exactly one of the two batch sizes.
      batch_size_per_replica: examples in a batch of one replica.
      num_epochs: passes in TRAIN; None without end. EVAL and PREDICT make one.
      drop_remainder: whether an incomplete last batch is dropped, in each mode.
      first_batch: number of this pipeline's batches to leave out at the start.

    Raises:
      UserValueError: an argument is out of range, or replicas cannot share the batch equally.
    """
    if mode not in _MODES:
        raise errors.UserValueError(f"mode is {mode!r}: expected one of {_MODES}.")
    if (batch_size is None) == (batch_size_per_replica is None):
        raise errors.UserValueError(
            f"batch_size is {batch_size} and batch_size_per_replica is {batch_size_per_replica}: "
            "expected exactly one of them. Set batch_size to the examples of all replicas."
        )
    sizes = {
        "batch_size": batch_size,
        "batch_size_per_replica": batch_size_per_replica,
        "num_epochs": num_epochs,
    }
    for name, value in sizes.items():
        if value is not None and (not is_integer(value) or value < 1):
            raise errors.UserValueError(f"{name} is {value!r}: expected a positive integer.")
    context = input_context or tf.distribute.InputContext()
    if batch_size is not None:
        replicas = context.num_replicas_in_sync
        batch_size_per_replica, rest = divmod(batch_size, replicas)
        if rest:
            below = batch_size - rest
            nearest = [size for size in (below, below + replicas) if size]
            raise errors.UserValueError(
                f"batch_size is {batch_size}: expected a multiple of {replicas}, the number of "
                f"replicas. Set batch_size={' or '.join(map(str, nearest))}."
            )
    if not is_integer(first_batch) or first_batch < 0:
        raise errors.UserValueError(f"first_batch is {first_batch!r}: expected 0 or more.")
    num_epochs = num_epochs if mode == ModeKeys.TRAIN else 1
    return Batching(
        mode=mode,
        num_pipelines=context.num_input_pipelines,
        pipeline=context.input_pipeline_id,
        batch_size=batch_size_per_replica,
        num_epochs=num_epochs,
        # Data without end have only full batches, whose size is then static.
        drop_remainder=drop_remainder or num_epochs is None,
        first_batch=first_batch,
    )
