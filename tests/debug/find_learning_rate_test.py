"""find_learning_rate suggests a rate, and leaves the run as it is."""

import csv
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from gin_estimator import main

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0], [3.0], [0.5]], np.float32)


def input_fn():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(16).repeat()


def model_fn(features, labels, mode, network, first, second):
    outputs = network(features)
    weights = network.trainable_variables
    return ge.EstimatorSpec(
        mode,
        loss=tf.reduce_sum((outputs - labels) ** 2, axis=1),
        train_op=[ge.TrainOp(first, weights[:1]), ge.TrainOp(second, weights[1:])],
    )


def make(folder, **options):
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-9, 10, 0.5)
    modules = {
        "network": lambda: keras.layers.Dense(1, kernel_initializer="zeros"),
        "first": lambda: keras.optimizers.SGD(schedule),
        "second": lambda: keras.optimizers.SGD(1e-9),
    }
    return ge.Estimator(model_fn, modules=modules, config=ge.RunConfig(str(folder), **options))


@pytest.mark.thin
@pytest.mark.parametrize("devices", [None, ("CPU:0", "CPU:1")])
def test_the_curve_has_a_suggestion_and_a_divergence(tmp_path, devices):
    estimator = make(tmp_path, devices=devices, keep_checkpoint_max=2)
    found = ge.debug.find_learning_rate(estimator, input_fn, lowest=1e-4, highest=100.0, steps=60)
    # Gradient descent on this loss is unstable above about 1.
    assert found.diverged
    assert 0.5 < found.rates[-1] < 20
    assert 0.005 < found.suggestion < 0.5
    assert min(found.losses) < 0.5 < 5 < found.losses[0]
    text = "\n".join(found.lines())
    assert f"suggestion {found.suggestion:.2g}" in text
    assert "the loss diverges at" in text
    with open(tmp_path / "find_learning_rate/rates.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == list(found.losses)
    np.testing.assert_allclose([float(row["learning_rate"]) for row in rows], found.rates)
    assert os.listdir(tmp_path) == ["find_learning_rate"]
    assert os.listdir(tmp_path / "find_learning_rate") == ["rates.csv"]
    assert estimator.last_run is None


@pytest.mark.slow
def test_rates_at_which_nothing_falls(tmp_path):
    options = {"lowest": 1e-9, "highest": 1e-8, "steps": 20}
    found = ge.debug.find_learning_rate(make(tmp_path), input_fn, **options)
    assert found.suggestion is None and not found.diverged
    assert "suggestion none" in "\n".join(found.lines())


def test_wrong_arguments_and_modules_without_an_optimizer_are_refused(tmp_path):
    def without_optimizer(features, labels, mode, network):
        raise AssertionError("not called")

    one, modules = make(tmp_path), {"network": lambda: keras.layers.Dense(1)}
    other = ge.Estimator(without_optimizer, str(tmp_path), modules=modules)
    for estimator, options, text in (
        (one, {"steps": 1}, "steps is 1: expected an int > 1"),
        (one, {"lowest": 1.0, "highest": 0.1}, "lowest is 1.0 and highest is 0.1"),
        (other, {}, "expected an optimizer among them"),
    ):
        with pytest.raises(ge.errors.UserValueError, match=text):
            ge.debug.find_learning_rate(estimator, input_fn, **options)


@pytest.mark.slow
def test_the_command(gin_folder, capsys):
    flags = ["--gin_file=linear.gin", "--job=find_learning_rate", "--model_dir=run"]
    flags += ["--gin.find_learning_rate.steps=12", "--gin.RunConfig.log_step_count_steps=None"]
    assert main.main(["main", *flags, "--gin.find_learning_rate.lowest=1e-3"]) == 0
    assert "suggestion " in capsys.readouterr().out
    assert (gin_folder / "run/find_learning_rate/rates.csv").exists()
