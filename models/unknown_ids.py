"""What becomes of ids that a table has no row for."""

import dataclasses

import tensorflow as tf

from pipeline.strategy.replicas import has_one_trace
from pipeline.tracing import compiling

CHOICES = ("error", "zero", "hash")

# Of the finalizer of SplitMix64: shifts to the right, and factors between them.
_SHIFTS = (30, 27, 31)
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


@dataclasses.dataclass(frozen=True)
class UnknownIds:
    """What is done about ids below 0, or `num_ids` or more.

    Attributes:
      oov: one of `CHOICES`.
      num_ids: number of ids that are known.
      num_buckets: rows behind these for the others, with oov='hash'.
    """

    oov: str
    num_ids: int
    num_buckets: int

    def known(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns which ids have a row of their own, bool `[n]`."""
        return tf.logical_and(ids >= 0, ids < self.num_ids)

    def rows_of(self, ids: tf.Tensor, table: str) -> tf.Tensor:
        """Returns the number of the row to read for each id, int64 `[n]`.

        Args:
          ids: int64 `[n]`.
          table: how the table is called, for the error that names an id.
        """
        if self.oov == "error":
            return ids if under_xla() else self._checked(ids, table)
        known = self.known(ids)
        if self.oov == "hash":
            bucket = self.num_ids + _hashed(ids, self.num_buckets)
            return tf.where(known, ids, bucket)
        # Of another id of the batch: the row of an id that is in no batch stays alone.
        other = tf.reduce_max(tf.where(known, ids, tf.zeros_like(ids)))
        return tf.where(known, ids, other)

    def marked(self, rows: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows, with NaN for unknown ids where nothing else tells of them.

        XLA reads the first or the last row in the place of an unknown one.

        Args:
          rows: `[n, dim]`, as they were read.
          ids: int64 `[n]`.
        """
        if self.oov != "error" or not under_xla():
            return rows
        return tf.where(self.known(ids)[:, None], rows, float("nan"))

    def _checked(self, ids: tf.Tensor, table: str) -> tf.Tensor:
        """Returns the ids; on a GPU TensorFlow would give vectors of 0 in silence."""
        least, most = tf.reduce_min(ids), tf.reduce_max(ids)
        # `tf.debugging.Assert` would put a branch into the graph, which costs more.
        check = tf.raw_ops.Assert(
            condition=tf.logical_and(least >= 0, most < self.num_ids),
            data=[
                # Without quotes, which TensorFlow would escape.
                f"{table} is given the id".replace("'", ""),
                tf.where(least < 0, least, most),
                f"and knows 0 to {self.num_ids - 1}: write input_dim= of all ids, or "
                "say by oov= what becomes of others.",
            ],
        )
        with tf.control_dependencies([check] if check is not None else []):
            return tf.identity(ids)


def under_xla() -> bool:
    """Whether XLA compiles what is traced, which drops checks without a word."""
    return compiling.is_for_xla() or has_one_trace(tf.distribute.get_strategy())


def _hashed(ids: tf.Tensor, num_buckets: int) -> tf.Tensor:
    """Returns a bucket for each id: the finalizer of SplitMix64, modulo the number.

    By whole numbers of 64 bits alone, so that it is the same on any device.
    """
    mixed = ids
    for shift, factor in zip(_SHIFTS, (*_FACTORS, 1), strict=True):
        # TensorFlow's shift keeps the sign; here zeros come in from the left.
        shifted = tf.bitwise.right_shift(mixed, tf.constant(shift, tf.int64))
        zeros = tf.constant((1 << (64 - shift)) - 1, tf.int64)
        mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.bitwise_and(shifted, zeros))
        mixed *= tf.constant(factor, tf.int64)
    return tf.math.floormod(mixed, num_buckets)
