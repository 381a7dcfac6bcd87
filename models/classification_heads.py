"""Heads of classes: one of two, one of several, any of several."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline import SpecError, metric

from .classes import (
    areas,
    as_column,
    at_thresholds,
    check_n_classes,
    check_thresholds,
    check_vocabulary,
    chosen,
    equal,
    for_each_example,
    names_of,
    numbers_of,
    signatures,
)
from .head_metrics import AccuracyBaseline, Calibration, GroupAUC
from .heads import Head, checked, column, dense_labels, mean


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class BinaryClassHead(Head):
    """One of two classes by one logit: sigmoid cross-entropy, the log loss.

    Reports `accuracy`, `precision`, `recall`, `auc`, `auc_precision_recall`,
    `label/mean`, `prediction/mean`, `accuracy_baseline`, `average_loss`, and besides
    tf.estimator's `calibration`: `prediction/mean` over `label/mean`.

    Attributes:
      thresholds: probabilities in (0, 1), at each of which accuracy, precision and
        recall are reported: `precision/positive_threshold_0.3`.
      label_vocabulary: the two labels in words or numbers, first the negative one. None
        where labels are 0 and 1, or probabilities between them.
      group_column: entry of features that holds each example's group, a number from 0
        to `num_groups - 1`; `gauc` is reported, see `GroupAUC`.
      num_groups: number of groups.
    """

    thresholds: Sequence[float] = ()
    label_vocabulary: Sequence[Any] | None = None
    group_column: str | None = None
    num_groups: int | None = None

    def __post_init__(self) -> None:
        check_thresholds(self)
        check_vocabulary(self, 2)
        if (self.group_column is None) != (self.num_groups is None):
            raise SpecError(
                f"BinaryClassHead.group_column is {self.group_column!r} and num_groups "
                f"{self.num_groups!r}: give both, or none."
            )

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return 1

    def targets(self, labels: Any) -> tf.Tensor:
        """Returns float32 `[batch, 1]`, see `Head`."""
        labels = dense_labels(labels, 1, type(self).__name__)
        if self.label_vocabulary is not None:
            labels = numbers_of(labels, self.label_vocabulary, type(self).__name__)
        labels = tf.cast(labels, tf.float32)
        return checked(
            (labels >= 0) & (labels <= 1),
            labels,
            "labels must be from 0 to 1: change them in input_fn, or write "
            "MultiClassHead(n_classes=...).",
        )

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        loss = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
        return tf.squeeze(loss, -1)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`; names and shapes are tf.estimator's."""
        logistic = tf.sigmoid(logits)
        both = tf.concat([tf.zeros_like(logits), logits], axis=-1)
        return {
            "logits": logits,
            "logistic": logistic,
            "probabilities": tf.nn.softmax(both),
            **chosen(tf.argmax(both, -1), 2, logits, self.label_vocabulary),
        }

    def metrics(
        self,
        features: Any,
        targets: tf.Tensor,
        logits: tf.Tensor,
        weights: tf.Tensor | None,
    ) -> dict[str, Any]:
        """See `Head`."""
        p = tf.sigmoid(logits)
        classes = tf.cast(logits > 0, tf.float32)
        weighted = {"sample_weight": weights}
        reported = {
            "accuracy": mean(equal(targets, classes), as_column(weights)),
            "precision": metric(keras.metrics.Precision, targets, classes, **weighted),
            "recall": metric(keras.metrics.Recall, targets, classes, **weighted),
            "label/mean": mean(targets, as_column(weights)),
            "prediction/mean": mean(p, as_column(weights)),
            "accuracy_baseline": metric(AccuracyBaseline, targets, **weighted),
            "calibration": metric(Calibration, targets, p, **weighted),
            **areas(targets, p, weights),
            **at_thresholds(self.thresholds, targets, p, weights),
        }
        if self.group_column is not None:
            groups = column(features, self.group_column, "BinaryClassHead.group")
            num_groups = self.num_groups
            reported["gauc"] = metric(
                lambda: GroupAUC(num_groups), targets, p, groups, **weighted
            )
        return reported

    def export_outputs(
        self, predictions: Mapping[str, tf.Tensor]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """See `Head`; names are tf.estimator's."""
        return signatures(predictions) | {
            "regression": {"outputs": predictions["logistic"]}
        }


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiClassHead(Head):
    """One of several classes by a logit each: softmax cross-entropy.

    Reports `accuracy`, `average_loss`, and `top_K_accuracy` for each K of `top_k`.

    Attributes:
      n_classes: number of classes, 3 or more; for two `BinaryClassHead` has one logit.
      label_vocabulary: the labels in words or numbers; None where they are the numbers
        of the classes.
      top_k: numbers of guesses, one of which may be right.
    """

    n_classes: int = dataclasses.field(kw_only=False)
    label_vocabulary: Sequence[Any] | None = None
    top_k: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_n_classes(self)
        check_vocabulary(self, self.n_classes)
        wrong = [k for k in self.top_k if not 0 < k < self.n_classes]
        if wrong:
            raise SpecError(
                f"MultiClassHead.top_k has {wrong[0]}: write numbers from 1 to "
                f"{self.n_classes - 1}."
            )

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return self.n_classes

    def targets(self, labels: Any) -> tf.Tensor:
        """Returns int64 `[batch]`, see `Head`."""
        labels = dense_labels(labels, 1, type(self).__name__)
        if self.label_vocabulary is not None:
            labels = numbers_of(labels, self.label_vocabulary, type(self).__name__)
        if labels.dtype.is_floating or labels.dtype == tf.string:
            raise SpecError(
                f"MultiClassHead got labels of {labels.dtype.name}: write tf.cast("
                "labels, tf.int64) in input_fn, or label_vocabulary=[...]."
            )
        labels = tf.cast(tf.squeeze(labels, -1), tf.int64)
        return checked(
            (labels >= 0) & (labels < self.n_classes),
            labels,
            f"labels must be from 0 to n_classes - 1 = {self.n_classes - 1}.",
        )

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`; names and shapes are tf.estimator's."""
        ids = tf.argmax(logits, -1)
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits),
            **chosen(ids, self.n_classes, logits, self.label_vocabulary),
        }

    def metrics(
        self,
        features: Any,
        targets: tf.Tensor,
        logits: tf.Tensor,
        weights: tf.Tensor | None,
    ) -> dict[str, Any]:
        """See `Head`."""
        reported = {"accuracy": mean(equal(targets, tf.argmax(logits, -1)), weights)}
        for k in self.top_k:
            right = tf.math.in_top_k(targets, logits, k)
            reported[f"top_{k}_accuracy"] = mean(right, weights)
        return reported

    def export_outputs(
        self, predictions: Mapping[str, tf.Tensor]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """See `Head`; names are tf.estimator's."""
        return signatures(predictions)


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelHead(Head):
    """Any number of several classes, each by a logit of its own.

    The loss of an example is the mean of its classes' sigmoid cross-entropies. Reports
    `auc` and `auc_precision_recall` over all pairs of an example and a class.

    Attributes:
      n_classes: number of classes, 2 or more.
      thresholds: probabilities in (0, 1), at each of which accuracy, precision and
        recall are reported.
      label_vocabulary: the labels in words or numbers, where labels are lists of them;
        None where they are lists of class numbers, or 0 and 1 for each class.
      classes_for_class_based_metrics: numbers of classes that have metrics of their
        own: `auc/class3`, `auc_precision_recall/class3`, `probability_mean/class3`.
    """

    n_classes: int = dataclasses.field(kw_only=False)
    thresholds: Sequence[float] = ()
    label_vocabulary: Sequence[Any] | None = None
    classes_for_class_based_metrics: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_n_classes(self)
        check_thresholds(self)
        check_vocabulary(self, self.n_classes)
        for number in self.classes_for_class_based_metrics:
            if not isinstance(number, int) or not 0 <= number < self.n_classes:
                raise SpecError(
                    f"MultiLabelHead.classes_for_class_based_metrics has {number!r}: "
                    f"write numbers from 0 to {self.n_classes - 1}."
                )

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return self.n_classes

    def targets(self, labels: Any) -> tf.Tensor:
        """Returns float32 `[batch, n_classes]` of 0 and 1, see `Head`.

        Args:
          labels: 0 or 1 for each class, `[batch, n_classes]`; or sparse or ragged lists
            of class numbers, or of entries of `label_vocabulary`.
        """
        if isinstance(labels, Mapping) and len(labels) == 1:
            (labels,) = labels.values()
        if isinstance(labels, tf.SparseTensor):
            labels = tf.RaggedTensor.from_sparse(labels)
        if not isinstance(labels, tf.RaggedTensor):
            labels = dense_labels(labels, self.n_classes, type(self).__name__)
            labels = tf.cast(labels, tf.float32)
            words = "labels must be 0 or 1 for each class"
            return checked((labels == 0) | (labels == 1), labels, words)
        ids = labels.flat_values
        if self.label_vocabulary is not None:
            ids = numbers_of(ids[:, None], self.label_vocabulary, "MultiLabelHead")[
                :, 0
            ]
        ids = tf.cast(ids, tf.int64)
        words = f"labels must be from 0 to n_classes - 1 = {self.n_classes - 1}"
        ids = checked((ids >= 0) & (ids < self.n_classes), ids, words)
        places = tf.stack([labels.value_rowids(), ids], axis=-1)
        shape = tf.stack([labels.nrows(), self.n_classes])
        counts = tf.scatter_nd(places, tf.ones_like(ids, tf.float32), shape)
        return tf.minimum(tf.ensure_shape(counts, [None, self.n_classes]), 1)

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        each = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
        return tf.reduce_mean(each, -1)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`; names and shapes are tf.estimator's."""
        names = names_of(self.label_vocabulary, self.n_classes)
        return {
            "logits": logits,
            "probabilities": tf.sigmoid(logits),
            "classes": for_each_example(names, logits),
        }

    def metrics(
        self,
        features: Any,
        targets: tf.Tensor,
        logits: tf.Tensor,
        weights: tf.Tensor | None,
    ) -> dict[str, Any]:
        """See `Head`."""
        p = tf.sigmoid(logits)
        reported = {
            **areas(targets, p, weights),
            **at_thresholds(self.thresholds, targets, p, weights),
        }
        for i in self.classes_for_class_based_metrics:
            own = areas(targets[:, i : i + 1], p[:, i : i + 1], weights)
            reported |= {f"{name}/class{i}": each for name, each in own.items()}
            reported[f"probability_mean/class{i}"] = mean(p[:, i], weights)
        return reported

    def export_outputs(
        self, predictions: Mapping[str, tf.Tensor]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """See `Head`; names are tf.estimator's."""
        return signatures(predictions, classes="classes")
