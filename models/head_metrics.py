"""Metrics of heads that Keras lacks: sums over batches, and what they come to."""

from typing import Any

import gin
import keras
import tensorflow as tf


@gin.register
class Calibration(keras.metrics.Metric):
    """The mean prediction over the mean label: 1 where both are alike.

    1.2 says that 20 % more was predicted than came. NaN where no label is above 0.
    """

    def __init__(self, name: str = "calibration", **kwargs: Any) -> None:
        """Makes the sums."""
        super().__init__(name=name, **kwargs)
        self.predicted = self.add_weight(name="predicted", initializer="zeros")
        self.labelled = self.add_weight(name="labelled", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
          y_true: labels, `[batch]` or `[batch, 1]`.
          y_pred: predictions of the same shape.
          sample_weight: weights `[batch]`; None for 1.
        """
        y_true, y_pred, weights = _flat(y_true, y_pred, sample_weight)
        self.predicted.assign_add(tf.reduce_sum(y_pred * weights))
        self.labelled.assign_add(tf.reduce_sum(y_true * weights))

    def result(self) -> Any:
        """Returns the quotient."""
        return self.predicted / self.labelled


@gin.register
class AccuracyBaseline(keras.metrics.Metric):
    """The accuracy of who always answers the class that is more frequent of two."""

    def __init__(self, name: str = "accuracy_baseline", **kwargs: Any) -> None:
        """Makes the sums."""
        super().__init__(name=name, **kwargs)
        self.labelled = self.add_weight(name="labelled", initializer="zeros")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
          y_true: labels in [0, 1], `[batch]` or `[batch, 1]`.
          sample_weight: weights `[batch]`; None for 1.
        """
        y_true, _, weights = _flat(y_true, y_true, sample_weight)
        self.labelled.assign_add(tf.reduce_sum(y_true * weights))
        self.total.assign_add(tf.reduce_sum(weights))

    def result(self) -> Any:
        """Returns the larger of the two classes' shares."""
        share = tf.math.divide_no_nan(
            tf.convert_to_tensor(self.labelled), tf.convert_to_tensor(self.total)
        )
        return tf.maximum(share, 1 - share)


@gin.register
class GroupAUC(keras.metrics.Metric):
    """The mean of each group's own AUC: does the order within a group come out right?

    Groups are users or queries, say. A group counts by its examples' weights; one whose
    labels are all alike has no AUC and does not count (Zhu et al., 2017). Predictions
    fall into bins, those in one bin count as equal: with 1,000 bins the error is below
    0.001 for predictions that spread over [0, 1].
    """

    def __init__(
        self,
        num_groups: int,
        num_bins: int = 1000,
        name: str = "group_auc",
        **kwargs: Any,
    ) -> None:
        """Makes the histograms: `num_groups * num_bins * 2` numbers.

        Args:
          num_groups: groups, whose numbers are from 0 to `num_groups - 1`.
          num_bins: bins over [0, 1].
          name: name of the metric.
          **kwargs: further arguments of `keras.metrics.Metric`.
        """
        super().__init__(name=name, **kwargs)
        self.num_groups, self.num_bins = num_groups, num_bins
        self.counts = self.add_weight(
            name="counts", shape=(num_groups, num_bins, 2), initializer="zeros"
        )

    def update_state(
        self, y_true: Any, y_pred: Any, groups: Any, sample_weight: Any = None
    ) -> None:
        """Adds a batch.

        Args:
          y_true: labels 0 or 1, `[batch]` or `[batch, 1]`.
          y_pred: predictions in [0, 1] of the same shape.
          groups: number of each example's group, an integer tensor of the same shape.
          sample_weight: weights `[batch]`; None for 1.
        """
        y_true, y_pred, weights = _flat(y_true, y_pred, sample_weight)
        # In int32 an id of 2**32 + 1 would be group 1.
        groups = tf.cast(tf.reshape(groups, [-1]), tf.int64)
        words = (
            f"groups must be from 0 to {self.num_groups - 1}: give GroupAUC more "
            "num_groups, or hash the groups in input_fn"
        )
        known = tf.reduce_all((groups >= 0) & (groups < self.num_groups))
        check = tf.debugging.Assert(known, [words, groups])
        with tf.control_dependencies([] if check is None else [check]):
            bins = tf.cast(y_pred * self.num_bins, tf.int64)
        bins = tf.clip_by_value(bins, 0, self.num_bins - 1)
        places = tf.stack([groups, bins, tf.cast(y_true > 0.5, tf.int64)], axis=-1)
        shape = [self.num_groups, self.num_bins, 2]
        self.counts.assign_add(tf.scatter_nd(places, weights, shape))

    def result(self) -> Any:
        """Returns the mean over groups, NaN where none has both labels."""
        counts = tf.convert_to_tensor(self.counts)
        negative, positive = counts[..., 0], counts[..., 1]
        # Pairs in which the positive example has the higher bin; of equal ones half.
        above = tf.cumsum(positive, axis=1, exclusive=True, reverse=True)
        right = tf.reduce_sum(negative * (above + positive / 2), axis=1)
        negatives, positives = tf.reduce_sum(negative, 1), tf.reduce_sum(positive, 1)
        pairs = negatives * positives
        weight = tf.where(pairs > 0, negatives + positives, 0)
        auc = tf.math.divide_no_nan(right, pairs)
        return tf.reduce_sum(weight * auc) / tf.reduce_sum(weight)


def _flat(y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Returns labels, predictions and weights as float32 `[batch]`."""
    y_true = tf.reshape(tf.cast(y_true, tf.float32), [-1])
    y_pred = tf.reshape(tf.cast(y_pred, tf.float32), [-1])
    if sample_weight is None:
        return y_true, y_pred, tf.ones_like(y_true)
    return y_true, y_pred, tf.reshape(tf.cast(sample_weight, tf.float32), [-1])
