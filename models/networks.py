"""Factories of plain networks, whose layers are built on the first call."""

from collections.abc import Callable, Sequence
from typing import Any

import gin
import keras

from pipeline import RefusedValueError

from .tables.linear import Linear
from .tables.network import encoder_of

Activation = str | Callable[[Any], Any]


@gin.configurable(denylist=["config"])
def linear(
    num_outputs: int | None = None,
    l2: float = 0.0,
    *,
    schema: Any = None,
    config: Any = ...,
) -> keras.Model:
    """Makes a linear model, x w + b: linear or logistic regression.

    Without a schema it is one dense layer on flattened features: it takes
    `[batch, ...]` and returns `[batch, num_outputs]`. With one, x are the features
    with `wide=True`: numbers, one-hot categories, counts of a bag's items; all weights
    begin at 0, as those of tf.estimator's LinearClassifier and LinearRegressor, which
    train by FTRL at min(0.2, 1 / sqrt(features)).

    Args:
      num_outputs: units, without an activation. None: 1; with a schema `table_model`
        asks its head.
      l2: weight of the kernel's sum of squares in the loss, without a schema.
      schema: an `inputs.Schema`; the input_fn has the same. None: features are arrays.
      config: the RunConfig, which the driver gives, for the schema; see `dnn`.

    Raises:
      ValueError: l2 is given with a schema, or a schema in the place of num_outputs.
    """
    if hasattr(num_outputs, "prepared"):
        raise RefusedValueError(
            f"linear.num_outputs is a {type(num_outputs).__name__}: write "
            "linear(schema=schema, config=config)."
        )
    if schema is None:
        layers = [keras.layers.Flatten(), _dense(num_outputs or 1, l2)]
        return keras.Sequential(layers, name="linear")
    if l2:
        raise RefusedValueError(
            f"linear.l2 is {l2!r} beside a schema, and would read whole tables in each "
            "step: leave it out, and write Ftrl.l2_regularization_strength."
        )
    return Linear(encoder_of(schema, config, "linear"), num_outputs, "linear")


@gin.configurable
def mlp(
    hidden: Sequence[int] = (128,),
    num_outputs: int = 10,
    activation: Activation = "relu",
    dropout: float = 0.0,
    l2: float = 0.0,
) -> keras.Model:
    """Makes dense layers on flattened features.

    The network takes `[batch, ...]` and returns `[batch, num_outputs]`.

    Args:
      hidden: units of each hidden layer.
      num_outputs: units of the last layer, which has no activation: logits.
      activation: activation of the hidden layers.
      dropout: part of each hidden layer's units that training drops.
      l2: weight of each kernel's sum of squares in the loss.
    """
    layers = [keras.layers.Flatten()]
    for units in hidden:
        layers.append(_dense(units, l2, activation))
        if dropout:
            layers.append(keras.layers.Dropout(dropout))
    layers.append(_dense(num_outputs, l2))
    return keras.Sequential(layers, name="mlp")


@gin.configurable
def cnn(
    filters: Sequence[int] = (32, 64),
    dense: Sequence[int] = (64,),
    num_outputs: int = 10,
    l2: float = 0.0,
    dropout: float = 0.0,
    batch_norm: bool = False,
    kernel_size: int = 3,
    padding: str = "valid",
    activation: Activation = "relu",
) -> keras.Model:
    """Makes convolutions, each halved by max pooling, then dense layers.

    It takes `[batch, height, width, channels]` and returns `[batch, num_outputs]`. The
    defaults are the network of TensorFlow's Fashion-MNIST tutorials; `filters=(32,)` is
    the network of the distributed MNIST tutorial.

    Args:
      filters: filters of each convolution.
      dense: units of each dense layer before the last.
      num_outputs: units of the last layer, which has no activation: logits.
      l2: weight of each kernel's sum of squares in the loss.
      dropout: part of the last layer's inputs that training drops.
      batch_norm: whether each convolution's output is normalised before its activation.
      kernel_size: height and width of the convolutions, in pixels.
      padding: padding of convolutions and poolings, 'valid' or 'same'. Images of 8x8
        pixels need 'same'.
      activation: activation of all layers but the last.
    """
    layers = []
    for count in filters:
        layers.append(
            keras.layers.Conv2D(
                count,
                kernel_size,
                padding=padding,
                # BatchNormalization would subtract a bias again, and adds its own.
                use_bias=not batch_norm,
                kernel_regularizer=l2_of(l2),
            )
        )
        if batch_norm:
            layers.append(keras.layers.BatchNormalization())
        layers.append(keras.layers.Activation(activation))
        layers.append(keras.layers.MaxPooling2D(padding=padding))
    layers.append(keras.layers.Flatten())
    layers += [_dense(units, l2, activation) for units in dense]
    if dropout:
        layers.append(keras.layers.Dropout(dropout))
    layers.append(_dense(num_outputs, l2))
    return keras.Sequential(layers, name="cnn")


def _dense(
    units: int, l2: float, activation: Activation | None = None
) -> keras.layers.Layer:
    return keras.layers.Dense(
        units, activation=activation, kernel_regularizer=l2_of(l2)
    )


def l2_of(l2: float) -> keras.regularizers.Regularizer | None:
    """Returns a regularizer; None for weight 0, which would cost time and add nothing.

    Args:
      l2: weight of the sum of squares in the loss.
    """
    return keras.regularizers.L2(l2) if l2 else None
