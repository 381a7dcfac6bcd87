"""The model_fn of a classifier, with its loss and its metrics."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline import (
    EstimatorSpec,
    ModeKeys,
    SpecError,
    TrainOp,
    confusion_matrix,
    image,
    metric,
)

from . import checks

# Classes whose confusions are shown at the most: a million numbers.
_MOST_SHOWN = 1000
_PROBABILITIES = (keras.activations.softmax, keras.activations.sigmoid)


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
    clip_norm: float | None = None,
    metrics: Mapping[str, Callable[[], Any]] | None = None,
    feature_key: str | None = None,
    class_names: Sequence[str] = (),
    show_confusion: bool = True,
    num_mistakes: int = 9,
) -> EstimatorSpec:
    """Classifies by softmax cross-entropy: a model_fn. One logit makes it binary.

    Reports `accuracy`, and in EVAL of two classes also `auc`, `precision` and `recall`.
    Metrics are not weighted. Predictions are the network's `logits`, `probabilities`
    `[batch, classes]` (binary: `[batch, 2]`) and `classes`, int64 `[batch]`.

    In EVAL TensorBoard shows the matrix of confusions and, where features are images,
    the examples of the highest loss.

    Args:
      features: the network's input: a tensor, or a dict.
      labels: class numbers `[batch]` or `[batch, 1]`, or one probability a class,
        `[batch, classes]`. For a binary network also floats `[batch]` in [0, 1], the
        probability of class 1. None in PREDICT.
      mode: one of `ModeKeys`.
      network: returns logits `[batch, classes]` or `[batch, 1]`: its last layer has no
        softmax or sigmoid. Its `losses` are the regularization.
      optimizer: updates the network's trainable variables; may be None outside TRAIN.
      label_smoothing: part of each label that is spread evenly over the classes, in
        [0, 1). EVAL smooths, too, so that the two losses compare.
      class_weights: weight of an example by its class, one a class. The loss is
        sum(weight * loss) / sum(weight), in EVAL too. None: all weights are 1.
      clip_norm: global norm to which the gradient is clipped; None clips nothing.
      metrics: further metrics for EVAL, `{name: factory}`. They are given class numbers
        `[batch]` and probabilities `[batch, classes]`; for two classes both are
        `[batch, 1]`, and the probability is class 1's.
      feature_key: the entry of a features dict that the network takes. None: the whole
        dict, or the only entry of a dict of one.
      class_names: names of the classes, for TensorBoard; empty for their numbers.
      show_confusion: whether to show the confusions, of 1,000 classes at the most.
      num_mistakes: examples of the highest loss to show; 0 shows none.

    Raises:
      SpecError: logits or labels have a wrong shape, or an argument is out of range.
    """
    if not 0 <= label_smoothing < 1:
        raise SpecError(
            f"label_smoothing is {label_smoothing}: write a number from 0 to below 1, "
            "such as label_smoothing=0.1."
        )
    _check_gives_logits(network)
    inputs = checks.network_input(features, feature_key)
    outputs = network(inputs, training=mode == ModeKeys.TRAIN)
    outputs = checks.network_output(outputs, inputs=inputs, rank=2)
    logits = _class_logits(outputs)
    probabilities = tf.nn.softmax(logits)
    classes = tf.argmax(logits, axis=-1)
    if mode == ModeKeys.PREDICT:
        predictions = {
            "logits": outputs,
            "probabilities": probabilities,
            "classes": classes,
        }
        return EstimatorSpec(mode, predictions=predictions)

    targets = _targets(checks.labels_of(labels, mode), outputs, logits)
    true_classes = tf.argmax(targets, -1) if targets.dtype.is_floating else targets
    reported = {"accuracy": tf.cast(tf.equal(classes, true_classes), tf.float32)}
    if mode == ModeKeys.EVAL:
        reported.update(_eval_metrics(true_classes, probabilities, metrics or {}))
    train_op = None
    if mode == ModeKeys.TRAIN:
        train_op = TrainOp(optimizer, network.trainable_variables, clip_norm=clip_norm)
    loss, summaries = _cross_entropy(targets, logits, label_smoothing), {}
    if mode == ModeKeys.EVAL and show_confusion and logits.shape[-1] <= _MOST_SHOWN:
        summaries["confusion"] = confusion_matrix(
            true_classes, classes, logits.shape[-1], class_names
        )
    if mode == ModeKeys.EVAL and num_mistakes and checks.are_images(inputs):
        summaries["mistakes"] = image(
            inputs,
            num_mistakes,
            highest=loss,
            labels={"is": true_classes, "taken for": classes, "loss": loss},
            class_names=class_names,
            value_range=None,
            columns=math.ceil(math.sqrt(num_mistakes)),
        )
    return EstimatorSpec(
        mode,
        loss=loss,
        loss_weights=_example_weights(targets, logits, class_weights),
        regularization_losses=network.losses,
        train_op=train_op,
        metrics=reported,
        summaries=summaries,
    )


def _check_gives_logits(network: Any) -> None:
    """Checks that no softmax or sigmoid ends the network, where that can be seen."""
    # Only of a Sequential is it certain that its last layer is called last.
    if not isinstance(network, keras.Sequential) or not network.layers:
        return
    last = network.layers[-1]
    activation = getattr(last, "activation", None)
    if isinstance(last, keras.layers.Softmax) or activation in _PROBABILITIES:
        raise SpecError(
            f"the network's last layer {last.name!r} gives probabilities, and the loss "
            "is computed from logits: leave its activation out."
        )


def _class_logits(outputs: tf.Tensor) -> tf.Tensor:
    """Returns a logit for each class; a binary network's logit is class 1's against 0.

    Softmax of (0, z) is sigmoid of z, so binary is two classes from here on, and a
    class number other than 0 and 1 is as invalid as any that has no logit.
    """
    if outputs.shape[-1] != 1:
        return outputs
    return tf.concat([tf.zeros_like(outputs), outputs], axis=-1)


def _targets(labels: tf.Tensor, outputs: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns class numbers, int64 `[batch]`, or float32 `[batch, classes]`."""
    batch_fits = outputs.shape[:1].is_compatible_with(labels.shape[:1])
    if batch_fits and labels.shape.rank == 2:
        if labels.shape[-1] == logits.shape[-1]:
            return tf.cast(labels, tf.float32)
        if labels.shape[-1] == 1:
            labels = tf.squeeze(labels, axis=-1)
    if not batch_fits or labels.shape.rank != 1:
        raise SpecError(
            f"labels have shape {labels.shape} and logits {outputs.shape}: labels must "
            "be class numbers [batch] or [batch, 1], or [batch, classes]."
        )
    if not labels.dtype.is_floating:
        return tf.cast(labels, tf.int64)
    if outputs.shape[-1] == 1:
        labels = tf.cast(labels, tf.float32)
        return tf.stack([1 - labels, labels], axis=-1)
    raise SpecError(
        f"labels are {labels.dtype.name} of shape {labels.shape} for logits of shape "
        f"{outputs.shape}; class numbers are integers: tf.cast(labels, tf.int64)."
    )


def _cross_entropy(
    targets: tf.Tensor, logits: tf.Tensor, smoothing: float
) -> tf.Tensor:
    # Not by way of tf.one_hot: that turns a class number out of range into a loss of
    # 0, where the sparse operation fails or gives NaN.
    if targets.dtype.is_floating:
        loss = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    else:
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    if smoothing:
        # The cross-entropy of an even label: so class numbers can be smoothed, too.
        even = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        loss = (1 - smoothing) * loss + smoothing * even
    return loss


def _example_weights(
    targets: tf.Tensor, logits: tf.Tensor, class_weights: Sequence[float] | None
) -> tf.Tensor | None:
    if class_weights is None:
        return None
    if len(class_weights) != logits.shape[-1]:
        raise SpecError(
            f"class_weights has {len(class_weights)} entries for {logits.shape[-1]} "
            "classes: write one weight a class."
        )
    weights = tf.constant(class_weights, tf.float32)
    if targets.dtype.is_floating:
        return tf.reduce_sum(targets * weights, axis=-1)
    return tf.gather(weights, targets)


def _eval_metrics(
    true_classes: tf.Tensor,
    probabilities: tf.Tensor,
    factories: Mapping[str, Callable[[], Any]],
) -> dict[str, Any]:
    if probabilities.shape[-1] == 2:
        # Not [batch]: Keras takes the mean over the last axis for one example's value.
        true_classes, probabilities = true_classes[:, None], probabilities[:, 1:]
        factories = {
            "auc": keras.metrics.AUC,
            "precision": keras.metrics.Precision,
            "recall": keras.metrics.Recall,
            **factories,
        }
    return {
        name: metric(factory, true_classes, probabilities)
        for name, factory in factories.items()
    }
