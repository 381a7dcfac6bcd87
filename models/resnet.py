"""A residual network for small images."""

from typing import Any

import gin
import keras

from pipeline import RefusedValueError

from .networks import l2_of


@gin.configurable
def resnet(
    depth: int = 20,
    width: int = 16,
    num_outputs: int = 10,
    l2: float = 1e-4,
    version: int = 1,
    batch_norm_momentum: float = 0.9,
) -> keras.Model:
    """Makes the network for CIFAR of He et al., 2015, or of 2016 with `version=2`.

    It takes `[batch, height, width, channels]` and returns `[batch, num_outputs]`. It
    has three stages, of `width`, `2 * width` and `4 * width` filters; the second and
    the third halve the resolution. A shortcut that changes the shape is a convolution
    of 1x1.

    Args:
      depth: layers with kernels, without shortcuts: 6n + 2 for n blocks a stage.
      width: filters of the first stage.
      num_outputs: units of the last layer, which has no activation: logits.
      l2: weight of each kernel's sum of squares in the loss.
      version: 1 normalises and activates after each convolution, 2 before.
      batch_norm_momentum: part of the moving statistics that a step keeps. With Keras'
        default of 0.99, EVAL is wrong for the first few hundred steps.

    Raises:
      ValueError: the depth is not 6n + 2, or the version is neither 1 nor 2.
    """
    if depth < 8 or (depth - 2) % 6:
        raise RefusedValueError(
            f"depth is {depth}: write 6n + 2, 8, 14, 20, 32, 56, ..."
        )
    if version not in (1, 2):
        raise RefusedValueError(
            f"version is {version!r}: write version=1 or version=2."
        )
    blocks = (depth - 2) // 6
    layers = [_convolution(width, l2)]
    if version == 1:
        layers += _norm_relu(batch_norm_momentum)
    for stage in range(3):
        for block in range(blocks):
            first = stage > 0 and block == 0
            layers.append(
                ResidualBlock(
                    width * 2**stage,
                    stride=2 if first else 1,
                    project=first,
                    l2=l2,
                    version=version,
                    batch_norm_momentum=batch_norm_momentum,
                )
            )
    # The last block of version 2 ends in a sum that nothing has normalised.
    if version == 2:
        layers += _norm_relu(batch_norm_momentum)
    layers.append(keras.layers.GlobalAveragePooling2D())
    layers.append(keras.layers.Dense(num_outputs, kernel_regularizer=l2_of(l2)))
    return keras.Sequential(layers, name="resnet")


class ResidualBlock(keras.layers.Layer):
    """Two 3x3 convolutions, added to the block's input or its projection."""

    def __init__(
        self,
        filters: int,
        *,
        stride: int,
        project: bool,
        l2: float,
        version: int,
        batch_norm_momentum: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.version = version
        self.first_convolution = _convolution(filters, l2, stride=stride)
        self.second_convolution = _convolution(filters, l2)
        self.first_norm, self.relu = _norm_relu(batch_norm_momentum)
        self.second_norm = keras.layers.BatchNormalization(momentum=batch_norm_momentum)
        self.projection = None
        if project:
            self.projection = _convolution(filters, l2, size=1, stride=stride)

    def build(self, input_shape: Any) -> None:
        inner_shape = self.first_convolution.compute_output_shape(input_shape)
        self.first_convolution.build(input_shape)
        self.second_convolution.build(inner_shape)
        self.first_norm.build(inner_shape if self.version == 1 else input_shape)
        self.second_norm.build(inner_shape)
        if self.projection is not None:
            self.projection.build(input_shape)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.first_convolution.compute_output_shape(input_shape)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if self.version == 1:
            x = self.first_convolution(inputs)
            x = self.relu(self.first_norm(x, training=training))
            x = self.second_norm(self.second_convolution(x), training=training)
            return self.relu(x + self._shortcut(inputs))
        active = self.relu(self.first_norm(inputs, training=training))
        x = self.first_convolution(active)
        x = self.relu(self.second_norm(x, training=training))
        # The projection sees what the convolutions see, the identity the raw input.
        shortcut = inputs if self.projection is None else self.projection(active)
        return self.second_convolution(x) + shortcut

    def _shortcut(self, inputs: Any) -> Any:
        return inputs if self.projection is None else self.projection(inputs)


def _convolution(
    filters: int, l2: float, *, size: int = 3, stride: int = 1
) -> keras.layers.Layer:
    return keras.layers.Conv2D(
        filters,
        size,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=l2_of(l2),
    )


def _norm_relu(momentum: float) -> list[keras.layers.Layer]:
    return [
        keras.layers.BatchNormalization(momentum=momentum),
        keras.layers.ReLU(),
    ]
