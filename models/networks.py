"""Plain networks: factories whose layers build on the first call."""

from collections.abc import Callable, Sequence
from typing import Any

import gin
import keras

Activation = str | Callable[[Any], Any]


@gin.configurable
def linear(num_outputs: int = 1, l2: float = 0.0) -> keras.Model:
    """One dense layer on flattened features: linear or logistic regression.

    Args:
      num_outputs: units, without activation.
      l2: weight of the kernel's sum of squares in the loss.
    """
    return keras.Sequential(
        [
            keras.layers.Flatten(),
            keras.layers.Dense(num_outputs, kernel_regularizer=l2_of(l2)),
        ],
        name="linear",
    )


@gin.configurable
def mlp(
    hidden: Sequence[int] = (128,),
    num_outputs: int = 10,
    activation: Activation = "relu",
    dropout: float = 0.0,
    l2: float = 0.0,
) -> keras.Model:
    """Dense layers on flattened features, `[batch, ...]` -> `[batch, num_outputs]`.

    Args:
      hidden: units of each hidden layer.
      num_outputs: units of the last layer, which has no activation: logits.
      activation: of the hidden layers.
      dropout: part of each hidden layer's units that training drops.
      l2: weight of each kernel's sum of squares in the loss.
    """
    layers = [keras.layers.Flatten()]
    for units in hidden:
        layers.append(
            keras.layers.Dense(
                units, activation=activation, kernel_regularizer=l2_of(l2)
            )
        )
        if dropout:
            layers.append(keras.layers.Dropout(dropout))
    layers.append(keras.layers.Dense(num_outputs, kernel_regularizer=l2_of(l2)))
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
    """Convolutions, each halved by max pooling, then dense layers.

    As it stands it is the network of TensorFlow's Fashion-MNIST tutorials;
    `filters=(32,)` is that of the distributed MNIST tutorial. Takes
    `[batch, height, width, channels]`, gives `[batch, num_outputs]`.

    Args:
      filters: of each convolution.
      dense: units of each dense layer before the last.
      num_outputs: units of the last layer, which has no activation: logits.
      l2: weight of each kernel's sum of squares in the loss.
      dropout: part of the last layer's inputs that training drops.
      batch_norm: normalise each convolution's output, before its activation.
      kernel_size: height and width of the convolutions, in pixels.
      padding: 'valid' or 'same', of convolutions and poolings. Images of 8x8 pixels
        need 'same'.
      activation: of all layers but the last.
    """
    layers = []
    for count in filters:
        layers.append(
            keras.layers.Conv2D(
                count,
                kernel_size,
                padding=padding,
                use_bias=not batch_norm,
                kernel_regularizer=l2_of(l2),
            )
        )
        if batch_norm:
            layers.append(keras.layers.BatchNormalization())
        layers.append(keras.layers.Activation(activation))
        layers.append(keras.layers.MaxPooling2D(padding=padding))
    layers.append(keras.layers.Flatten())
    for units in dense:
        layers.append(
            keras.layers.Dense(
                units, activation=activation, kernel_regularizer=l2_of(l2)
            )
        )
    if dropout:
        layers.append(keras.layers.Dropout(dropout))
    layers.append(keras.layers.Dense(num_outputs, kernel_regularizer=l2_of(l2)))
    return keras.Sequential(layers, name="cnn")


def l2_of(l2: float) -> keras.regularizers.Regularizer | None:
    """A regularizer of weight `l2`; none for 0, which would cost and add nothing."""
    return keras.regularizers.L2(l2) if l2 else None
