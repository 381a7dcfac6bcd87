# SPDX-License-Identifier: Apache-2.0
"""Heads of numbers: least squares, probabilities, counts."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from gin_estimator import errors

from . import features as features_lib
from .heads import SingleHead, Tensors, Weights, as_floats, dense_labels, mean


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionHead(SingleHead):
    """One or several numbers, by default with the squared error.

    The mean is over examples and numbers. Reports `average_loss`, `prediction/mean` and
    `label/mean`.

    Attributes:
      label_dimension: number of predicted numbers.
      loss_fn: function of labels and logits, float32 `[batch, label_dimension]`, that returns
        losses of that shape or `[batch, 1]`; None for the squared error.
      inverse_link_fn: function from logits to predictions; None if they are equal.
    """

    label_dimension: int = dataclasses.field(default=1, kw_only=False)
    loss_fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    inverse_link_fn: Callable[[tf.Tensor], tf.Tensor] | None = None

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return self.label_dimension

    def targets(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns float32 `[batch, label_dimension]`; see `SingleHead`."""
        return as_floats(dense_labels(labels, self.label_dimension))

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `SingleHead`."""
        if self.loss_fn is None:
            return tf.math.squared_difference(targets, logits)
        loss = tf.convert_to_tensor(self.loss_fn(targets, logits))
        if loss.shape.rank != 2 or loss.shape[-1] not in (1, self.label_dimension):
            raise errors.SpecError(
                f"{type(self).__name__}.loss_fn returned shape {loss.shape}: expected losses "
                f"[batch, {self.label_dimension}] or [batch, 1], without a mean over the batch."
            )
        return loss

    def outputs(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the predicted numbers, `[batch, label_dimension]`."""
        return logits if self.inverse_link_fn is None else self.inverse_link_fn(logits)

    def predictions(self, logits: tf.Tensor) -> Tensors:
        """See `Head`; without `logits` if they are the predictions."""
        outputs = self.outputs(logits)
        same = {} if outputs is logits else {"logits": logits}
        return {"predictions": outputs, **same}

    def metrics(self, targets: tf.Tensor, logits: tf.Tensor, weights: Weights) -> dict[str, Any]:
        """See `SingleHead`."""
        outputs = self.outputs(logits)
        return {"prediction/mean": mean(outputs, weights), "label/mean": mean(targets, weights)}


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class LogisticRegressionHead(RegressionHead):
    """A probability, from labels in [0, 1], by sigmoid cross-entropy."""

    def targets(self, labels: tf.Tensor) -> tf.Tensor:
        """See `SingleHead`."""
        return features_lib.checked(super().targets(labels), "labels", 0, 1)

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `SingleHead`."""
        return tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)

    def outputs(self, logits: tf.Tensor) -> tf.Tensor:
        """See `RegressionHead`."""
        return tf.sigmoid(logits)


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonRegressionHead(RegressionHead):
    """A count with the mean exp(logit), by Poisson's negative log-likelihood.

    Attributes:
      compute_full_loss: whether the loss has Stirling's formula for log(label!), a constant.
    """

    compute_full_loss: bool = True

    def targets(self, labels: tf.Tensor) -> tf.Tensor:
        """See `SingleHead`."""
        return features_lib.checked(super().targets(labels), "labels", 0, float("inf"))

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `SingleHead`."""
        return tf.nn.log_poisson_loss(targets, logits, self.compute_full_loss)

    def outputs(self, logits: tf.Tensor) -> tf.Tensor:
        """See `RegressionHead`."""
        return tf.exp(logits)
