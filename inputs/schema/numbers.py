"""Encodes numbers: their default, logarithm, scale and bounds, or their bucket."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from .features import Number
from .statistics import FeatureStatistics


class NumberEncoder:
    """Encodes all numbers that are no category, in float64, as they were counted.

    All are so at once: on the host an operation costs more than what it computes for a
    batch.
    """

    def __init__(
        self,
        features: Mapping[str, Number],
        statistics: Mapping[str, FeatureStatistics],
    ) -> None:
        """Makes the constants of the formula.

        Args:
          features: the numbers by name.
          statistics: what was counted of them, after `log`, by name.
        """
        self._names = list(features)
        counted = [statistics.get(name, FeatureStatistics()) for name in features]
        pairs = list(zip(features.values(), counted, strict=True))
        self._log = np.array([[each.log] for each in features.values()])
        self._fill = _column(_fill(*pair) for pair in pairs)
        scales = [_scale(*pair) for pair in pairs]
        self._offset = _column(offset for offset, _ in scales)
        self._divisor = _column(divisor for _, divisor in scales)
        bounds = [each.clip or (-math.inf, math.inf) for each in features.values()]
        self._bounds = [_column(ends) for ends in zip(*bounds, strict=True)]

    def encode(self, raw: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns numbers as they enter a model, float32 `[batch]` by name.

        Args:
          raw: float32 `[batch]` by name; NaN is missing.
        """
        if not self._names:
            return {}
        values = tf.stack([raw[name] for name in self._names])
        values = tf.cast(values, tf.float64)
        if self._log.any():
            logarithms = tf.sign(values) * tf.math.log1p(tf.abs(values))
            values = tf.where(self._log, logarithms, values)
        values = tf.where(tf.math.is_nan(values), self._fill, values)
        if (self._offset != 0).any() or (self._divisor != 1).any():
            values = (values - self._offset) / self._divisor
        if np.isfinite(self._bounds).any():
            values = tf.clip_by_value(values, *self._bounds)
        rows = tf.unstack(tf.cast(values, tf.float32), len(self._names))
        return dict(zip(self._names, rows, strict=True))


def bucket_of(
    raw: tf.Tensor, feature: Number, boundaries: Sequence[float]
) -> tf.Tensor:
    """Returns the bucket of each number, int32 `[batch]`.

    Args:
      raw: float32 `[batch]`; NaN is missing.
      feature: the declaration.
      boundaries: of the buckets, ascending; one belongs to the bucket above it.
    """
    is_missing = tf.math.is_nan(raw)
    # What TensorFlow makes of NaN is not defined.
    fill = 0.0 if feature.default in (..., None) else feature.default
    values = tf.where(is_missing, fill, raw)
    buckets = tf.raw_ops.Bucketize(input=values, boundaries=list(boundaries))
    if feature.default is not ...:
        return buckets
    return tf.where(is_missing, len(boundaries) + 1, buckets)


def logarithm(value: float) -> float:
    """Returns sign(x) log(1 + |x|).

    Args:
      value: x.
    """
    return math.copysign(math.log1p(abs(value)), value)


def _column(values: Sequence[float]) -> np.ndarray:
    return np.array(list(values), np.float64)[:, None]


def _fill(feature: Number, statistics: FeatureStatistics) -> float:
    """Returns what stands for a missing number, after `log`; NaN is refused earlier."""
    if feature.default is None:
        return math.nan
    if feature.default is ...:
        return statistics.mean
    return logarithm(feature.default) if feature.log else feature.default


def _scale(feature: Number, statistics: FeatureStatistics) -> tuple[float, float]:
    """Returns what to subtract, and by what to divide then."""
    if feature.scale is None:
        return 0.0, 1.0
    if feature.scale == "standard":
        return statistics.mean, statistics.std or 1.0
    return statistics.minimum, statistics.maximum - statistics.minimum or 1.0
