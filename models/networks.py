# SPDX-License-Identifier: Apache-2.0
"""Factories of plain networks. Their layers are built by the first call."""

from collections.abc import Sequence
from typing import Any

import gin
import keras

from gin_estimator import errors

from .tables import Activation, linear_of


@gin.configurable
def linear(num_outputs: int | None = None, l2: float = 0.0, *, schema: Any = None) -> keras.Model:
    """Returns one dense layer on flattened features, or a linear model of a schema.

    The latter is tf.estimator's LinearClassifier and LinearRegressor, which train by FTRL with a
    rate of min(0.2, 1 / sqrt(features)): see `WidePart`.

    Args:
      num_outputs: number of logits; None for 1, or for that of the head of `table_model`.
      l2: weight of the kernel's sum of squares in the loss; without a schema.
      schema: a Schema, the same as that of the input_fn; None for features without one.

    Raises:
      SpecError: there are l2 and a schema.
    """
    if schema is not None:
        if l2:  # It would read whole tables in each step.
            raise errors.SpecError(
                f"linear.l2 is {l2!r} with a schema: expected 0. Set "
                "Ftrl.l2_regularization_strength."
            )
        return linear_of(schema, num_outputs)
    num_outputs = 1 if num_outputs is None else num_outputs
    return keras.Sequential([keras.layers.Flatten(), _dense(num_outputs, l2)], name="linear")


@gin.configurable
def mlp(
    hidden: Sequence[int] = (128,),
    num_outputs: int = 10,
    activation: Activation = "relu",
    dropout: float = 0.0,
    l2: float = 0.0,
) -> keras.Model:
    """Returns dense layers on flattened features.

    Args:
      hidden: units of each hidden layer.
      num_outputs: units of the last layer, which returns logits `[batch, num_outputs]`.
      activation: activation of the hidden layers.
      dropout: part of each hidden layer's units that is dropped in training.
      l2: weight of each kernel's sum of squares in the loss.
    """
    layers: list[keras.Layer] = [keras.layers.Flatten()]
    for units in hidden:
        layers.append(_dense(units, l2, activation))
        if dropout:
            layers.append(keras.layers.Dropout(dropout))
    return keras.Sequential([*layers, _dense(num_outputs, l2)], name="mlp")


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
    """Returns convolutions, each followed by max pooling, then dense layers.

    The defaults are the network of TensorFlow's Fashion-MNIST tutorial, `filters=(32,)` that
    of its MNIST tutorial. It takes images `[batch, height, width, channels]`.

    Args:
      filters: filters of each convolution.
      dense: units of each dense layer before the last.
      num_outputs: units of the last layer, which returns logits `[batch, num_outputs]`.
      l2: weight of each kernel's sum of squares in the loss.
      dropout: part of the last layer's inputs that is dropped in training.
      batch_norm: whether each convolution is normalized before its activation.
      kernel_size: height and width of the convolutions, in pixels.
      padding: 'valid' or 'same', of convolutions and poolings. Images of 8x8 pixels need
        'same'.
      activation: activation of all layers but the last.
    """
    layers: list[keras.Layer] = []
    for count in filters:
        layers.append(
            keras.layers.Conv2D(
                count,
                kernel_size,
                padding=padding,
                use_bias=not batch_norm,  # BatchNormalization has a bias.
                kernel_regularizer=_l2(l2),
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
    return keras.Sequential([*layers, _dense(num_outputs, l2)], name="cnn")


def _dense(units: int, l2: float, activation: Activation | None = None) -> keras.Layer:
    return keras.layers.Dense(units, activation=activation, kernel_regularizer=_l2(l2))


def _l2(weight: float) -> keras.regularizers.Regularizer | None:
    return keras.regularizers.L2(weight) if weight else None
