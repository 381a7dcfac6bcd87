import numpy as np
import pytest
import tensorflow as tf

import inputs


def test_scale_image():
    image, label = inputs.scale_image(tf.constant([0, 51, 255], tf.uint8), 7)
    np.testing.assert_allclose(image, [0.0, 0.2, 1.0], rtol=1e-6)
    assert image.dtype == tf.float32 and label == 7


def test_scale_image_to_another_range():
    image, _ = inputs.scale_image(tf.constant([0, 51, 255], tf.uint8), low=-1.0)
    np.testing.assert_allclose(image, [-1, -0.6, 1], rtol=1e-6)


def test_scale_image_without_label():
    assert inputs.scale_image(tf.zeros([2], tf.uint8))[1] is None


def test_scale_image_refuses_what_may_be_scaled_already():
    with pytest.raises(ValueError, match="divides uint8 images .* is float32"):
        inputs.scale_image(tf.zeros([2]))
