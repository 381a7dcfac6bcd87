# SPDX-License-Identifier: Apache-2.0
"""Functions of one example for the argument `preprocess` of input_fns.

Random numbers in them come from `tf.random.stateless_*` only: TensorFlow cannot save the
position of an input that has a stateful operation.
"""

from typing import Any

import gin
import tensorflow as tf

from gin_estimator import errors


@gin.configurable
def scale_image(
    image: tf.Tensor, label: Any = None, *, low: float = 0.0, high: float = 1.0
) -> tuple[tf.Tensor, Any]:
    """Returns uint8 in [0, 255] scaled to float32 in [low, high], and the label.

    Args:
      image: uint8 tensor of any shape.
      label: returned as it is.
      low: value of a pixel of 0, such as -1 for a generator that ends in tanh.
      high: value of a pixel of 255.

    Raises:
      UserValueError: the image is not uint8.
    """
    if image.dtype != tf.uint8:
        raise errors.UserValueError(
            f"scale_image got an image of dtype {image.dtype.name}: expected uint8. Remove "
            "scale_image, or cast the image to uint8 before."
        )
    return low + tf.cast(image, tf.float32) * ((high - low) / 255.0), label
