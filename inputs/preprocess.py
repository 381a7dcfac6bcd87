"""Functions of one example for the `preprocess` argument of input_fns.

They may draw random numbers only from `tf.random.stateless_*`: TensorFlow cannot save
the position of an input with a stateful operation in it.
"""

from typing import Any

import gin
import tensorflow as tf

from pipeline import RefusedValueError


@gin.configurable
def scale_image(
    image: tf.Tensor, label: Any = None, *, low: float = 0.0, high: float = 1.0
) -> tuple[tf.Tensor, Any]:
    """Scales uint8 in [0, 255] to float32 in [low, high].

    Args:
      image: uint8 tensor of any shape.
      label: returned as it is; may be None.
      low: value of a pixel of 0; -1 for a generator that ends in tanh.
      high: value of a pixel of 255.

    Raises:
      ValueError: the image is not uint8.
    """
    if image.dtype != tf.uint8:
        raise RefusedValueError(
            f"scale_image divides uint8 images by 255; this one is {image.dtype.name}: "
            "leave scale_image out, or cast the image to uint8 before."
        )
    return low + tf.cast(image, tf.float32) * ((high - low) / 255.0), label
