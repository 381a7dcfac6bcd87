"""Networks: output shapes, L2 terms, variables, and that they build when called."""

import gin
import keras
import numpy as np
import pytest
import tensorflow as tf

import models
from models import cnn, dcgan_discriminator, dcgan_generator, linear, mlp, resnet


@pytest.mark.parametrize(
    ("factory", "kwargs", "shape", "outputs"),
    [
        (linear, {}, (2, 3), (2, 1)),
        (linear, {"num_outputs": 4}, (2, 5, 5), (2, 4)),
        (linear, {}, (2,), (2, 1)),
        (mlp, {}, (2, 8, 8), (2, 10)),
        (mlp, {"hidden": (), "num_outputs": 3}, (2, 8), (2, 3)),
        (mlp, {"hidden": (4, 4), "dropout": 0.5}, (2, 8), (2, 10)),
        (cnn, {}, (2, 28, 28, 1), (2, 10)),
        (cnn, {"filters": (32,)}, (2, 28, 28, 1), (2, 10)),
        (cnn, {"padding": "same"}, (2, 8, 8, 1), (2, 10)),
        (cnn, {"batch_norm": True, "dropout": 0.5}, (2, 28, 28, 3), (2, 10)),
        (resnet, {"depth": 8}, (2, 32, 32, 3), (2, 10)),
        (resnet, {"depth": 8, "version": 2, "width": 4}, (2, 8, 8, 1), (2, 10)),
        (dcgan_generator, {}, (2, 100), (2, 28, 28, 1)),
        (dcgan_generator, {"image_size": 8, "channels": 3}, (2, 5), (2, 8, 8, 3)),
        (dcgan_discriminator, {}, (2, 28, 28, 1), (2, 1)),
    ],
)
def test_output_shape_and_building_on_the_first_call(factory, kwargs, shape, outputs):
    network = factory(**kwargs)
    assert isinstance(network, keras.Model)
    assert not network.trainable_variables
    assert network(tf.ones(shape), training=True).shape == outputs
    assert network(tf.ones(shape), training=False).shape == outputs


@pytest.mark.parametrize(
    ("factory", "kwargs", "shape", "terms"),
    [
        (linear, {}, (2, 3), 1),
        (mlp, {"hidden": (4, 4)}, (2, 3), 3),
        (cnn, {}, (2, 28, 28, 1), 4),
        (resnet, {"depth": 8}, (2, 8, 8, 1), 8 + 2),
        (resnet, {"depth": 14, "version": 2, "width": 2}, (2, 8, 8, 1), 14 + 2),
    ],
)
def test_l2_on_every_kernel_and_only_there(factory, kwargs, shape, terms):
    network = factory(l2=0.5, **kwargs)
    network(tf.ones(shape))
    kernels = [v for v in network.trainable_variables if v.name == "kernel"]
    assert len(network.losses) == len(kernels) == terms
    expected = sum(0.5 * np.square(v.numpy()).sum() for v in kernels)
    assert float(sum(network.losses)) == pytest.approx(expected, rel=1e-4)
    without = factory(l2=0.0, **kwargs)
    without(tf.ones(shape))
    assert without.losses == []


def test_fashion_mnist_tutorial_has_its_parameters():
    network = cnn()
    network(tf.ones([1, 28, 28, 1]))
    # Conv 320 + 18496, dense 1600 * 64 + 64 and 650.
    assert network.count_params() == 121_930


def test_resnet_20_has_its_parameters():
    network = resnet()
    network(tf.ones([1, 32, 32, 3]))
    trainable = sum(int(np.prod(v.shape)) for v in network.trainable_variables)
    # He et al. count 0.27 million; their shortcuts have no kernels, ours 2560.
    assert trainable == 269_722 + 2560


@pytest.mark.parametrize("version", [1, 2])
def test_every_variable_of_resnet_has_a_gradient(version):
    network = resnet(depth=8, width=2, version=version)
    network(tf.ones([1, 8, 8, 1]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(
            tf.square(network(tf.random.normal([2, 8, 8, 1]), training=True))
        )
    gradients = tape.gradient(loss, [v.value for v in network.trainable_variables])
    assert all(g is not None for g in gradients)


def test_generated_pixels_are_in_range():
    images = dcgan_generator(image_size=8)(tf.random.normal([4, 10]) * 100)
    assert float(tf.reduce_max(tf.abs(images))) <= 1


@pytest.mark.parametrize(
    ("factory", "kwargs", "text"),
    [
        (resnet, {"depth": 19}, r"depth is 19: write 6n \+ 2"),
        (resnet, {"version": 3}, "version is 3: write version=1 or version=2"),
        (dcgan_generator, {"image_size": 30}, "image_size is 30"),
    ],
)
def test_errors(factory, kwargs, text):
    with pytest.raises(ValueError, match=text):
        factory(**kwargs)


# What a model_fn calls with its tensors.
OF_TENSORS = {"clipped_mean_gradients", "gradient_noise", "per_example_gradients"}


def test_all_that_is_exported_is_known_to_gin():
    assert set(models.__all__) >= OF_TENSORS
    for name in set(models.__all__) - OF_TENSORS:
        module = getattr(models, name).__module__
        assert gin.get_configurable(name)
        assert module.startswith("models.")


def test_gin_gives_a_network_its_arguments():
    with gin.unlock_config():
        gin.bind_parameter("mlp.num_outputs", 7)
    try:
        assert mlp()(tf.ones([2, 3])).shape == (2, 7)
    finally:
        gin.clear_config()
