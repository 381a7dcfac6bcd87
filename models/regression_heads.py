"""Heads of numbers: least squares, probabilities, counts, amounts."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import gin
import tensorflow as tf

from pipeline import SpecError

from .heads import Head, checked, dense_labels, mean


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionHead(Head):
    """One or several numbers an example: by default the squared error.

    The loss of an example is the mean over its numbers. Reports `average_loss`,
    `prediction/mean` and `label/mean`.

    Attributes:
      label_dimension: numbers that are predicted for each example.
      loss_fn: takes labels and logits, both float32 `[batch, label_dimension]`, and
        returns losses of that shape or `[batch, 1]`; None for the squared error.
      inverse_link_fn: takes the logits and returns the predictions; None where logits
        are the predictions.
    """

    label_dimension: int = dataclasses.field(default=1, kw_only=False)
    loss_fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    inverse_link_fn: Callable[[tf.Tensor], tf.Tensor] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.label_dimension, int) or self.label_dimension < 1:
            raise SpecError(
                f"{type(self).__name__}.label_dimension is {self.label_dimension!r}: "
                "write how many numbers an example's label has, 1 or more."
            )

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return self.label_dimension

    def targets(self, labels: Any) -> tf.Tensor:
        """Returns float32 `[batch, label_dimension]`, see `Head`."""
        labels = dense_labels(labels, self.label_dimension, type(self).__name__)
        if labels.dtype == tf.string:
            raise SpecError(
                f"{type(self).__name__} got labels of strings: write "
                "tf.strings.to_number(labels) in input_fn."
            )
        return tf.cast(labels, tf.float32)

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        if self.loss_fn is None:
            return tf.math.squared_difference(targets, logits)
        loss = tf.convert_to_tensor(self.loss_fn(targets, logits))
        if loss.shape.rank != 2 or loss.shape[-1] not in (1, self.label_dimension):
            raise SpecError(
                f"{type(self).__name__}.loss_fn returned shape {loss.shape}: return "
                f"losses [batch, {self.label_dimension}] or [batch, 1], not their mean."
            )
        return loss

    def outputs(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the predicted numbers, `[batch, label_dimension]`.

        Args:
          logits: float32 `[batch, logits_dimension]`.
        """
        return self.inverse_link_fn(logits) if self.inverse_link_fn else logits

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`; `logits` are there where they differ from `predictions`."""
        outputs = self.outputs(logits)
        if outputs is logits:
            return {"predictions": outputs}
        return {"predictions": outputs, "logits": logits}

    def metrics(
        self,
        features: Any,
        targets: tf.Tensor,
        logits: tf.Tensor,
        weights: tf.Tensor | None,
    ) -> dict[str, Any]:
        """See `Head`."""
        weights = None if weights is None else weights[:, None]
        return {
            "prediction/mean": mean(self.outputs(logits), weights),
            "label/mean": mean(targets, weights),
        }

    def export_outputs(
        self, predictions: Mapping[str, tf.Tensor]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """See `Head`; names are tf.estimator's."""
        outputs = {"outputs": predictions["predictions"]}
        return {
            "serving_default": outputs,
            "regression": outputs,
            "predict": dict(predictions),
        }


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class LogisticRegressionHead(RegressionHead):
    """A probability, from labels in [0, 1]: sigmoid cross-entropy."""

    def targets(self, labels: Any) -> tf.Tensor:
        """See `Head`."""
        labels = super().targets(labels)
        words = "labels must be probabilities from 0 to 1"
        return checked((labels >= 0) & (labels <= 1), labels, words)

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        return tf.nn.sigmoid_cross_entropy_with_logits(targets, logits)

    def outputs(self, logits: tf.Tensor) -> tf.Tensor:
        """See `RegressionHead`."""
        return tf.sigmoid(logits)


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonRegressionHead(RegressionHead):
    """A count, whose mean is exp(logit): the negative log likelihood of Poisson.

    The loss is exp(logit) - label * logit + log(label!), the last by Stirling's formula
    where `compute_full_loss` asks for it.

    Attributes:
      compute_full_loss: whether the loss holds log(label!), which trains nothing.
    """

    compute_full_loss: bool = True

    def targets(self, labels: Any) -> tf.Tensor:
        """See `Head`."""
        labels = super().targets(labels)
        return checked(labels >= 0, labels, "labels must be counts, 0 or more")

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        return tf.nn.log_poisson_loss(targets, logits, self.compute_full_loss)

    def outputs(self, logits: tf.Tensor) -> tf.Tensor:
        """See `RegressionHead`."""
        return tf.exp(logits)


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class LogNormalRegressionHead(RegressionHead):
    """An amount above 0, whose logarithm is normal: by two logits, its mean and spread.

    With m the first logit and s = softplus(second), the loss is the negative log
    likelihood of the label y: log(y) + log(s) + log(2 pi) / 2 + (log(y) - m)^2 /
    (2 s^2). The prediction is the mean of y, exp(m + s^2 / 2).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_dimension != 1:
            raise SpecError(
                f"LogNormalRegressionHead.label_dimension is {self.label_dimension}: "
                "leave it out, and write a MultiHead for several amounts."
            )

    @property
    def logits_dimension(self) -> int:
        """See `Head`."""
        return 2

    def targets(self, labels: Any) -> tf.Tensor:
        """See `Head`."""
        labels = super().targets(labels)
        return checked(labels > 0, labels, "labels must be amounts above 0")

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        log, middle, spread = tf.math.log(targets), logits[:, :1], _spread(logits)
        constant = 0.5 * tf.math.log(tf.constant(2 * 3.141592653589793))
        error = tf.math.squared_difference(log, middle) / (2 * tf.square(spread))
        return log + tf.math.log(spread) + constant + error

    def outputs(self, logits: tf.Tensor) -> tf.Tensor:
        """See `RegressionHead`."""
        return tf.exp(logits[:, :1] + tf.square(_spread(logits)) / 2)


def _spread(logits: tf.Tensor) -> tf.Tensor:
    # From below bounded, or one label that is met exactly has a loss without end.
    return tf.maximum(tf.math.softplus(logits[:, 1:]), 1e-4)
