"""What the heads of classes share: labels in words, signatures, metrics, checks."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline import SpecError, metric

from .heads import mean


def signatures(
    predictions: Mapping[str, Any], classes: str = "all_classes"
) -> dict[str, dict[str, Any]]:
    """Returns the signatures of a SavedModel, by tf.estimator's names.

    Args:
      predictions: predictions of a head, by name.
      classes: name of the prediction that holds each example's classes in words.
    """
    scored = {
        "scores": predictions["probabilities"],
        "classes": predictions[classes],
    }
    return {
        "serving_default": scored,
        "classification": scored,
        "predict": dict(predictions),
    }


def chosen(
    ids: tf.Tensor, num_classes: int, logits: tf.Tensor, vocabulary: Any
) -> dict[str, tf.Tensor]:
    """Returns the chosen class and all classes, as numbers and in words."""
    names = tf.constant(names_of(vocabulary, num_classes))
    numbers = tf.range(num_classes, dtype=tf.int32)
    return {
        "class_ids": ids[:, None],
        "classes": tf.gather(names, ids)[:, None],
        "all_class_ids": for_each_example(numbers, logits),
        "all_classes": for_each_example(names, logits),
    }


def for_each_example(row: Any, examples: tf.Tensor) -> tf.Tensor:
    """Returns the row once for each example."""
    row = tf.convert_to_tensor(row)
    return tf.tile(row[None], [tf.shape(examples)[0], 1])


def names_of(vocabulary: Any, num_classes: int) -> list[str]:
    """Returns the classes in words.

    Args:
      vocabulary: the labels; None for the classes' numbers.
      num_classes: number of classes.
    """
    chosen = range(num_classes) if vocabulary is None else vocabulary
    return [n.decode() if isinstance(n, bytes) else str(n) for n in chosen]


def numbers_of(labels: tf.Tensor, vocabulary: Sequence[Any], head: str) -> tf.Tensor:
    """Returns each label's place in the vocabulary, int64 of the labels' shape."""
    try:
        entries = tf.constant(list(vocabulary), labels.dtype)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{head}.label_vocabulary is {list(vocabulary)!r} and labels are of "
            f"{labels.dtype.name}: give both in one type."
        ) from error
    found = tf.equal(labels[..., None], entries)
    words = f"labels must be entries of label_vocabulary {list(vocabulary)!r}"
    found = tf.cast(found, tf.int64)
    known = tf.reduce_any(found > 0, -1)
    check = tf.debugging.Assert(tf.reduce_all(known), [words, labels])
    with tf.control_dependencies([] if check is None else [check]):
        return tf.argmax(found, -1)


def equal(targets: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    """Returns where classes are the targets, bool.

    Args:
      targets: labels in numbers.
      classes: chosen classes, of the same shape.
    """
    return tf.equal(targets, tf.cast(classes, targets.dtype))


def as_column(weights: tf.Tensor | None) -> tf.Tensor | None:
    """Returns weights `[batch]` as `[batch, 1]`; None for None."""
    return None if weights is None else weights[:, None]


def areas(
    targets: tf.Tensor, p: tf.Tensor, weights: tf.Tensor | None
) -> dict[str, Any]:
    """Returns the areas under both curves, of 200 thresholds as tf.estimator's."""
    if weights is not None:  # Keras wants one for each label.
        weights = tf.ones_like(p) * weights[:, None]
    return {
        "auc": metric(keras.metrics.AUC, targets, p, sample_weight=weights),
        "auc_precision_recall": metric(
            lambda: keras.metrics.AUC(curve="PR"), targets, p, sample_weight=weights
        ),
    }


def at_thresholds(
    thresholds: Sequence[float],
    targets: tf.Tensor,
    p: tf.Tensor,
    weights: tf.Tensor | None,
) -> dict[str, Any]:
    """Returns accuracy, precision and recall at each threshold, by name.

    Args:
      thresholds: probabilities.
      targets: 0 or 1, `[batch, classes]`.
      p: probabilities of that shape.
      weights: weights `[batch]`, or None.
    """
    reported = {}
    if weights is not None:
        weights = tf.ones_like(p) * weights[:, None]
    for t in thresholds:
        classes = tf.cast(p > t, tf.float32)
        for name, value in {
            "accuracy": mean(equal(targets, classes), weights),
            "precision": metric(
                keras.metrics.Precision, targets, classes, sample_weight=weights
            ),
            "recall": metric(
                keras.metrics.Recall, targets, classes, sample_weight=weights
            ),
        }.items():
            reported[f"{name}/positive_threshold_{t:g}"] = value
    return reported


def check_n_classes(head: Any) -> None:
    """Raises SpecError if a head's `n_classes` is no number of classes."""
    if not isinstance(head.n_classes, int) or head.n_classes < 2:
        raise SpecError(
            f"{type(head).__name__}.n_classes is {head.n_classes!r}: write the number "
            "of classes, 2 or more."
        )


def check_thresholds(head: Any) -> None:
    """Raises SpecError if one of a head's `thresholds` is no probability."""
    for t in head.thresholds:
        if not isinstance(t, (int, float)) or not 0 < t < 1:
            raise SpecError(
                f"{type(head).__name__}.thresholds has {t!r}: write probabilities "
                "between 0 and 1, such as thresholds=(0.3, 0.5)."
            )


def check_vocabulary(head: Any, num_classes: int) -> None:
    """Raises SpecError if a head's `label_vocabulary` has not one label a class."""
    own = head.label_vocabulary
    if own is not None and (isinstance(own, str) or len(set(own)) != num_classes):
        raise SpecError(
            f"{type(head).__name__}.label_vocabulary is {own!r} for {num_classes} "
            "classes: write a list of one label for each class."
        )
