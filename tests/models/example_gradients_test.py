"""Gradients by example are those of a loop; clipped, noised, and trained with."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import clipped_mean_gradients, gradient_noise, per_example_gradients
from pipeline import EstimatorSpec, SpecError, TrainOp
from tests.step_trainer import CUTS, RATE, Trainer, W, X, Y, parts

RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=[5, 6, 6, 1]).astype(np.float32)
IDS = RNG.integers(0, 4, [5, 3])
CLASSES = RNG.integers(0, 3, 5)


def network():
    """A network of images and ids, with a convolution and a table."""
    keras.utils.set_random_seed(2)
    image, ids = keras.Input([6, 6, 1]), keras.Input([3], dtype="int32")
    hidden = keras.layers.Conv2D(2, 3, activation="relu")(image)
    parts = [keras.layers.Flatten()(hidden)]
    parts += [keras.layers.Flatten()(keras.layers.Embedding(4, 2)(ids))]
    hidden = keras.layers.LayerNormalization()(keras.layers.Concatenate()(parts))
    return keras.Model([image, ids], keras.layers.Dense(3)(hidden))


@pytest.fixture(scope="module")
def net():
    return network()


def loss_of(net):
    def loss_fn(features, labels):
        logits = net(features, training=True)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    return loss_fn


BATCH = ((IMAGES, IDS), CLASSES)


def by_loop(net):
    """The gradients of one example after the other, by variable."""
    each = []
    for i in range(5):
        one = tf.nest.map_structure(lambda x, i=i: tf.constant(x[i : i + 1]), BATCH)
        with tf.GradientTape() as tape:
            loss = loss_of(net)(*one)[0]
        found = tape.gradient(loss, [v.value for v in net.trainable_variables])
        each.append([tf.convert_to_tensor(g).numpy() for g in found])
    return [np.stack(of_variable) for of_variable in zip(*each, strict=True)]


def test_they_are_those_of_a_loop(net):
    given = loss_of(net), net.trainable_variables
    call = tf.function(lambda *batch: per_example_gradients(*given, *batch))
    found = call(*BATCH)
    for mine, wanted in zip(found, by_loop(net), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("at_once", [1, 2, 5, 32])
def test_each_example_is_clipped(net, at_once):
    given = loss_of(net), net.trainable_variables, *BATCH
    found = clipped_mean_gradients(*given, clip_norm=0.7, at_once=at_once)
    wanted = by_loop(net)
    norms = np.sqrt(sum(np.square(g).reshape(5, -1).sum(1) for g in wanted))
    assert norms.min() < 0.7 < norms.max() or norms.min() > 0.7
    scale = np.minimum(1, 0.7 / norms)
    for mine, each in zip(found, wanted, strict=True):
        mean = np.tensordot(scale, each, 1) / 5
        np.testing.assert_allclose(mine, mean, rtol=1e-4, atol=1e-6)


def private(features, labels, mode, network, optimizer):
    """Losses `[batch, time]` with a mask, trained by DP-SGD, whose examples count."""

    def losses(x, y):
        return tf.square(tf.linalg.matvec(x, network) - y)

    def loss_fn(x, y):
        return tf.reduce_mean(losses(x, y), 1)

    given = loss_fn, [network], features, labels
    op = TrainOp(
        optimizer,
        [network],
        gradients=clipped_mean_gradients(*given, clip_norm=0.5, at_once=2),
        gradient_fn=gradient_noise(0.3, seed=4),
    )
    mask = tf.cast(labels > 0, tf.float32)
    loss = losses(features, labels)
    return EstimatorSpec(mode, loss=loss, loss_weights=mask, train_op=op)


@pytest.mark.parametrize("cut", CUTS)
def test_private_training_is_the_same_however_it_is_cut(cut):
    trainer = Trainer(private, replicas=len(CUTS[cut]))
    wanted, noises = W.astype(np.float64), []
    for step in range(2):
        trainer.step(*parts(cut))
        each = np.einsum("btd,bt->bd", X, 2 * (X @ wanted - Y)) / 3
        norms = np.linalg.norm(each, axis=1, keepdims=True)
        mean = (each * np.minimum(1, 0.5 / norms)).mean(0)
        noise = gradient_noise(0.3, seed=4)([tf.zeros([2])], [None], step)[0].numpy()
        noises.append(noise)
        wanted = wanted - RATE * (mean + noise)
    np.testing.assert_allclose(trainer.w, wanted, rtol=1e-5)
    assert abs(noises[0] - noises[1]).min() > 0


def test_noise_is_normal_and_of_each_variable_its_own():
    first, second = gradient_noise(2.0)([tf.zeros([10000])] * 2, [None] * 2, 7)
    assert float(tf.math.reduce_std(first)) == pytest.approx(2, rel=0.05)
    assert float(tf.reduce_mean(first)) == pytest.approx(0, abs=0.1)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda f: clipped_mean_gradients(*f, clip_norm=0), "clip_norm is 0"),
        (
            lambda f: clipped_mean_gradients(*f, clip_norm=1.0, at_once=0),
            "at_once is 0",
        ),
        (lambda f: gradient_noise(-1.0), "stddev is -1.0"),
        (
            lambda f: per_example_gradients(lambda *_: tf.zeros([2]), *f[1:]),
            "of shape (2,) for one example",
        ),
        (
            lambda f: per_example_gradients(lambda *_: tf.zeros([1]), *f[1:]),
            "depends on none of the variables",
        ),
        (lambda f: per_example_gradients(f[0], [X], *f[2:]), "not a variable"),
        (lambda f: per_example_gradients(f[0], [], *f[2:]), "variables is empty"),
    ],
)
def test_what_does_not_fit_is_told(net, call, told):
    with pytest.raises(SpecError) as error:
        call((loss_of(net), net.trainable_variables, *BATCH))
    assert told in str(error.value)
