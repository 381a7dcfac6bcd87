"""What all heads share: from logits to the whole EstimatorSpec, in one line.

    def model_fn(features, labels, mode, network, optimizer):
        head = BinaryClassHead(weight_column="weight")
        logits = network(features["x"], training=mode == ModeKeys.TRAIN)
        return head.create_estimator_spec(
            features, mode, logits, labels, optimizer, network.trainable_variables
        )

Names, metrics and signatures are those of tf.estimator's heads, and so are the numbers,
but for one: with weights the loss is sum(weight * loss) / sum(weight), which
tf.estimator calls `average_loss`; its `loss` was sum(weight * loss) / batch size.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, SpecError, TrainOp, metric

from . import checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head(abc.ABC):
    """Loss, weights, metrics, predictions and signatures of one kind of label.

    Attributes:
      weight_column: entry of features that holds a weight an example, 0 or more,
        `[batch]` or `[batch, 1]`; None where all count alike.
      name: name of the head; None for none. In a MultiHead each has one.
    """

    weight_column: str | None = None
    name: str | None = None

    @property
    @abc.abstractmethod
    def logits_dimension(self) -> int | None:
        """The size of the logits' last dimension; None for any."""

    @abc.abstractmethod
    def targets(self, labels: Any) -> tf.Tensor:
        """Returns labels as the head computes with them.

        Args:
          labels: as input_fn gives them.

        Raises:
          SpecError: they have a wrong shape or dtype.
        """

    @abc.abstractmethod
    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """Returns the losses, float32 `[batch]` or `[batch, outputs]`.

        Args:
          targets: what `targets` returned.
          logits: float32 `[batch, logits_dimension]`.
        """

    @abc.abstractmethod
    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the predictions by name, each with a leading batch dimension.

        Args:
          logits: float32 `[batch, logits_dimension]`.
        """

    @abc.abstractmethod
    def metrics(
        self,
        features: Any,
        targets: tf.Tensor,
        logits: tf.Tensor,
        weights: tf.Tensor | None,
    ) -> dict[str, Any]:
        """Returns the metrics of an evaluation by name, but for `average_loss`.

        Args:
          features: what model_fn was given.
          targets: what `targets` returned.
          logits: float32 `[batch, logits_dimension]`.
          weights: float32 `[batch]`, or None.
        """

    @abc.abstractmethod
    def export_outputs(
        self, predictions: Mapping[str, tf.Tensor]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """Returns the signatures of a SavedModel, with `serving_default`.

        Args:
          predictions: what `predictions` returned.
        """

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        optimizer: keras.optimizers.Optimizer | None = None,
        trainable_variables: Sequence[Any] | None = None,
        *,
        train_op: Any = None,
        regularization_losses: Sequence[Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> EstimatorSpec:
        """Returns what a model_fn returns.

        Args:
          features: what model_fn was given; only `weight_column` is read.
          mode: one of `ModeKeys`.
          logits: `[batch, logits_dimension]`, without an activation.
          labels: what model_fn was given; None in PREDICT.
          optimizer: updates `trainable_variables`.
          trainable_variables: variables to train, such as
            `network.trainable_variables`.
          train_op: a TrainOp or several, in the place of the two before.
          regularization_losses: scalars that are added to the loss.
          metrics: further metrics for EVAL, as `EstimatorSpec.metrics`.

        Raises:
          SpecError: logits, labels or weights have a wrong shape; or TRAIN is given
            nothing to train.
        """
        logits = self.checked_logits(logits)
        if mode == ModeKeys.PREDICT:
            return self._to_predict(logits)
        targets, loss, weights = self.losses_of(features, mode, logits, labels)
        reported: dict[str, Any] = {}
        if mode == ModeKeys.EVAL:
            reported = self.all_metrics(features, targets, logits, loss, weights)
            reported.update(metrics or {})
        return EstimatorSpec(
            mode,
            loss=loss,
            loss_weights=_broadcast(weights, loss),
            regularization_losses=regularization_losses,
            train_op=_train_op(mode, optimizer, trainable_variables, train_op),
            metrics=reported,
        )

    def losses_of(
        self, features: Any, mode: str, logits: Any, labels: Any
    ) -> tuple[Any, tf.Tensor, tf.Tensor | None]:
        """Returns targets, losses and weights, see `create_estimator_spec`."""
        if labels is None:
            raise SpecError(
                f"mode {mode!r} needs labels and got None: return (features, labels) "
                "from input_fn."
            )
        targets = self.targets(labels)
        if not targets.shape[:1].is_compatible_with(logits.shape[:1]):
            raise SpecError(
                f"labels have shape {targets.shape} and logits {logits.shape}: give "
                "one label for each row of logits."
            )
        loss = tf.cast(self.losses(targets, logits), tf.float32)
        return targets, loss, self._weights(features, logits)

    def all_metrics(
        self,
        features: Any,
        targets: Any,
        logits: Any,
        loss: tf.Tensor,
        weights: tf.Tensor | None,
    ) -> dict[str, Any]:
        """Returns the metrics of an evaluation by name, with `average_loss`."""
        average = {"average_loss": mean(loss, _broadcast(weights, loss))}
        return average | self.metrics(features, targets, logits, weights)

    def checked_logits(self, logits: Any) -> Any:
        """Returns the logits in float32, in which losses are computed.

        Raises:
          SpecError: they are no tensor `[batch, logits_dimension]`.
        """
        logits = checks.network_output(logits, inputs=None)
        size = self.logits_dimension
        if logits.shape.rank == 1 and size == 1:
            return logits[:, None]
        fits = logits.shape.rank == 2 and logits.shape[-1] in (size, None)
        if not fits and not (size is None and logits.shape.rank == 2):
            raise SpecError(
                f"{type(self).__name__} got logits of shape {logits.shape} and needs "
                f"[batch, {'list' if size is None else size}]: end the network in "
                f"keras.layers.Dense({'1' if size is None else size})."
            )
        return logits

    def _to_predict(self, logits: Any) -> EstimatorSpec:
        predictions = self.predictions(logits)
        return EstimatorSpec(
            ModeKeys.PREDICT,
            predictions=predictions,
            export_outputs=self.export_outputs(predictions),
        )

    def _weights(self, features: Any, logits: Any) -> tf.Tensor | None:
        """Returns a weight for each example, float32 `[batch]`; None without a column.

        Raises:
          SpecError: there is no such column, or it has a wrong shape.
        """
        if self.weight_column is None:
            return None
        weights = column(features, self.weight_column, f"{type(self).__name__}.weight")
        if weights.shape.rank == 2 and weights.shape[-1] in (1, None):
            weights = tf.squeeze(weights, -1)
        batch = tf.nest.flatten(logits)[0].shape[:1]
        if weights.shape.rank != 1 or not weights.shape.is_compatible_with(batch):
            raise SpecError(
                f"weight_column {self.weight_column!r} has shape {weights.shape} for "
                f"{batch[0]} examples: give one weight an example, [batch]."
            )
        weights = tf.cast(weights, tf.float32)
        # The loss is divided by their sum, and NaN would not name its column. Without
        # quotes, which TensorFlow would escape.
        words = (
            f"{type(self).__name__}.weight_column, {self.weight_column}, must hold "
            "numbers of 0 or more: mend them in input_fn"
        )
        return checked(weights >= 0, weights, words)


def column(features: Any, name: str, field: str) -> tf.Tensor:
    """Returns an entry of features, dense.

    Args:
      features: what model_fn was given.
      name: name of the entry.
      field: what names it, for the message: `BinaryClassHead.weight` of
        `BinaryClassHead.weight_column`.

    Raises:
      SpecError: there is no such entry.
    """
    if not isinstance(features, Mapping) or name not in features:
        held = sorted(features) if isinstance(features, Mapping) else "no dict"
        raise SpecError(
            f"{field}_column is {name!r} and features hold {held}: name one of these, "
            "or add it to the features in input_fn."
        )
    return tf.convert_to_tensor(features[name])


def dense_labels(labels: Any, width: int, head: str) -> tf.Tensor:
    """Returns labels as `[batch, width]`.

    Args:
      labels: a tensor `[batch, width]`, for a width of 1 also `[batch]`; or a dict of
        one.
      width: labels of one example.
      head: class name of the head, for the message.

    Raises:
      SpecError: they have another shape.
    """
    labels = checks.labels_of(labels, "train or eval")
    if labels.shape.rank == 1 and width == 1:
        labels = labels[:, None]
    if labels.shape.rank != 2 or labels.shape[-1] not in (width, None):
        either = " or [batch]" if width == 1 else ""
        raise SpecError(
            f"{head} got labels of shape {labels.shape} and needs "
            f"[batch, {width}]{either}: reshape them in input_fn."
        )
    return tf.ensure_shape(labels, [None, width])


def checked(condition: tf.Tensor, tensor: tf.Tensor, words: str) -> tf.Tensor:
    """Returns the tensor; a step in which the condition is false fails with the words.

    Args:
      condition: bool tensor.
      tensor: tensor whose values the message shows.
      words: what is wrong, and what to write.
    """
    check = tf.debugging.Assert(tf.reduce_all(condition), [words, tensor])
    # Eagerly it has raised already, and is None.
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(tensor)


def mean(values: Any, weights: Any = None) -> Any:
    """Returns the metric of a mean over examples.

    Args:
      values: tensor with a leading batch dimension.
      weights: weights that broadcast to it; None for 1.
    """
    return metric(
        keras.metrics.Mean, tf.cast(values, tf.float32), sample_weight=weights
    )


def _broadcast(weights: tf.Tensor | None, loss: tf.Tensor) -> tf.Tensor | None:
    """Returns weights `[batch]` with the rank of the loss."""
    if weights is None or loss.shape.rank == 1:
        return weights
    return tf.reshape(weights, [-1] + [1] * (loss.shape.rank - 1))


def _train_op(mode: str, optimizer: Any, variables: Any, train_op: Any) -> Any:
    """Returns the train op of TRAIN, and None in another mode."""
    if mode != ModeKeys.TRAIN:
        return None
    if train_op is not None:
        if optimizer is not None:
            raise SpecError(
                "both train_op and optimizer are given: keep one of the two."
            )
        return train_op
    if optimizer is None or variables is None:
        raise SpecError(
            "mode 'train' needs something to train: write "
            "create_estimator_spec(features, mode, logits, labels, optimizer, "
            "network.trainable_variables), or train_op=TrainOp(...)."
        )
    return TrainOp(optimizer, variables)
