# SPDX-License-Identifier: Apache-2.0
"""The model_fn of a classifier."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from gin_estimator import EstimatorSpec, ModeKeys, errors, metric, summary

from . import features as features_lib

_MAX_SHOWN = 1000  # Classes of a confusion matrix.


@gin.configurable
def classifier(
    features: Any,
    labels: Any,
    mode: str,
    network: keras.Model,
    optimizer: keras.optimizers.Optimizer | None = None,
    *,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
    loss_reduction: str = "mean",
    clip_norm: float | None = None,
    metrics: Mapping[str, Callable[[], Any]] | None = None,
    feature_key: str | None = None,
    class_names: Sequence[str] = (),
) -> EstimatorSpec:
    """Returns the spec of a classifier with softmax cross-entropy; one logit makes it binary.

    Reports `accuracy`, and in EVAL of two classes also `auc`, `precision` and `recall`.
    Predicts `logits`, `probabilities` `[batch, classes]` (binary: `[batch, 2]`) and
    `classes`, int64 `[batch]`. Of an evaluation of images TensorBoard shows the confusion matrix
    and the images with the highest losses.

    Args:
      features: input of the network, a tensor or a dict.
      labels: class numbers `[batch]` or `[batch, 1]`, or probabilities `[batch, classes]`.
        A binary network also takes floats `[batch]`, the probability of class 1.
      mode: one of `ModeKeys`.
      network: returns logits `[batch, classes]` or `[batch, 1]`. Its `losses` are the
        regularization.
      optimizer: updates the network; None outside of TRAIN.
      label_smoothing: part of each label that is spread over all classes, in [0, 1).
      class_weights: weights of the losses by class; None for equal weights.
      loss_reduction: "mean" or "sum", see `EstimatorSpec`.
      clip_norm: maximum global norm of the gradient; None for none.
      metrics: more metrics for EVAL, factories by name. They get class numbers `[batch]`
        and probabilities `[batch, classes]`; for two classes `[batch, 1]` each, with the
        probability of class 1.
      feature_key: entry of a dict of features that the network takes.
      class_names: names of the classes in TensorBoard; empty for their numbers.

    Raises:
      SpecError: an argument is out of range, or labels and logits do not fit.
    """
    if not 0 <= label_smoothing < 1:
        raise errors.SpecError(f"label_smoothing is {label_smoothing}: expected 0 <= value < 1.")
    features_lib.check_logits(network)
    inputs = features_lib.network_input(features, feature_key)
    outputs = features_lib.outputs_of(network, inputs, mode)
    if outputs.shape.rank != 2:
        raise errors.SpecError(f"logits have shape {outputs.shape}: expected [batch, classes].")
    logits = outputs
    if outputs.shape[-1] == 1:  # The softmax of (0, z) is the sigmoid of z.
        logits = tf.concat([tf.zeros_like(outputs), outputs], axis=-1)
    probabilities, classes = tf.nn.softmax(logits), tf.argmax(logits, axis=-1)
    if mode == ModeKeys.PREDICT:
        predictions = {"logits": outputs, "probabilities": probabilities, "classes": classes}
        return EstimatorSpec(mode, predictions=predictions)

    targets = _targets(features_lib.required_labels(labels, mode), outputs, logits.shape[-1])
    smooth = (1 - label_smoothing) * targets + label_smoothing / logits.shape[-1]
    true_classes = tf.argmax(targets, axis=-1)
    reported: dict[str, Any] = {"accuracy": tf.cast(tf.equal(classes, true_classes), tf.float32)}
    if mode == ModeKeys.EVAL:
        reported.update(_eval_metrics(true_classes, probabilities, metrics or {}))
    loss = tf.nn.softmax_cross_entropy_with_logits(smooth, logits)
    summaries = {}
    if mode == ModeKeys.EVAL and features_lib.are_images(inputs):
        summaries["worst"] = summary.image(inputs, 9, highest=loss, value_range=None)
        if logits.shape[-1] <= _MAX_SHOWN:
            summaries["confusion"] = summary.confusion_matrix(
                true_classes, classes, logits.shape[-1], class_names
            )
    return EstimatorSpec(
        mode,
        loss=loss,
        loss_weights=_loss_weights(targets, class_weights),
        loss_reduction=loss_reduction,
        regularization_losses=network.losses,
        train_op=features_lib.train_op(mode, network, optimizer, clip_norm),
        metrics=reported,
        summaries=summaries,
    )


def _targets(labels: tf.Tensor, outputs: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Returns the probability of each class, float32 `[batch, classes]`."""
    rank, size = labels.shape.rank, labels.shape[-1] if labels.shape.rank else None
    fits = rank in (1, 2) and outputs.shape[:1].is_compatible_with(labels.shape[:1])
    if fits and rank == 2 and size == num_classes:
        return features_lib.checked(tf.cast(labels, tf.float32), "labels", 0, 1)
    if not fits or (rank == 2 and size != 1):
        raise errors.SpecError(
            f"labels have shape {labels.shape} and logits {outputs.shape}: expected labels "
            "[batch], [batch, 1] or [batch, classes]."
        )
    labels = tf.reshape(labels, [-1])
    if not labels.dtype.is_floating:
        labels = features_lib.checked(tf.cast(labels, tf.int64), "labels", 0, num_classes - 1)
        # XLA ignores the check, and tf.one_hot makes zeros of other numbers.
        known = (labels >= 0) & (labels < num_classes)
        return tf.where(known[:, tf.newaxis], tf.one_hot(labels, num_classes), math.nan)
    if outputs.shape[-1] != 1:
        raise errors.SpecError(
            f"labels have dtype {labels.dtype.name} and shape [batch]: expected integers for "
            f"{num_classes} classes. Set labels = tf.cast(labels, tf.int64)."
        )
    labels = features_lib.checked(tf.cast(labels, tf.float32), "labels", 0, 1)
    return tf.stack([1 - labels, labels], axis=-1)


def _loss_weights(targets: tf.Tensor, class_weights: Sequence[float] | None) -> tf.Tensor | None:
    if class_weights is None:
        return None
    size = targets.shape[-1]
    if len(class_weights) != size or not all(each >= 0 for each in class_weights):
        raise errors.SpecError(
            f"class_weights is {list(class_weights)}: expected {size} weights of 0 or more, one "
            "for each class."
        )
    return tf.reduce_sum(targets * tf.constant(class_weights, tf.float32), axis=-1)


def _eval_metrics(
    true_classes: tf.Tensor, probabilities: tf.Tensor, factories: Mapping[str, Callable[[], Any]]
) -> dict[str, Any]:
    if probabilities.shape[-1] == 2:
        # Keras averages over the last axis, so that binary metrics need [batch, 1].
        true_classes, probabilities = true_classes[:, tf.newaxis], probabilities[:, 1:]
        factories = {
            "auc": keras.metrics.AUC,
            "precision": keras.metrics.Precision,
            "recall": keras.metrics.Recall,
            **factories,
        }
    return {
        name: metric(factory, true_classes, probabilities) for name, factory in factories.items()
    }
