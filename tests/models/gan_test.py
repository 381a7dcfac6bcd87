"""The GAN: losses against numpy, whom each TrainOp moves, and its noise."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import dcgan_discriminator, dcgan_generator, gan, gaussian_noise, mlp
from pipeline import ModeKeys, SpecError


def small():
    return {
        "generator": mlp(hidden=(8,), num_outputs=4, l2=0.1),
        "discriminator": mlp(hidden=(8,), num_outputs=1, l2=0.2),
        "noise": gaussian_noise(3, seed=1),
    }


def optimizers():
    return {
        "generator_optimizer": keras.optimizers.SGD(0.1),
        "discriminator_optimizer": keras.optimizers.SGD(0.1),
    }


def images(batch=6):
    return tf.random.stateless_normal([batch, 4], seed=[1, 2])


def expected_losses(objective, real, fake):
    def softplus(x):
        return np.log1p(np.exp(x))

    return {
        "non_saturating": (softplus(-real) + softplus(fake), softplus(-fake)),
        "least_squares": ((real - 1) ** 2 + fake**2, (fake - 1) ** 2),
        "hinge": (np.maximum(1 - real, 0) + np.maximum(1 + fake, 0), -fake),
    }[objective]


@pytest.mark.parametrize("objective", ["non_saturating", "least_squares", "hinge"])
def test_losses_and_accuracies(objective):
    modules, x = small(), images()
    spec = gan(x, ModeKeys.EVAL, **modules, objective=objective)
    fakes = modules["generator"](modules["noise"](x, training=False))
    real = modules["discriminator"](x).numpy()[:, 0]
    fake = modules["discriminator"](fakes).numpy()[:, 0]
    d_loss, g_loss = expected_losses(objective, real, fake)
    values = {name: m.args[0].numpy() for name, m in spec.metrics.items()}
    np.testing.assert_allclose(values["discriminator_loss"], d_loss, rtol=1e-4)
    np.testing.assert_allclose(values["generator_loss"], g_loss, rtol=1e-4)
    np.testing.assert_allclose(spec.loss, d_loss + g_loss, rtol=1e-4)
    boundary = 0.5 if objective == "least_squares" else 0.0
    np.testing.assert_array_equal(values["real_accuracy"], real > boundary)
    np.testing.assert_array_equal(values["fake_accuracy"], fake <= boundary)


def test_each_train_op_minimises_its_loss_with_its_regularization():
    modules = small()
    spec = gan(
        images(),
        ModeKeys.TRAIN,
        **modules,
        **optimizers(),
        discriminator_updates=3,
        generator_every=2,
        clip_norm=1.5,
    )
    discriminator_op, generator_op = spec.train_op
    assert (discriminator_op.repeat, discriminator_op.every) == (3, 1)
    assert (generator_op.repeat, generator_op.every) == (1, 2)
    assert generator_op.clip_norm == discriminator_op.clip_norm == 1.5
    assert spec.regularization_losses == []
    for op, name in [(discriminator_op, "discriminator"), (generator_op, "generator")]:
        assert op.loss.shape == (6,)
        loss = spec.metrics[f"{name}_loss"].args[0]
        extra = tf.add_n(modules[name].losses)
        np.testing.assert_allclose(op.loss, loss + extra, rtol=1e-5)


def test_each_train_op_moves_its_own_variables():
    modules = small()
    with tf.GradientTape(persistent=True) as tape:
        spec = gan(images(), ModeKeys.TRAIN, **modules, **optimizers())
        ops = dict(zip(["discriminator", "generator"], spec.train_op, strict=True))
        means = {name: tf.reduce_mean(op.loss) for name, op in ops.items()}
    for name, op in ops.items():
        assert [id(v) for v in op.variables] == [
            id(v) for v in modules[name].trainable_variables
        ]
        before = {n: modules[n].get_weights() for n in ops}
        gradients = tape.gradient(means[name], [v.value for v in op.variables])
        assert all(g is not None for g in gradients)
        op.optimizer.apply(gradients, op.variables)
        for other in ops:
            same = [
                np.array_equal(a, b)
                for a, b in zip(
                    before[other], modules[other].get_weights(), strict=True
                )
            ]
            assert (not any(same[::2])) if other == name else all(same)


def test_noise_of_training_moves_on_and_that_of_evaluation_does_not():
    noise, x = gaussian_noise(3, seed=1), images()
    state = noise.seed_generator.state
    before = state.numpy()
    first, again = noise(x, training=False), noise(x, training=False)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(state.numpy(), before)
    assert not np.array_equal(first, noise(x + 1, training=False))
    assert not np.array_equal(noise(x, training=True), noise(x, training=True))
    assert not np.array_equal(state.numpy(), before)


def test_noise_is_repeated_from_its_one_variable():
    noise, x = gaussian_noise(3), images()
    state = noise.variables[0]
    saved = state.numpy()
    first = noise(x, training=True)
    state.assign(saved)
    np.testing.assert_array_equal(noise(x, training=True), first)
    assert len(noise.variables) == 1


@pytest.mark.parametrize("training", [False, True])
def test_noise_is_standard_normal(training):
    noise = gaussian_noise(50, seed=3)(tf.ones([400, 2]), training=training)
    assert float(tf.reduce_mean(noise)) == pytest.approx(0.0, abs=0.05)
    assert float(tf.math.reduce_std(noise)) == pytest.approx(1.0, abs=0.05)


def test_batch_of_unknown_size_in_a_graph_with_dcgan():
    modules = {
        "generator": dcgan_generator(image_size=8, width=2),
        "discriminator": dcgan_discriminator(width=2),
        "noise": gaussian_noise(5),
        **optimizers(),
    }
    gan(tf.zeros([2, 8, 8, 1]), ModeKeys.TRAIN, **modules)

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1])])
    def losses(x):
        spec = gan(x, ModeKeys.TRAIN, **modules)
        return [op.loss for op in spec.train_op]

    assert [loss.shape for loss in losses(tf.zeros([3, 8, 8, 1]))] == [(3,), (3,)]


def test_predict_maps_noise_to_images():
    modules = small()
    spec = gan(tf.zeros([5, 3]), ModeKeys.PREDICT, **modules)
    assert spec.predictions["images"].shape == (5, 4)
    assert spec.predictions["logits"].shape == (5,)
    assert set(spec.export_outputs["serving_default"]) == {"images"}
    assert modules["discriminator"].variables


def test_labels_and_the_only_entry_of_a_dict_are_taken():
    spec = gan({"image": images()}, ModeKeys.EVAL, labels=tf.zeros([6]), **small())
    assert spec.loss.shape == (6,)


@pytest.mark.parametrize(
    ("features", "mode", "changes", "text"),
    [
        (images(), ModeKeys.EVAL, {"objective": "w"}, "objective is 'w'.*'hinge'"),
        (
            tf.zeros([2, 5]),
            ModeKeys.EVAL,
            {},
            r"real images have shape \(2, 5\) and generated ones \(2, 4\)",
        ),
        (
            images(),
            ModeKeys.EVAL,
            {"discriminator": mlp(num_outputs=2)},
            r"into \(6, 2\), and one logit an image",
        ),
        (tf.zeros([2, 3, 1]), ModeKeys.PREDICT, {}, r"takes noise .* got \(2, 3, 1\)"),
        (images(), ModeKeys.TRAIN, {"generator_every": 0}, "every is 0"),
    ],
)
def test_errors(features, mode, changes, text):
    with pytest.raises(SpecError, match=text):
        gan(features, mode, **{**small(), **optimizers(), **changes})


def test_samples_of_the_same_noise_are_shown():
    modules = {
        "generator": dcgan_generator(image_size=8, width=2),
        "discriminator": dcgan_discriminator(width=2),
        "noise": gaussian_noise(3, seed=1),
    }
    x = tf.random.stateless_normal([6, 8, 8, 1], seed=[1, 2])
    options = {**modules, **optimizers()}

    def samples(mode, **changed):
        summaries = gan(x, mode, **options, **changed).summaries
        return summaries["samples"].tensors["pixels"].numpy() if summaries else None

    shown = samples(ModeKeys.TRAIN)
    assert shown.shape == (16, 8, 8, 1)
    latent = modules["noise"](tf.zeros([16, 8, 8, 1]), training=False)
    again = modules["generator"](latent, training=False)
    np.testing.assert_array_equal(shown, again)
    assert samples(ModeKeys.EVAL).shape == (6, 8, 8, 1)
    assert samples(ModeKeys.TRAIN, num_samples=0) is None
    # Of vectors there is nothing to see.
    assert gan(images(), ModeKeys.EVAL, **small()).summaries == {}


def test_samples_leave_the_loss_as_it_is():
    modules = small()
    modules["generator"] = keras.Sequential(
        [
            keras.layers.Dense(16, activity_regularizer="l2"),
            keras.layers.Reshape((4, 4, 1)),
        ]
    )
    x = tf.reshape(tf.random.stateless_normal([6, 16], seed=[1, 2]), [-1, 4, 4, 1])
    modules["discriminator"] = keras.Sequential(
        [keras.layers.Flatten(), modules["discriminator"]]
    )
    losses = []
    for number in (0, 16):
        modules["noise"] = gaussian_noise(3, seed=1)
        spec = gan(x, ModeKeys.TRAIN, **modules, **optimizers(), num_samples=number)
        losses.append(spec.train_op[1].loss.numpy())
    np.testing.assert_array_equal(*losses)
