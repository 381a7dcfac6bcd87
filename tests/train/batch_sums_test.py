"""Warnings of losses that depend on the size of the batch, when a training is traced."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

import gin_estimator as ge

X, Y = np.ones([4, 3], "float32"), np.ones([4], "float32")


def data():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)


@pytest.fixture
def warnings(monkeypatch):
    found = []
    monkeypatch.setattr(logging, "warning", lambda text, *args: found.append(text % args))
    return found


def squares(labels, outputs):
    return tf.square(labels[:, tf.newaxis] - outputs)


LOSSES = {
    "sum": (lambda y, p: 0.5 * tf.reduce_sum(squares(y, p)), "sum over the batch"),
    "sum of sums": (
        lambda y, p: tf.reduce_sum(tf.reduce_sum(squares(y, p), -1)),
        "sum over the batch",
    ),
    "broadcast": (lambda y, p: tf.square(y - p), r"shape [n, n] for n examples"),
    "mean": (lambda y, p: tf.reduce_mean(squares(y, p)), None),
    "own mean": (
        lambda y, p: tf.reduce_sum(squares(y, p)) / tf.cast(tf.shape(y)[0], tf.float32),
        None,
    ),
    "by example": (squares, None),
    "by position": (lambda y, p: tf.tile(squares(y, p), [1, tf.cast(y[0], tf.int32)]), None),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_no_mean_by_example_is_warned_of(tmp_path, warnings, name):
    loss_of, expected = LOSSES[name]

    def model_fn(features, labels, mode, network, optimizer):
        loss = loss_of(labels, network(features))
        op = ge.TrainOp(optimizer, network.trainable_variables)
        return ge.EstimatorSpec(mode, loss=loss, train_op=op)

    modules = {
        "network": lambda: keras.Sequential([keras.layers.Dense(1)]),
        "optimizer": lambda: keras.optimizers.SGD(0.1),
    }
    config = ge.RunConfig(str(tmp_path), save_checkpoints_steps=0)
    ge.Estimator(model_fn, modules=modules, config=config).train(data, steps=1)
    found = [text for text in warnings if "batch" in text or "[n, n]" in text]
    assert len(found) == bool(expected) and (not expected or expected in found[0])


class Adds(keras.layers.Layer):
    """Adds a loss of its inputs."""

    def __init__(self, loss_of):
        super().__init__()
        self.loss_of = loss_of

    def call(self, inputs):
        self.add_loss(self.loss_of(inputs))
        return inputs


def fitted(tmp_path, loss_of, devices):
    def make():
        regularized = keras.layers.Dense(1, kernel_regularizer="l2")
        model = keras.Sequential([Adds(loss_of), regularized])
        model.compile("sgd", "mse")
        return model

    return ge.fit(make, data, config=ge.RunConfig(str(tmp_path), devices=devices))


@pytest.mark.parametrize("reduce", ["sum", "mean", "none"])
def test_an_added_sum_over_the_batch_is_warned_of_on_two_replicas(tmp_path, warnings, reduce):
    def loss_of(x):  # Keras adds up those of each example.
        return 0.01 * (keras.ops.sum(x * x, -1) if reduce == "none" else sums[reduce](x * x))

    sums = {"sum": keras.ops.sum, "mean": keras.ops.mean}
    fitted(tmp_path, loss_of, ("CPU:0", "CPU:1"))
    found = [text for text in warnings if "counts 1/2 on 2 replicas" in text]
    assert len(found) == (reduce != "mean")


def root(labels, outputs):
    return keras.ops.sqrt(keras.ops.mean((labels - outputs) ** 2))


def ranking(labels, outputs):
    """A loss of each example among the others of its batch."""
    scores = tf.matmul(outputs, outputs, transpose_b=True)
    return keras.ops.logsumexp(scores, -1) - labels[:, 0]


def absolute(labels, outputs):
    return keras.ops.mean(keras.ops.abs(labels - outputs))


class Squares(keras.losses.Loss):
    """An own loss by example."""

    def call(self, y_true, y_pred):
        return keras.ops.mean((y_true - y_pred) ** 2, -1)


@pytest.mark.parametrize("devices", [("CPU:0", "CPU:1"), None])
def test_functions_that_join_examples_are_warned_of_on_two_replicas(tmp_path, warnings, devices):
    def fit(loss, metrics):
        def make():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", loss, metrics=metrics)
            return model

        model_dir = str(tmp_path / str(len(metrics)))
        config = ge.RunConfig(model_dir, devices=devices, save_checkpoints_steps=0)
        ge.fit(make, columns, validation_data=columns, config=config)

    def columns():  # Labels [n] and outputs [n, 1] would broadcast in a metric, as in Keras.
        return data().map(lambda features, labels: (features, labels[:, tf.newaxis]))

    fit(ranking, [root])
    fit(Squares(), [absolute, "mae"])
    found = [text.partition(" joins")[0] for text in warnings if "joins the examples" in text]
    assert sorted(found) == (["metric 'root'", "the loss of output 'output'"] if devices else [])


def test_one_number_of_a_metric_function_counts_by_the_rows_of_its_replica(tmp_path):
    def make():
        dense = keras.layers.Dense(1, kernel_initializer="zeros")
        model = keras.Sequential([dense])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[absolute])
        return model

    def nine():
        labels = np.arange(9, dtype="float32")[:, np.newaxis]
        return tf.data.Dataset.from_tensors((np.ones([9, 3], "float32"), labels))

    config = ge.RunConfig(str(tmp_path), devices=("CPU:0", "CPU:1"), save_checkpoints_steps=0)
    assert ge.fit(make, nine, config=config).history["absolute"] == [4.0]


def test_scalars_of_a_model_fn_that_join_examples_are_warned_of(tmp_path, warnings):
    def model_fn(features, labels, mode, network, optimizer):
        losses = squares(labels, network(features))
        mean = tf.reduce_mean(losses)
        op = ge.TrainOp(optimizer, network.trainable_variables)
        metrics = {"root": tf.sqrt(mean), "half": 0.5 * mean, "roots": tf.sqrt(losses)}
        return ge.EstimatorSpec(mode, loss=losses, train_op=op, metrics=metrics)

    modules = {
        "network": lambda: keras.Sequential([keras.layers.Dense(1)]),
        "optimizer": lambda: keras.optimizers.SGD(0.1),
    }
    config = ge.RunConfig(str(tmp_path), devices=("CPU:0", "CPU:1"), save_checkpoints_steps=0)
    ge.Estimator(model_fn, modules=modules, config=config).train(data, steps=1)
    found = [text.partition(" is a")[0] for text in warnings if "mean over replicas" in text]
    assert found == ["metric 'root'"]
