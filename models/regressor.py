"""The model_fn of a regressor, of one number or several."""

from collections.abc import Callable, Mapping
from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, SpecError, TrainOp, metric

from . import checks


@gin.configurable
def regressor(
    features: Any,
    labels: Any,
    mode: str,
    network: keras.Model,
    optimizer: keras.optimizers.Optimizer | None = None,
    *,
    loss: str | Callable[..., Any] = "mean_squared_error",
    clip_norm: float | None = None,
    metrics: Mapping[str, Callable[[], Any]] | None = None,
    feature_key: str | None = None,
) -> EstimatorSpec:
    """Predicts numbers, by default with the least squared error: a model_fn.

    Reports `mae` and `rmse`. Predictions are `predictions`, the network's output.

    Args:
      features: the network's input: a tensor, or a dict.
      labels: numbers of the shape of the network's output. `[batch]` fits
        `[batch, 1]`; nothing else is broadcast. None in PREDICT.
      mode: one of `ModeKeys`.
      network: returns `[batch, outputs]`. Its `losses` are the regularization.
      optimizer: updates the network's trainable variables; may be None outside TRAIN.
      loss: Keras' name of a loss, a `keras.losses.Loss` (its class, or an object, whose
        `reduction` is not used), or a function of labels and outputs that returns one
        loss an example.
      clip_norm: global norm to which the gradient is clipped; None clips nothing.
      metrics: further metrics for EVAL, `{name: factory}`, of labels and outputs.
      feature_key: the entry of a features dict that the network takes. None: the whole
        dict, or the only entry of a dict of one.

    Raises:
      SpecError: outputs and labels do not fit each other.
    """
    inputs = checks.network_input(features, feature_key)
    outputs = network(inputs, training=mode == ModeKeys.TRAIN)
    outputs = checks.network_output(outputs, inputs=inputs)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"predictions": outputs})

    labels, outputs = _aligned(checks.labels_of(labels, mode), outputs)
    reported = {
        "mae": tf.abs(outputs - labels),
        "rmse": metric(keras.metrics.RootMeanSquaredError, labels, outputs),
    }
    if mode == ModeKeys.EVAL:
        for name, factory in (metrics or {}).items():
            reported[name] = metric(factory, labels, outputs)
    train_op = None
    if mode == ModeKeys.TRAIN:
        train_op = TrainOp(optimizer, network.trainable_variables, clip_norm=clip_norm)
    return EstimatorSpec(
        mode,
        loss=_losses(loss, labels, outputs),
        regularization_losses=network.losses,
        train_op=train_op,
        metrics=reported,
    )


def _aligned(labels: tf.Tensor, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns labels and outputs in one shape of rank 2 or more.

    Keras' losses average over the last axis, which must not be the batch.
    """
    shapes = (
        f"labels have shape {labels.shape} and the network's outputs {outputs.shape}"
    )
    if labels.shape.rank == 1:
        labels = labels[:, None]
    if outputs.shape.rank == 1:
        outputs = outputs[:, None]
    if not labels.shape.is_compatible_with(outputs.shape):
        raise SpecError(
            f"{shapes}; they must be the same, as subtracting one from the other would "
            "broadcast: reshape the labels in input_fn, or change the last layer's "
            "units."
        )
    return tf.cast(labels, tf.float32), outputs


def _losses(loss: Any, labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    function = keras.losses.get(loss)
    if isinstance(function, keras.losses.Loss):
        # `call` is the loss before its reduction to a mean over this replica's batch.
        function = function.call
    losses = function(labels, outputs)
    if losses.shape.rank == 0:
        raise SpecError(
            f"loss {loss!r} gave a scalar for labels of shape {labels.shape}: return "
            "one loss an example, keras.ops.mean(..., axis=-1)."
        )
    return losses
