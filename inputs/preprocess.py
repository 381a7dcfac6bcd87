"""Functions of one example for the `preprocess` argument of input_fns.

They may draw random numbers only from `tf.random.stateless_*`: with a stateful
operation in it, the position of the input cannot be saved.
"""

from typing import Any

import gin
import tensorflow as tf


@gin.configurable
def scale_image(
    image: tf.Tensor, label: Any = None, *, low: float = 0.0, high: float = 1.0
) -> tuple[tf.Tensor, Any]:
    """uint8 in [0, 255] -> float32 in [low, high].

    Args:
      image: uint8 of any shape.
      label: handed on; None is fine.
      low: what 0 becomes; -1 for a generator that ends in tanh.
      high: what 255 becomes.
    """
    if image.dtype != tf.uint8:
        raise ValueError(
            f"scale_image divides uint8 images by 255; this one is {image.dtype.name}: "
            "leave scale_image out, or cast the image to uint8 before."
        )
    return low + tf.cast(image, tf.float32) * ((high - low) / 255.0), label
