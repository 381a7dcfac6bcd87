# SPDX-License-Identifier: Apache-2.0
"""The base of all heads: from logits to a whole EstimatorSpec.

    def model_fn(features, labels, mode, network, optimizer):
        head = BinaryClassHead(weight_column="weight")
        logits = network(features["x"], training=mode == ModeKeys.TRAIN)
        return head.create_estimator_spec(
            features, mode, logits, labels, optimizer, network.trainable_variables
        )

Metrics, predictions and signatures have the names and the values of tf.estimator's heads. With
weights the loss is sum(weight * loss) / sum(weight), its `average_loss`.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from gin_estimator import EstimatorSpec, ModeKeys, TrainOp, errors, metric

from . import features as features_lib

Tensors = dict[str, tf.Tensor]
Weights = tf.Tensor | None


class Scored(NamedTuple):
    """Losses `[batch]` or `[batch, outputs]`, their weights, and metrics by name."""

    loss: tf.Tensor
    weights: Weights
    metrics: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head(abc.ABC):
    """Loss, metrics, predictions and signatures for one kind of label.

    A label out of range, or a weight below 0, ends the step with its value; XLA drops the check.

    Attributes:
      name: name of the head in a MultiHead; None for none.
      loss_reduction: "mean" or "sum", see `EstimatorSpec`.
    """

    name: str | None = None
    loss_reduction: str = "mean"

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int:
        """The size of the last dimension of the logits."""

    @abc.abstractmethod
    def checked_logits(self, logits: Any) -> Any:
        """Returns the logits in float32, and refuses those of another shape."""

    @abc.abstractmethod
    def scored(self, features: Any, mode: str, logits: Any, labels: Any) -> Scored:
        """Returns losses, weights and metrics of checked logits in TRAIN and EVAL."""

    @abc.abstractmethod
    def predictions(self, logits: Any) -> Tensors:
        """Returns the predictions by name, each with a leading batch dimension."""

    @abc.abstractmethod
    def export_outputs(self, predictions: Mapping[str, tf.Tensor]) -> dict[str, Tensors]:
        """Returns the outputs of each signature of a SavedModel."""

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: keras.optimizers.Optimizer | None = None,
        trainable_variables: Sequence[Any] | None = None,
        *,
        train_op: TrainOp | Sequence[TrainOp] | None = None,
        regularization_losses: Sequence[Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> EstimatorSpec:
        """Returns the spec that a model_fn returns.

        Args:
          features: features of model_fn; only weight columns are read.
          mode: one of `ModeKeys`.
          logits: `[batch, logits_dimension]`, without an activation.
          labels: labels of model_fn; None in PREDICT.
          optimizer: updates `trainable_variables`.
          trainable_variables: variables to train, usually `network.trainable_variables`.
          train_op: one or several TrainOps, instead of the two arguments before.
          regularization_losses: scalars that are added to the loss, usually `network.losses`.
          metrics: more metrics for EVAL, as in EstimatorSpec.

        Raises:
          SpecError: logits, labels or weights have a wrong shape, or TRAIN has nothing to train.
        """
        logits = self.checked_logits(logits)
        if mode == ModeKeys.PREDICT:
            predictions = self.predictions(logits)
            outputs = self.export_outputs(predictions)
            return EstimatorSpec(mode, predictions=predictions, export_outputs=outputs)
        scored = self.scored(features, mode, logits, labels)
        return EstimatorSpec(
            mode,
            loss=scored.loss,
            loss_weights=scored.weights,
            loss_reduction=self.loss_reduction,
            regularization_losses=regularization_losses or (),
            train_op=_train_op(mode, optimizer, trainable_variables, train_op),
            metrics=scored.metrics | dict(metrics or {}) if mode == ModeKeys.EVAL else {},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SingleHead(Head):
    """A head of one tensor of logits.

    Attributes:
      weight_column: entry of features with the weights of the examples, `[batch]` or
        `[batch, 1]`, 0 or more; None for equal weights.
    """

    weight_column: str | None = None

    @abc.abstractmethod
    def targets(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns labels as the losses take them, and ends the step if one is out of range."""

    @abc.abstractmethod
    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Returns the losses, `[batch]` or `[batch, outputs]`."""

    @abc.abstractmethod
    def metrics(self, targets: tf.Tensor, logits: tf.Tensor, weights: Weights) -> dict[str, Any]:
        """Returns the metrics of EVAL by name, except `average_loss`."""

    def checked_logits(self, logits: Any) -> tf.Tensor:
        """See `Head`; `[batch]` is `[batch, 1]` if the head has one logit."""
        logits, size = tf.cast(logits, tf.float32), self.logits_dimension
        if logits.shape.rank == 1 and size == 1:
            logits = logits[:, tf.newaxis]
        if logits.shape.rank != 2 or logits.shape[-1] not in (size, None):
            raise errors.SpecError(
                f"logits have shape {logits.shape}: {type(self).__name__} expects [batch, {size}]. "
                f"Set the last layer of the network to keras.layers.Dense({size})."
            )
        return tf.ensure_shape(logits, [None, size])

    def scored(self, features: Any, mode: str, logits: tf.Tensor, labels: Any) -> Scored:
        """See `Head`."""
        if not isinstance(labels, tf.RaggedTensor | tf.SparseTensor):
            labels = features_lib.required_labels(labels, mode)
        targets = self.targets(labels)
        if not targets.shape[:1].is_compatible_with(logits.shape[:1]):
            raise errors.SpecError(
                f"labels have shape {labels.shape} and logits {logits.shape}: expected one label "
                "for each row of logits."
            )
        loss = tf.cast(self.losses(targets, logits), tf.float32)
        weights = None
        if self.weight_column is not None:
            weights = features_lib.example_weights(features, self.weight_column)
        metrics = {}
        if mode == ModeKeys.EVAL:
            metrics = {"average_loss": mean(loss, weights)}
            metrics |= self.metrics(targets, logits, weights)
        return Scored(loss, like(loss, weights), metrics)

    def export_outputs(self, predictions: Mapping[str, tf.Tensor]) -> dict[str, Tensors]:
        """Returns signatures: by classes, by the predicted number, and all predictions."""
        outputs: dict[str, Tensors] = {}
        if "probabilities" in predictions:
            classes = predictions.get("all_classes", predictions["classes"])
            scores = {"scores": predictions["probabilities"], "classes": classes}
            outputs = {"serving_default": scores, "classification": scores}
        number = predictions.get("logistic", predictions.get("predictions"))
        if number is not None:
            outputs["regression"] = {"outputs": number}
            outputs.setdefault("serving_default", outputs["regression"])
        return {**outputs, "predict": dict(predictions)}


def dense_labels(labels: tf.Tensor, width: int) -> tf.Tensor:
    """Returns labels as `[batch, width]`.

    Raises:
      SpecError: they have another shape.
    """
    if labels.shape.rank == 1 and width == 1:
        labels = labels[:, tf.newaxis]
    if labels.shape.rank != 2 or labels.shape[-1] not in (width, None):
        either = "[batch] or " if width == 1 else ""
        raise errors.SpecError(
            f"labels have shape {labels.shape}: expected {either}[batch, {width}]."
        )
    return tf.ensure_shape(labels, [None, width])


def as_floats(labels: tf.Tensor) -> tf.Tensor:
    """Returns labels as float32, and refuses texts."""
    if labels.dtype == tf.string:
        raise errors.SpecError(
            "labels have dtype string: expected numbers. Set label_vocabulary=[...] of a head of "
            "classes, or labels = tf.strings.to_number(labels)."
        )
    return tf.cast(labels, tf.float32)


def like(values: tf.Tensor, weights: Weights) -> Weights:
    """Returns weights `[batch]` in the shape of `values`, `[batch, ...]`; None for None."""
    if weights is None:
        return None
    column = tf.reshape(weights, [-1] + [1] * (values.shape.rank - 1))
    return tf.ones_like(values, tf.float32) * column


def mean(values: tf.Tensor, weights: Weights = None) -> Any:
    """Returns the metric of a mean of `values`, `[batch, ...]`, by weights `[batch]`."""
    values = tf.cast(values, tf.float32)
    return metric(keras.metrics.Mean, values, sample_weight=like(values, weights))


def _train_op(mode: str, optimizer: Any, variables: Any, train_op: Any) -> Any:
    if mode != ModeKeys.TRAIN:
        return ()
    if (train_op is None) == (optimizer is None or variables is None):
        given = "neither" if train_op is None else "both"
        raise errors.SpecError(
            f"create_estimator_spec got {given} of optimizer and train_op in mode 'train': "
            "expected one. Set optimizer and network.trainable_variables, or train_op=TrainOp(...)."
        )
    return TrainOp(optimizer, variables) if train_op is None else train_op
