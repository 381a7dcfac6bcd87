# SPDX-License-Identifier: Apache-2.0
"""The model_fn of a regression."""

from collections.abc import Callable
from typing import Any

import gin
import keras
import tensorflow as tf

from gin_estimator import EstimatorSpec, ModeKeys, errors, metric

from . import features as features_lib


@gin.configurable
def regressor(
    features: Any,
    labels: Any,
    mode: str,
    network: keras.Model,
    optimizer: keras.optimizers.Optimizer | None = None,
    *,
    loss: Any = "mean_squared_error",
    loss_reduction: str = "mean",
    clip_norm: float | None = None,
    feature_key: str | None = None,
) -> EstimatorSpec:
    """Returns the spec of a regression: metrics `mae`, `rmse`; `predictions` `[batch, outputs]`.

    Args:
      features: input of the network, a tensor or a dict.
      labels: numbers of the shape of the outputs; `[batch]` for outputs `[batch, 1]`.
      mode: one of `ModeKeys`.
      network: returns `[batch, outputs]`. Its `losses` are the regularization.
      optimizer: updates the network; None outside of TRAIN.
      loss: a Keras loss: its name, class or object, or a function of labels and outputs that
        returns losses by example.
      loss_reduction: "mean" or "sum", see `EstimatorSpec`.
      clip_norm: maximum global norm of the gradient; None for none.
      feature_key: entry of a dict of features that the network takes.

    Raises:
      SpecError: labels and outputs do not have the same shape.
    """
    inputs = features_lib.network_input(features, feature_key)
    outputs = features_lib.outputs_of(network, inputs, mode)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"predictions": outputs})
    labels = tf.cast(features_lib.required_labels(labels, mode), tf.float32)
    if labels.shape.rank == 1 and outputs.shape.rank == 2 and outputs.shape[-1] == 1:
        labels = labels[:, tf.newaxis]
    if labels.shape.rank != outputs.shape.rank or not labels.shape.is_compatible_with(
        outputs.shape
    ):
        raise errors.SpecError(
            f"labels have shape {labels.shape} and outputs {outputs.shape}: expected equal shapes."
        )
    losses = _loss_fn(loss)(labels, outputs)
    if losses.shape.rank == 0:
        raise errors.SpecError(
            f"loss {loss!r} returned a scalar: expected losses by example, [batch]."
        )
    return EstimatorSpec(
        mode,
        loss=losses,
        loss_reduction=loss_reduction,
        regularization_losses=network.losses,
        train_op=features_lib.train_op(mode, network, optimizer, clip_norm),
        metrics={
            "mae": metric(keras.metrics.MeanAbsoluteError, labels, outputs),
            "rmse": metric(keras.metrics.RootMeanSquaredError, labels, outputs),
        },
    )


def _loss_fn(loss: Any) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    if isinstance(loss, type):
        loss = loss()
    loss = keras.losses.get(loss)
    # The method `call` of a Loss object returns the losses before their mean.
    return loss.call if isinstance(loss, keras.losses.Loss) else loss
