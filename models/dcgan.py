"""The two networks of a DCGAN, and the source of its noise, for the model_fn `gan`."""

from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline import RefusedValueError


@gin.configurable
def dcgan_generator(
    image_size: int = 28, channels: int = 1, width: int = 64
) -> keras.Model:
    """Makes the network from noise to images.

    It takes `[batch, dim]` and returns `[batch, image_size, image_size, channels]`. Its
    pixels are in [-1, 1] (tanh): the input_fn must scale the real images so.

    Args:
      image_size: height and width in pixels, a multiple of 4.
      channels: channels of the images.
      width: filters of the last hidden layer; the layers before have 2 and 4 times as
        many.

    Raises:
      ValueError: image_size is no multiple of 4, so that doubling twice misses it.
    """
    if image_size < 4 or image_size % 4:
        raise RefusedValueError(
            f"image_size is {image_size}: write a multiple of 4, such as image_size=28."
        )
    start = image_size // 4
    return keras.Sequential(
        [
            keras.layers.Dense(start * start * 4 * width, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.LeakyReLU(),
            keras.layers.Reshape((start, start, 4 * width)),
            *_upsampling(2 * width, stride=1),
            *_upsampling(width, stride=2),
            keras.layers.Conv2DTranspose(
                channels,
                5,
                strides=2,
                padding="same",
                use_bias=False,
                activation="tanh",
            ),
        ],
        name="dcgan_generator",
    )


@gin.configurable
def dcgan_discriminator(width: int = 64, dropout: float = 0.3) -> keras.Model:
    """Makes the network from images `[batch, h, w, c]` to logits `[batch, 1]`.

    A logit is high for a real image.

    Args:
      width: filters of the first convolution; the second has twice that.
      dropout: part of each convolution's output that training drops.
    """
    layers = []
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
    """Makes the source of a generator's input, the module `noise` of `gan`.

    It is a module of its own. So its one variable, the state of the random generator,
    is in the checkpoint, and the generator stays a plain network from noise to images.

    Args:
      dim: numbers of noise for one image.
      seed: seed of the random generator; None takes one from Keras' global seed.
    """
    return GaussianNoise(dim, seed, name="gaussian_noise")


class GaussianNoise(keras.layers.Layer):
    """Standard normal noise for a batch: `[batch, ...]` -> `[batch, dim]`."""

    def __init__(self, dim: int, seed: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dim = dim
        self.seed_generator = keras.random.SeedGenerator(seed)
        # Its variable is there from now on. PREDICT, where noise is the input, never
        # calls it, and would take it for a layer that is still to be built.
        self.built = True

    def call(self, images: Any, training: bool = False) -> Any:
        """Draws noise.

        Args:
          images: a batch of images, one for each row of noise.
          training: whether to draw from the module's generator, which advances.
            Otherwise the batch's pixels are the seed: two evaluations get the same
            noise, and the training that follows is as it would be without them.
        """
        shape = (tf.shape(images)[0], self.dim)
        if training:
            return keras.random.normal(
                shape, dtype=self.compute_dtype, seed=self.seed_generator
            )
        pixels = tf.cast(images, tf.float32)
        sums = tf.stack([tf.reduce_sum(pixels), tf.reduce_sum(tf.square(pixels))])
        seed = tf.bitcast(sums, tf.int32)
        return tf.random.stateless_normal(shape, seed, dtype=self.compute_dtype)


def _upsampling(filters: int, *, stride: int) -> list[keras.layers.Layer]:
    return [
        keras.layers.Conv2DTranspose(
            filters, 5, strides=stride, padding="same", use_bias=False
        ),
        keras.layers.BatchNormalization(),
        keras.layers.LeakyReLU(),
    ]
