# SPDX-License-Identifier: Apache-2.0
"""The networks of a DCGAN, and the noise of its generator."""

from typing import Any

import gin
import keras
import tensorflow as tf

from gin_estimator import errors


@gin.configurable
def dcgan_generator(image_size: int = 28, channels: int = 1, width: int = 64) -> keras.Model:
    """Returns the network from noise `[batch, dim]` to images in [-1, 1].

    Args:
      image_size: height and width in pixels, a multiple of 4.
      channels: channels of the images.
      width: filters of the last hidden layer; the two before have 2 and 4 times as many.

    Raises:
      UserValueError: `image_size` is not a multiple of 4.
    """
    if image_size < 4 or image_size % 4:
        raise errors.UserValueError(
            f"dcgan_generator.image_size is {image_size}: expected a multiple of 4. Set "
            "image_size=28."
        )
    start = image_size // 4
    options = {"padding": "same", "use_bias": False}
    layers = [
        keras.layers.Dense(start * start * 4 * width, use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.LeakyReLU(),
        keras.layers.Reshape((start, start, 4 * width)),
    ]
    for filters, strides in ((2 * width, 1), (width, 2)):
        layers += [
            keras.layers.Conv2DTranspose(filters, 5, strides=strides, **options),
            keras.layers.BatchNormalization(),
            keras.layers.LeakyReLU(),
        ]
    last = keras.layers.Conv2DTranspose(channels, 5, strides=2, activation="tanh", **options)
    return keras.Sequential([*layers, last], name="dcgan_generator")


@gin.configurable
def dcgan_discriminator(width: int = 64, dropout: float = 0.3) -> keras.Model:
    """Returns the network from images `[batch, height, width, channels]` to logits `[batch, 1]`.

    Args:
      width: filters of the first convolution; the second has twice as many.
      dropout: part of each convolution's outputs that is dropped in training.
    """
    layers: list[keras.Layer] = []
    for filters in (width, 2 * width):
        layers += [
            keras.layers.Conv2D(filters, 5, strides=2, padding="same"),
            keras.layers.LeakyReLU(),
            keras.layers.Dropout(dropout),
        ]
    layers += [keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential(layers, name="dcgan_discriminator")


@gin.configurable
def gaussian_noise(dim: int = 100, seed: int | None = None) -> keras.layers.Layer:
    """Returns the module `noise` of `gan`, whose random state is in the checkpoint.

    Args:
      dim: numbers of noise for each image.
      seed: seed of the noise in training; None draws one from Keras' seed.
    """
    return GaussianNoise(dim, seed, name="gaussian_noise")


class GaussianNoise(keras.layers.Layer):
    """Standard normal noise `[batch, dim]` for a batch of images."""

    def __init__(self, dim: int, seed: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dim = dim
        self.seed_generator = keras.random.SeedGenerator(seed)
        # PREDICT never calls the layer, which has its only variable already.
        self.built = True

    def call(self, images: Any, training: bool = False) -> Any:
        """Returns the noise of a batch, `[batch, dim]`.

        Args:
          images: images `[batch, ...]`.
          training: whether to draw from the layer's generator, which advances it. Otherwise the
            pixels of the batch are the seed, so that an evaluation changes no training.

        Returns:
          Noise `[batch, dim]`.
        """
        shape = (tf.shape(images)[0], self.dim)
        if training:
            return keras.random.normal(shape, dtype=self.compute_dtype, seed=self.seed_generator)
        pixels = tf.cast(images, tf.float32)
        sums = tf.stack([tf.reduce_sum(pixels), tf.reduce_sum(tf.square(pixels))])
        seed = tf.bitcast(sums, tf.int32)
        return tf.random.stateless_normal(shape, seed, dtype=self.compute_dtype)
