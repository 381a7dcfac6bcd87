# SPDX-License-Identifier: Apache-2.0
"""Heads of classes: one of two, one of several, any number of several."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from gin_estimator import errors, metric

from . import features as features_lib
from .heads import SingleHead, Tensors, Weights, as_floats, dense_labels, like, mean


@gin.configurable
class AccuracyBaseline(keras.metrics.Mean):
    """The accuracy of the answer that is more frequent, from labels 0 and 1."""

    def result(self) -> Any:
        """Returns the larger share of the two labels."""
        share = super().result()
        return keras.ops.maximum(share, 1 - share)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ClassHead(SingleHead):
    """A head of classes that may have names.

    Attributes:
      label_vocabulary: the labels by class, texts or numbers; None if labels are class numbers.
    """

    label_vocabulary: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        name, words, size = type(self).__name__, self.label_vocabulary, self._num_classes
        if not isinstance(size, int) or size < 2:
            raise errors.SpecError(f"{name}.n_classes is {size!r}: expected an int > 1.")
        if words is not None and (isinstance(words, str) or len(set(words)) != size):
            raise errors.SpecError(
                f"{name}.label_vocabulary is {words!r}: expected {size} different labels, one for "
                "each class."
            )
        for threshold in getattr(self, "thresholds", ()):
            if not 0 < threshold < 1:
                raise errors.SpecError(
                    f"{name}.thresholds has {threshold!r}: expected probabilities between 0 and 1. "
                    "Set thresholds=(0.3, 0.5)."
                )

    @property
    def _num_classes(self) -> int:
        return self.logits_dimension

    def _names(self) -> tf.Tensor:
        """Returns the labels by class as texts, `[classes]`."""
        labels = self.label_vocabulary or range(self._num_classes)
        return tf.constant([n.decode() if isinstance(n, bytes) else str(n) for n in labels])

    def _numbers(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns class numbers, and ends the step if a label is not in the vocabulary."""
        if self.label_vocabulary is None:
            return labels
        words = list(self.label_vocabulary)
        found = tf.equal(labels[..., tf.newaxis], tf.constant(words, labels.dtype))
        known = tf.reduce_all(tf.reduce_any(found, axis=-1))
        message = [f"labels: expected entries of label_vocabulary {words}. The labels are", labels]
        return features_lib.asserted(tf.argmax(found, axis=-1), known, message)

    def _chosen(self, classes: tf.Tensor) -> Tensors:
        """Returns predictions of one class, `[batch]`, and of all classes."""
        names, numbers = self._names(), tf.range(self._num_classes)
        return {
            "class_ids": classes[:, tf.newaxis],
            "classes": tf.gather(names, classes)[:, tf.newaxis],
            "all_class_ids": _repeated(numbers, classes),
            "all_classes": _repeated(names, classes),
        }


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class BinaryClassHead(_ClassHead):
    """One of two classes from one logit, by sigmoid cross-entropy.

    Reports `accuracy`, `precision`, `recall`, `auc`, `auc_precision_recall`, `label/mean`,
    `prediction/mean`, `accuracy_baseline` and `average_loss`. Labels are 0, 1 or a probability.

    Attributes:
      thresholds: probabilities in (0, 1) at which accuracy, precision and recall are reported as
        well: `precision/positive_threshold_0.3`.
    """

    thresholds: Sequence[float] = ()

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return 1

    @property
    def _num_classes(self) -> int:
        return 2

    def targets(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns float32 `[batch, 1]`; see `SingleHead`."""
        labels = as_floats(self._numbers(dense_labels(labels, 1)))
        return features_lib.checked(labels, "labels", 0, 1)

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `SingleHead`."""
        return tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)[:, 0]

    def predictions(self, logits: tf.Tensor) -> Tensors:
        """See `Head`."""
        both = tf.concat([tf.zeros_like(logits), logits], axis=-1)
        return {
            "logits": logits,
            "logistic": tf.sigmoid(logits),
            "probabilities": tf.nn.softmax(both),
            **self._chosen(tf.argmax(both, axis=-1)),
        }

    def metrics(self, targets: tf.Tensor, logits: tf.Tensor, weights: Weights) -> dict[str, Any]:
        """See `SingleHead`."""
        probabilities = tf.sigmoid(logits)
        return {
            **_right(targets, logits > 0, weights),
            "label/mean": mean(targets, weights),
            "prediction/mean": mean(probabilities, weights),
            "accuracy_baseline": metric(
                AccuracyBaseline, targets, sample_weight=like(targets, weights)
            ),
            **_curves(targets, probabilities, weights, self.thresholds),
        }


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiClassHead(_ClassHead):
    """One of several classes from a logit for each, by softmax cross-entropy.

    Reports `accuracy`, `average_loss`, and `top_3_accuracy` for 3 in `top_k`.

    Attributes:
      n_classes: number of classes.
      top_k: numbers of most likely classes, one of which may be the label.
    """

    n_classes: int = dataclasses.field(kw_only=False)
    top_k: Sequence[int] = ()

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return self.n_classes

    def targets(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns int64 `[batch]`; see `SingleHead`."""
        labels = self._numbers(dense_labels(labels, 1))[:, 0]
        if not labels.dtype.is_integer:
            raise errors.SpecError(
                f"labels have dtype {labels.dtype.name}: expected integers. Set labels = "
                "tf.cast(labels, tf.int64), or label_vocabulary=[...]."
            )
        return features_lib.checked(tf.cast(labels, tf.int64), "labels", 0, self.n_classes - 1)

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `SingleHead`."""
        return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)

    def predictions(self, logits: tf.Tensor) -> Tensors:
        """See `Head`."""
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits),
            **self._chosen(tf.argmax(logits, axis=-1)),
        }

    def metrics(self, targets: tf.Tensor, logits: tf.Tensor, weights: Weights) -> dict[str, Any]:
        """See `SingleHead`."""
        return {
            "accuracy": mean(tf.equal(targets, tf.argmax(logits, axis=-1)), weights),
            **{
                f"top_{k}_accuracy": mean(tf.math.in_top_k(targets, logits, k), weights)
                for k in self.top_k
            },
        }


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabelHead(_ClassHead):
    """Any number of several classes from a logit for each, by sigmoid cross-entropy.

    The loss of an example is the mean over the classes. Reports `average_loss`, and `auc` and
    `auc_precision_recall` over all pairs of an example and a class. Labels are 0 or 1 for each
    class, `[batch, n_classes]`, or ragged or sparse lists of class numbers or labels.

    Attributes:
      n_classes: number of classes.
      thresholds: probabilities in (0, 1) at which accuracy, precision and recall are reported.
      classes_for_class_based_metrics: numbers of classes with metrics for them alone:
        `auc/class3`, `auc_precision_recall/class3`, `probability_mean/class3`.
    """

    n_classes: int = dataclasses.field(kw_only=False)
    thresholds: Sequence[float] = ()
    classes_for_class_based_metrics: Sequence[int] = ()

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return self.n_classes

    def targets(self, labels: Any) -> tf.Tensor:
        """Returns float32 `[batch, n_classes]`; see `SingleHead`."""
        if isinstance(labels, tf.SparseTensor):
            labels = tf.RaggedTensor.from_sparse(labels)
        if not isinstance(labels, tf.RaggedTensor):
            labels = as_floats(dense_labels(labels, self.n_classes))
            return features_lib.checked(labels, "labels", 0, 1)
        classes = tf.cast(self._numbers(labels.flat_values), tf.int64)
        classes = features_lib.checked(classes, "labels", 0, self.n_classes - 1)
        counts = features_lib.counts(labels.with_flat_values(classes), self.n_classes)
        return tf.minimum(counts, 1)

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `SingleHead`."""
        losses = tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)
        return tf.reduce_mean(losses, axis=-1)

    def predictions(self, logits: tf.Tensor) -> Tensors:
        """See `Head`."""
        classes = _repeated(self._names(), logits)
        return {"logits": logits, "probabilities": tf.sigmoid(logits), "classes": classes}

    def metrics(self, targets: tf.Tensor, logits: tf.Tensor, weights: Weights) -> dict[str, Any]:
        """See `SingleHead`."""
        probabilities = tf.sigmoid(logits)
        reported = _curves(targets, probabilities, weights, self.thresholds)
        for i in self.classes_for_class_based_metrics:
            label, probability = targets[:, i : i + 1], probabilities[:, i : i + 1]
            reported |= _curves(label, probability, weights, suffix=f"/class{i}")
            reported[f"probability_mean/class{i}"] = mean(probability, weights)
        return reported


def _repeated(row: tf.Tensor, examples: tf.Tensor) -> tf.Tensor:
    """Returns the row once for each example, `[batch, len(row)]`."""
    return tf.tile(row[tf.newaxis], [tf.shape(examples)[0], 1])


def _right(
    targets: tf.Tensor, chosen: tf.Tensor, weights: Weights, suffix: str = ""
) -> dict[str, Any]:
    """Returns accuracy, precision and recall of the examples that are chosen for class 1."""
    chosen, options = tf.cast(chosen, tf.float32), {"sample_weight": like(targets, weights)}
    return {
        f"accuracy{suffix}": mean(tf.equal(targets, chosen), weights),
        f"precision{suffix}": metric(keras.metrics.Precision, targets, chosen, **options),
        f"recall{suffix}": metric(keras.metrics.Recall, targets, chosen, **options),
    }


def _curves(
    targets: tf.Tensor,
    probabilities: tf.Tensor,
    weights: Weights,
    thresholds: Sequence[float] = (),
    suffix: str = "",
) -> dict[str, Any]:
    """Returns the areas under both curves, and metrics at thresholds."""
    options, found = {"sample_weight": like(targets, weights)}, {}
    for name, curve in (("auc", "ROC"), ("auc_precision_recall", "PR")):
        factory = functools.partial(keras.metrics.AUC, curve=curve)
        found[name + suffix] = metric(factory, targets, probabilities, **options)
    for threshold in thresholds:
        name = f"/positive_threshold_{threshold:g}"
        found |= _right(targets, probabilities > threshold, weights, name)
    return found
