"""The GAN: losses, which TrainOp moves which variables, and its noise."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gin_estimator.models import dcgan_discriminator, dcgan_generator, gan, gaussian_noise, mlp

import gin_estimator as ge
from gin_estimator import ModeKeys
from refusals import refused

IMAGES = tf.random.stateless_normal([6, 4], seed=[1, 2])


def small():
    return {
        "generator": mlp(hidden=(8,), num_outputs=4, l2=0.1),
        "discriminator": mlp(hidden=(8,), num_outputs=1, l2=0.2),
        "noise": gaussian_noise(3, seed=1),
    }


def optimizers():
    names = ("generator_optimizer", "discriminator_optimizer")
    return {name: keras.optimizers.SGD(0.1) for name in names}


def softplus(x):
    return np.log1p(np.exp(x))


LOSSES = {
    "non_saturating": lambda real, fake: (softplus(-real) + softplus(fake), softplus(-fake)),
    "least_squares": lambda real, fake: ((real - 1) ** 2 + fake**2, (fake - 1) ** 2),
    "hinge": lambda real, fake: (np.maximum(1 - real, 0) + np.maximum(1 + fake, 0), -fake),
}


@pytest.mark.parametrize("objective", LOSSES)
def test_losses_and_accuracies(objective):
    modules = small()
    spec = gan(IMAGES, ModeKeys.EVAL, **modules, objective=objective)
    fakes = modules["generator"](modules["noise"](IMAGES, training=False))
    real = modules["discriminator"](IMAGES).numpy()[:, 0]
    fake = modules["discriminator"](fakes).numpy()[:, 0]
    of_discriminator, of_generator = LOSSES[objective](real, fake)
    values = {name: each.args[0].numpy() for name, each in spec.metrics.items()}
    np.testing.assert_allclose(values["discriminator_loss"], of_discriminator, rtol=1e-4)
    np.testing.assert_allclose(values["generator_loss"], of_generator, rtol=1e-4)
    np.testing.assert_allclose(spec.loss, of_discriminator + of_generator, rtol=1e-4)
    boundary = 0.5 if objective == "least_squares" else 0.0
    np.testing.assert_array_equal(values["real_accuracy"], real > boundary)
    np.testing.assert_array_equal(values["fake_accuracy"], fake <= boundary)


def test_each_train_op_has_its_variables_and_its_regularization():
    modules = small()
    options = {"discriminator_updates": 3, "generator_every": 2}
    spec = gan(IMAGES, ModeKeys.TRAIN, **modules, **optimizers(), **options)
    ops = dict(zip(["discriminator", "generator"], spec.train_op, strict=True))
    assert (ops["discriminator"].repeat, ops["discriminator"].every) == (3, 1)
    assert (ops["generator"].repeat, ops["generator"].every) == (1, 2)
    assert not spec.regularization_losses
    for name, op in ops.items():
        assert list(op.variables) == modules[name].trainable_variables
        loss = spec.metrics[f"{name}_loss"].args[0]
        np.testing.assert_allclose(op.loss, loss + sum(modules[name].losses), rtol=1e-5)


def test_noise_of_training_continues_and_that_of_evaluation_depends_on_the_batch():
    noise = gaussian_noise(3, seed=1)
    [state] = noise.variables
    saved = state.numpy()
    first = noise(IMAGES, training=False)
    np.testing.assert_array_equal(first, noise(IMAGES, training=False))
    assert not np.array_equal(first, noise(IMAGES + 1, training=False))
    np.testing.assert_array_equal(state.numpy(), saved)
    first = noise(IMAGES, training=True)
    assert not np.array_equal(first, noise(IMAGES, training=True))
    state.assign(saved)
    np.testing.assert_array_equal(noise(IMAGES, training=True), first)
    for training in (True, False):
        many = gaussian_noise(50, seed=3)(tf.ones([400, 2]), training=training)
        assert float(tf.reduce_mean(many)) == pytest.approx(0.0, abs=0.05)
        assert float(tf.math.reduce_std(many)) == pytest.approx(1.0, abs=0.05)


def estimator_of(folder, **config):
    def deterministic_noise():
        return gaussian_noise(3, seed=1)

    def network(**options):
        keras.utils.set_random_seed(2)
        return mlp(hidden=(8,), **options)

    modules = {
        "generator": lambda: network(num_outputs=4, l2=0.1),
        "discriminator": lambda: network(num_outputs=1, l2=0.2),
        "noise": deterministic_noise,
        "generator_optimizer": lambda: keras.optimizers.SGD(0.1),
        "discriminator_optimizer": lambda: keras.optimizers.SGD(0.1),
    }
    config = ge.RunConfig(model_dir=str(folder), tf_random_seed=1, **config)
    return ge.Estimator(gan, modules=modules, config=config)


def images_input():
    return tf.data.Dataset.from_tensors((IMAGES, tf.zeros([6]))).repeat()


@pytest.mark.slow
def test_a_run_that_is_evaluated_and_resumed_is_the_same(tmp_path):
    whole = estimator_of(tmp_path / "whole")
    whole.train(images_input, max_steps=4)
    estimator_of(tmp_path / "cut").train(images_input, max_steps=2)
    cut = estimator_of(tmp_path / "cut")
    metrics = cut.evaluate(lambda: images_input().take(1))
    assert {"discriminator_loss", "fake_accuracy"} <= metrics.keys()
    cut.train(images_input, max_steps=4)
    names = [name for name in whole.get_variable_names() if not name.startswith("driver/")]
    assert len(names) > 10
    for name in names:
        expected = whole.get_variable_value(name)
        np.testing.assert_allclose(cut.get_variable_value(name), expected, rtol=1e-5, atol=1e-6)
    [first, *_] = cut.predict(lambda: tf.data.Dataset.from_tensors(tf.zeros([5, 3])))
    assert (first["images"].shape, first["logits"].shape) == ((4,), ())


def test_batches_of_unknown_size_with_dcgan():
    modules = {
        "generator": dcgan_generator(image_size=8, width=2),
        "discriminator": dcgan_discriminator(width=2),
        "noise": gaussian_noise(5),
        **optimizers(),
    }
    gan(tf.zeros([2, 8, 8, 1]), ModeKeys.TRAIN, **modules)

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1])], autograph=False)
    def losses(x):
        return [op.loss for op in gan(x, ModeKeys.TRAIN, **modules).train_op]

    assert [loss.shape for loss in losses(tf.zeros([3, 8, 8, 1]))] == [(3,), (3,)]
    spec = gan(tf.zeros([5, 5]), ModeKeys.PREDICT, **modules)
    assert spec.predictions["images"].shape == (5, 8, 8, 1)
    assert set(spec.export_outputs["serving_default"]) == {"images"}


def test_the_networks_of_the_tutorial():
    generator, discriminator = dcgan_generator(), dcgan_discriminator()
    images = generator(tf.zeros([1, 100]))
    assert images.shape == (1, 28, 28, 1) and discriminator(images).shape == (1, 1)
    assert (generator.count_params(), discriminator.count_params()) == (2_330_944, 212_865)
    with pytest.raises(ge.UserError, match="image_size is 30: expected a multiple of 4"):
        dcgan_generator(image_size=30)


test_what_does_not_fit_is_refused = refused(
    lambda features, mode, changes: gan(features, mode, **{**small(), **optimizers(), **changes}),
    (IMAGES, ModeKeys.EVAL, {"objective": "w"}, "objective is 'w': .*'hinge'"),
    (tf.zeros([2, 5]), ModeKeys.EVAL, {}, r"shape \(2, 5\) and generated ones \(2, 4\)"),
    (IMAGES, ModeKeys.EVAL, {"discriminator": mlp(num_outputs=2)}, r"shape \(6, 2\): .* one l"),
    (tf.zeros([2, 3, 1]), ModeKeys.PREDICT, {}, r"\(2, 3, 1\) in PREDICT: expected noise"),
    (IMAGES, ModeKeys.TRAIN, {"generator_every": 0}, "every is 0"),
)
