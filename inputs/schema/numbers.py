"""Encodes numbers: their default, logarithm, scale and bounds, or their bucket."""

import math
from collections.abc import Sequence

import tensorflow as tf

from .features import Number
from .statistics import FeatureStatistics


def scaled(raw: tf.Tensor, feature: Number, statistics: FeatureStatistics) -> tf.Tensor:
    """Returns a number as it enters a model, float32 `[batch]`.

    It is computed in float64, as the statistics were.

    Args:
      raw: float32 `[batch]`; NaN is missing.
      feature: the declaration.
      statistics: what was counted of it, after `log`.
    """
    values = tf.cast(raw, tf.float64)
    if feature.log:
        values = tf.sign(values) * tf.math.log1p(tf.abs(values))
    if feature.default is not None:
        fill = statistics.mean
        if feature.default is not ...:
            fill = logarithm(feature.default) if feature.log else feature.default
        values = tf.where(tf.math.is_nan(values), tf.cast(fill, tf.float64), values)
    if feature.scale is not None:
        offset, divisor = _scale(feature.scale, statistics)
        values = (values - offset) / divisor
    if feature.clip is not None:
        values = tf.clip_by_value(values, *map(float, feature.clip))
    return tf.cast(values, tf.float32)


def logarithm(value: float) -> float:
    """Returns sign(x) log(1 + |x|).

    Args:
      value: x.
    """
    return math.copysign(math.log1p(abs(value)), value)


def _scale(scale: str, statistics: FeatureStatistics) -> tuple[float, float]:
    """Returns what to subtract, and then to divide by."""
    if scale == "standard":
        offset, divisor = statistics.mean, statistics.std
    else:
        offset = statistics.minimum
        divisor = statistics.maximum - statistics.minimum
    return offset, divisor or 1.0


def bucket_of(
    raw: tf.Tensor, feature: Number, boundaries: Sequence[float]
) -> tf.Tensor:
    """Returns the bucket of each number, int32 `[batch]`.

    Args:
      raw: float32 `[batch]`; NaN is missing.
      feature: the declaration.
      boundaries: of the buckets, ascending; one belongs to the bucket above it.
    """
    values = raw
    if feature.default not in (..., None):
        fill = tf.constant(feature.default, raw.dtype)
        values = tf.where(tf.math.is_nan(raw), fill, raw)
    buckets = tf.raw_ops.Bucketize(input=values, boundaries=list(boundaries))
    if feature.default is not ...:
        return buckets
    return tf.where(tf.math.is_nan(raw), len(boundaries) + 1, buckets)
