"""Gradients of examples are those of a loop; clipped, with noise, and in a training."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gin_estimator.models import clipped_mean_gradients, gradient_noise, per_example_gradients

import gin_estimator as ge
from refusals import refused

RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=[5, 6, 6, 1]).astype(np.float32)
IDS = RNG.integers(0, 4, [5, 3])
CLASSES = RNG.integers(0, 3, 5)
BATCH = ((IMAGES, IDS), CLASSES)


@pytest.fixture(scope="module")
def net():
    """Returns a network of images and ids, with a convolution and a table."""
    keras.utils.set_random_seed(2)
    image, ids = keras.Input([6, 6, 1]), keras.Input([3], dtype="int32")
    hidden = keras.layers.Conv2D(2, 3, activation="relu")(image)
    parts = [keras.layers.Flatten()(hidden)]
    parts += [keras.layers.Flatten()(keras.layers.Embedding(4, 2)(ids))]
    hidden = keras.layers.LayerNormalization()(keras.layers.Concatenate()(parts))
    return keras.Model([image, ids], keras.layers.Dense(3)(hidden))


def loss_of(net):
    def loss_fn(features, labels):
        logits = net(features, training=True)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    return loss_fn


@pytest.fixture(scope="module")
def by_loop(net):
    """Returns the gradients of one example after the other, by variable."""
    gradients = []
    for i in range(5):
        example = tf.nest.map_structure(lambda x, i=i: tf.constant(x[i : i + 1]), BATCH)
        with tf.GradientTape() as tape:
            loss = loss_of(net)(*example)[0]
        found = tape.gradient(loss, [v.value for v in net.trainable_variables])
        gradients.append([tf.convert_to_tensor(g).numpy() for g in found])
    return [np.stack(of_variable) for of_variable in zip(*gradients, strict=True)]


def test_gradients_are_those_of_a_loop(net, by_loop):
    fixed = loss_of(net), net.trainable_variables
    for actual, expected in zip(per_example_gradients(*fixed, *BATCH), by_loop, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("at_once", [2, pytest.param(32, marks=pytest.mark.slow)])
def test_each_example_is_clipped(net, by_loop, at_once):
    fixed = loss_of(net), net.trainable_variables, *BATCH
    norms = np.sqrt(sum(np.square(g).reshape(5, -1).sum(1) for g in by_loop))
    clip_norm = float(np.median(norms))
    means = clipped_mean_gradients(*fixed, clip_norm=clip_norm, at_once=at_once)
    for actual, gradients in zip(means, by_loop, strict=True):
        expected = np.tensordot(np.minimum(1, clip_norm / norms), gradients, 1) / 5
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


# Nine examples of three rows, in steps of 4, 4 and 1.
X = RNG.normal(size=[9, 3, 2]).astype(np.float32)
Y = RNG.normal(size=[9, 3]).astype(np.float32)
START, RATE, CLIP_NORM, STDDEV = np.array([0.5, -1.0]), 0.1, 0.5, 0.3


def private(features, labels, mode, vector, optimizer):
    """Trains by DP-SGD; the loss has weights, and examples count equally all the same."""

    def losses(x, y):
        return tf.square(tf.linalg.matvec(x, vector) - y)

    def loss_fn(x, y):
        return tf.reduce_mean(losses(x, y), axis=1)

    gradients = clipped_mean_gradients(
        loss_fn, [vector], features, labels, clip_norm=CLIP_NORM, at_once=2
    )
    noise = gradient_noise(STDDEV, seed=4)
    op = ge.TrainOp(optimizer, [vector], gradients=gradients, gradient_fn=noise)
    weights = tf.cast(labels > 0, tf.float32)
    return ge.EstimatorSpec(mode, loss=losses(features, labels), loss_weights=weights, train_op=op)


TWO = {"devices": ("CPU:0", "CPU:1")}


@pytest.mark.parametrize(
    ("config", "batch_size"),
    [
        pytest.param({}, 4, id="default", marks=pytest.mark.slow),
        pytest.param(TWO, 4, id="mirrored 2"),
        pytest.param(
            {**TWO, "gradient_accumulation_steps": 2},
            2,
            id="accumulated mirrored 2",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_private_training_is_the_same_for_each_split(tmp_path, config, batch_size):
    modules = {
        "vector": lambda: tf.Variable(START, dtype=tf.float32),
        "optimizer": lambda: keras.optimizers.SGD(RATE),
    }
    config = ge.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=0, **config)
    estimator = ge.Estimator(private, modules=modules, config=config)
    estimator.train(lambda: tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size))

    expected = START
    for step, rows in enumerate((slice(0, 4), slice(4, 8), slice(8, 9))):
        x, y = X[rows], Y[rows]
        gradients = np.einsum("btd,bt->bd", x, 2 * (x @ expected - y)) / 3
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        mean = (gradients * np.minimum(1, CLIP_NORM / norms)).mean(0)
        [noise] = gradient_noise(STDDEV, seed=4)([tf.zeros([2])], [None], step)
        expected = expected - RATE * (mean + noise.numpy())
    np.testing.assert_allclose(estimator.state.modules["vector"].numpy(), expected, rtol=1e-5)


def test_noise_is_normal_and_differs_by_variable_and_step():
    zeros = [tf.zeros([10000])] * 2
    first, second = gradient_noise(2.0)(zeros, [None] * 2, 7)
    later, _ = gradient_noise(2.0)(zeros, [None] * 2, 8)
    assert float(tf.math.reduce_std(first)) == pytest.approx(2, rel=0.05)
    assert float(tf.reduce_mean(first)) == pytest.approx(0, abs=0.1)
    for other in (second, later):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.05


test_what_does_not_fit_is_refused = refused(
    lambda net, call: call((loss_of(net), net.trainable_variables, *BATCH)),
    (lambda f: clipped_mean_gradients(*f, clip_norm=0), "clip_norm=0"),
    (lambda f: clipped_mean_gradients(*f, clip_norm=1.0, at_once=0), "at_once=0"),
    (lambda f: gradient_noise(-1.0), "stddev is -1.0"),
    (lambda f: per_example_gradients(lambda *_: tf.zeros([2]), *f[1:]), r"shape \(2,\) for"),
    (lambda f: per_example_gradients(lambda *_: tf.zeros([1]), *f[1:]), "depends on none"),
    (lambda f: per_example_gradients(f[0], [], *f[2:]), "depends on none"),
    fixtures=["net"],
)
