"""Layers and optimizers whose variables differ between replicas, or have one copy for all."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

import gin_estimator as ge
from small import make

TWO = ("CPU:0", "CPU:1")
X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = np.arange(64) % 3


def input_fn():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(32)


def trained(folder, network, optimizer, strategy, devices=TWO, data=input_fn):
    options = {"save_checkpoints_steps": 0, "train_distribute": strategy, "devices": devices}
    modules = {"network": network, "optimizer": optimizer}
    estimator = make(folder, tf_random_seed=1, **modules, **options)
    estimator.train(data)
    state = estimator.state
    state.synchronize()
    return {name: value.numpy() for name, value in state.variables().items()}


@pytest.mark.slow
def test_central_storage_trains_a_constraint_and_nadam_as_one_replica(tmp_path):
    """Both assign to trainable variables."""

    def network():
        constraint = keras.constraints.MaxNorm(0.5)
        first = keras.layers.Dense(8, "relu", kernel_constraint=constraint)
        return keras.Sequential([first, keras.layers.Dense(3)])

    def nadam():
        return keras.optimizers.Nadam(0.01, epsilon=1e-3)

    two = trained(tmp_path / "two", network, nadam, ge.central_storage)
    one = trained(tmp_path / "one", network, nadam, None, devices=None)
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, 1e-5, 2e-6, err_msg=name)


@pytest.mark.parametrize("strategy", [ge.mirrored, ge.central_storage])
def test_statistics_dropout_and_averages(tmp_path, strategy):
    layers = keras.layers

    def network():
        return keras.Sequential(
            [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(3)]
        )

    values = trained(tmp_path, network, lambda: keras.optimizers.SGD(0.1, use_ema=True), strategy)
    assert all(np.isfinite(value).all() for value in values.values())
    [mean] = [value for name, value in values.items() if name.endswith("moving_mean")]
    assert np.abs(mean).max() > 0


def trained_kernel(folder, strategy, devices=TWO):
    """Makes a step of two examples, one on each replica, which move a row each by their mask."""

    def mask_fn(features, mode, network, optimizer):
        loss = tf.reduce_sum(network(features, training=True), 1)
        train_op = ge.TrainOp(optimizer, network.trainable_variables)
        return ge.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def network():
        kernel = keras.layers.Dense(64, use_bias=False, kernel_initializer="ones")
        return keras.Sequential([kernel, keras.layers.Dropout(0.5)])

    modules = {"network": network, "optimizer": lambda: keras.optimizers.SGD(1.0)}
    options = {"tf_random_seed": 1, "train_distribute": strategy, "devices": devices}
    estimator = make(folder, fn=mask_fn, **modules, **options)
    # The gradient of a row of the kernel is the mask of the example that has a 1 there.
    estimator.train(lambda: tf.data.Dataset.from_tensors(tf.eye(2)), steps=1)
    return estimator.get_variable_value("network/dense/kernel")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [ge.mirrored, ge.central_storage])
def test_dropout_differs_between_replicas_and_after_a_restore(tmp_path, strategy):
    first = trained_kernel(tmp_path, strategy)
    mask = first != 1
    assert 0 < mask.sum() < mask.size
    assert not np.array_equal(*mask)
    assert not np.array_equal(*(trained_kernel(tmp_path, strategy) != first))


class Draws(keras.layers.Layer):
    """Multiplies by numbers of a second generator, of TensorFlow with a seed, and of a seed."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (keras.random.SeedGenerator(seed) for seed in (1, 2))

    def build(self, _):
        self.kernels = [
            self.add_weight(shape=(2, 64), initializer="ones", name=name) for name in "abc"
        ]

    def call(self, x):
        shape = (tf.shape(x)[0], 64)
        _, second = (keras.random.normal(shape, seed=s) for s in (self.first, self.second))
        seeded = tf.random.normal(shape, seed=5)
        numbers = [second, seeded, tf.random.stateless_normal(shape, seed=[1, 2])]
        return tf.add_n([x @ k * n for k, n in zip(self.kernels, numbers, strict=True)])


def test_each_replica_draws_its_own_numbers_or_it_is_said(tmp_path, caplog):
    def model_fn(features, mode, network, optimizer):
        loss = tf.reduce_sum(network(features), 1)
        train_op = ge.TrainOp(optimizer, network.trainable_variables)
        return ge.EstimatorSpec(mode, loss=loss, train_op=train_op)

    sgd = lambda: keras.optimizers.SGD(1.0)  # noqa: E731
    estimator = make(
        tmp_path, fn=model_fn, network=Draws, optimizer=sgd, tf_random_seed=1, devices=TWO
    )
    estimator.train(lambda: tf.data.Dataset.from_tensors(tf.eye(2)), steps=1)
    # The gradient of a row is the numbers of the example that has a 1 there.
    rows = {name: estimator.get_variable_value(f"network/{name}") for name in "abc"}
    assert {name for name, each in rows.items() if np.array_equal(*each)} == {"c"}
    assert caplog.text.count("draws the same random numbers on each of the 2 replicas") == 1


@pytest.mark.parametrize(
    ("options", "close"),
    [
        ({}, 2e-6),
        pytest.param(
            {"gradient_accumulation_steps": 2, "precision": "mixed_float16"},
            1e-3,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_synchronized_statistics_of_uneven_parts(tmp_path, caplog, options, close):
    """Parts of 2, 2 and 3 examples, then of one example in all."""

    def model_fn(features, labels, mode, network, optimizer):
        x, weights = features
        outputs = tf.cast(network(x, training=True)[:, 0], tf.float32)
        train_op = ge.TrainOp(optimizer, network.trainable_variables)
        loss = 0.01 * tf.square(outputs - labels)  # No step overflows.
        return ge.EstimatorSpec(mode, loss=loss, loss_weights=weights, train_op=train_op)

    def network():
        layers = keras.layers
        normal = layers.BatchNormalization(synchronized=True)
        return keras.Sequential([layers.Dense(5, "tanh"), normal, layers.Dense(1)])

    def data():
        x = (X[:15], 1.0 + np.arange(15) % 3), Y[:15].astype("float32")
        return tf.data.Dataset.from_tensor_slices(x).batch(7).repeat(2)

    sgd = lambda: keras.optimizers.SGD(5.0)  # noqa: E731
    found = []
    for devices in (None, (*TWO, "CPU:2")):
        folder = tmp_path / str(len(found))
        given = {"fn": model_fn, "network": network, "optimizer": sgd, "tf_random_seed": 1}
        estimator = make(folder, devices=devices, **given, **options)
        estimator.train(data)
        found.append({n: v.numpy() for n, v in estimator.state.variables().items()})
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, 1e-5, close, err_msg=name)
    assert "is exact where the 3 replicas get an example each" in caplog.text


def test_moving_statistics_are_averaged_over_replicas(tmp_path):
    """Each of the replicas has those of its half of the last batch."""

    def network():
        return keras.Sequential(
            [keras.layers.BatchNormalization(momentum=0.0), keras.layers.Dense(3)]
        )

    values = trained(tmp_path, network, lambda: keras.optimizers.SGD(0.1), ge.mirrored)
    halves = X[32:48], X[48:]
    for name, statistic in (("mean", np.mean), ("variance", np.var)):
        expected = np.mean([statistic(half, axis=0) for half in halves], axis=0)
        found = values[f"network/batch_normalization/moving_{name}"]
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


class Seen(keras.layers.Layer):
    """Keeps the largest input and the number of examples; `adds_up`: over all replicas."""

    def __init__(self, *, adds_up):
        super().__init__()
        self.adds_up = adds_up

    def build(self, _):
        self.top = self.add_weight(shape=(), initializer="zeros", trainable=False, name="top")
        self.count = self.add_weight(
            shape=(), initializer="zeros", dtype="int64", trainable=False, name="count"
        )

    def call(self, x):
        top, count = tf.reduce_max(x), tf.shape(x, tf.int64)[0]
        if self.adds_up:
            context = tf.distribute.get_replica_context()
            top = tf.reduce_max(context.all_gather(top[tf.newaxis], axis=0))
            count = context.all_reduce("SUM", count)
        self.top.assign(tf.maximum(self.top, top))
        self.count.assign(self.count + count)
        return x


@pytest.mark.parametrize("adds_up", [False, True])
def test_variables_of_layers_that_differ_between_replicas_are_warned_of(
    tmp_path, monkeypatch, adds_up
):
    found = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: found.append(text % args))

    def network():
        layers = [Seen(adds_up=adds_up), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        return keras.Sequential(layers)

    sgd = lambda: keras.optimizers.SGD(0.1)  # noqa: E731
    values = trained(tmp_path, network, sgd, ge.mirrored, data=lambda: input_fn().take(1).repeat(3))
    assert any("mean and variance of each of the 2 replicas' part" in text for text in found)
    found = [text for text in found if "differ between" in text]
    if adds_up:
        assert not found
        assert values["network/seen/count"] == 96
        assert values["network/seen/top"] == X[:32].max()
    else:
        [text] = found  # Once, though it synchronizes several times.
        assert "network/seen/top differ between the 2 replicas" in text
