# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on gradients that may be tf.IndexedSlices, some rows of a table.

As tensors they would be as large as the table.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def are_rows(gradient: Any) -> bool:
    """Returns whether a gradient is one of some rows."""
    return isinstance(gradient, tf.IndexedSlices)


def values_of(gradient: Any) -> tf.Tensor:
    """Returns the numbers of a gradient, of rows without their indices."""
    return gradient.values if are_rows(gradient) else gradient


def with_values(gradient: Any, values: tf.Tensor) -> Any:
    """Returns a gradient of the same kind, rows and dtype with other numbers."""
    values = tf.cast(values, gradient.dtype)
    if not are_rows(gradient):
        return values
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def dense(gradient: Any, variable: Any) -> tf.Tensor:
    """Returns a gradient as a tensor of the variable's shape."""
    return with_shape(tf.convert_to_tensor(gradient), variable.shape)


def with_shape(value: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Returns a tensor with a static shape, by an operation only if it has another one."""
    return value if value.shape == shape else tf.ensure_shape(value, shape)


def each_row_once(gradient: Any) -> Any:
    """Returns a gradient in which repeated rows are summed.

    Optimizers square a gradient: the square of the sum is right, not the sum of squares.
    """
    if not are_rows(gradient):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def times(gradient: Any, factor: tf.Tensor) -> Any:
    """Returns a gradient times a scalar."""
    values = values_of(gradient)
    return with_values(gradient, values * tf.cast(factor, values.dtype))


def add(first: Any, second: Any) -> Any:
    """Returns the sum of two gradients, or other tensors; a row may be in it twice."""
    if not are_rows(first):
        return tf.add(first, second)
    values = tf.concat([first.values, second.values], axis=0)
    indices = tf.concat([first.indices, second.indices], axis=0)
    return tf.IndexedSlices(values, indices, first.dense_shape)


def zeros_like(gradient: Any) -> Any:
    """Returns a gradient of 0, or of no rows."""
    if not are_rows(gradient):
        return tf.zeros_like(gradient)
    return tf.IndexedSlices(gradient.values[:0], gradient.indices[:0], gradient.dense_shape)


def spec_of_sum(value: Any) -> Any:
    """Returns the type of a gradient, or another tensor, to which a loop adds others."""
    if not are_rows(value):
        return tf.TensorSpec.from_tensor(value)
    return tf.IndexedSlicesSpec(
        [None, *value.values.shape[1:]],
        value.dtype,
        value.indices.dtype,
        value.dense_shape.dtype,
        indices_shape=[None],
    )


def are_finite(gradients: Any) -> tf.Tensor:
    """Returns whether all numbers of a nest of gradients are finite, a bool scalar."""
    leaves = [values_of(each) for each in tf.nest.flatten(gradients)]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(leaf)) for leaf in leaves])


def clip_by_global_norm(gradients: Sequence[Any], clip_norm: float) -> list[Any]:
    """Returns gradients whose global norm, in float32, is at most `clip_norm`.

    Args:
      gradients: gradients of any dtypes, no row twice.
      clip_norm: largest norm. A norm that is not finite makes all gradients NaN.
    """
    norm = tf.linalg.global_norm([tf.cast(values_of(each), tf.float32) for each in gradients])
    factor = clip_norm / tf.maximum(norm, clip_norm) + 0 * norm
    return [times(each, factor) for each in gradients]
