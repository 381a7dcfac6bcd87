"""Sums, means and norms of gradients that stay rows.

The gradient of a table is `tf.IndexedSlices`: the rows that a batch used, some of them
several times. Made dense it would be as large as the table.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def each_row_once(gradient: Any, *, sparse: bool = True) -> Any:
    """Adds up repeated rows of a gradient.

    Optimizers would square each of them by itself, where the square of their sum is
    right.

    Args:
      gradient: tensor or IndexedSlices, also of several replicas.
      sparse: whether slices stay slices. A TPU needs False, for the number of distinct
        rows is not known before they are computed.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if not sparse:
        return dense(gradient)
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def dense(gradient: Any) -> tf.Tensor:
    """Returns a gradient as a tensor of its variable's shape."""
    return tf.convert_to_tensor(gradient)


def times(gradient: Any, factor: Any) -> Any:
    """Multiplies a gradient by a scalar."""
    if isinstance(gradient, tf.IndexedSlices):
        values = times(gradient.values, factor)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def squared_norm(gradient: Any, factor: Any = 1.0) -> tf.Tensor:
    """Returns the sum of squares of a gradient times a factor, float32 scalar."""
    once = each_row_once(gradient)
    values = once.values if isinstance(once, tf.IndexedSlices) else once
    return tf.reduce_sum(tf.square(tf.cast(values, tf.float32) * factor))


def of_one_dtype(gradients: Sequence[Any]) -> list[Any]:
    """Returns gradients in the widest of their dtypes, float32 or wider.

    What clips a global norm takes no others, and 16 bits are few for a sum of squares.
    """
    widest = max([tf.float32, *(g.dtype for g in gradients)], key=lambda d: d.size)
    return [tf.cast(gradient, widest) for gradient in gradients]


def is_finite(gradient: Any) -> tf.Tensor:
    """Returns whether all of a gradient is finite, bool scalar."""
    # Of two finite numbers the sum may be infinite.
    once = each_row_once(gradient)
    values = once.values if isinstance(once, tf.IndexedSlices) else once
    return tf.reduce_all(tf.math.is_finite(values))


def plus(first: Any, second: Any) -> Any:
    """Returns the sum of two gradients of one variable: rows are appended to rows."""
    if not isinstance(first, tf.IndexedSlices):
        return first + second
    pairs = (first.values, second.values), (first.indices, second.indices)
    return tf.IndexedSlices(*(tf.concat(p, 0) for p in pairs), first.dense_shape)


def spec_of_sums(gradient: Any) -> Any:
    """Returns the type spec of a gradient to which others are added in a loop."""
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.TensorSpec.from_tensor(gradient)
    return tf.IndexedSlicesSpec(
        [None, *gradient.values.shape[1:]],
        gradient.values.dtype,
        gradient.indices.dtype,
        gradient.dense_shape.dtype,
        indices_shape=[None],
    )
