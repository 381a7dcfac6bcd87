"""Any callable is a model_fn: a gin configurable, a lambda, a partial, a method, ..."""

import functools

import gin
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from tests import fakes

CLIP_NORM = 0.125


@gin.configurable(module="model_fn_kinds_test")
def gin_model_fn(features, labels, mode, network, optimizer, clip_norm):
    """`clip_norm` comes from gin alone."""
    params = {"clip_norm": clip_norm, "on_call": lambda mode: SEEN.append(clip_norm)}
    return fakes.classifier_fn(features, labels, mode, network, optimizer, params)


class Model:
    """A bound method, and an object that is called."""

    def method(self, features, labels, mode, network, optimizer):
        return gin_model_fn(features, labels, mode, network, optimizer, CLIP_NORM)

    __call__ = method


KINDS = {
    "gin": gin_model_fn,
    "lambda": lambda features, labels, mode, network, optimizer: gin_model_fn(
        features, labels, mode, network, optimizer
    ),
    "partial": functools.partial(gin_model_fn, clip_norm=CLIP_NORM),
    "bound_method": Model().method,
    "object": Model(),
}
SEEN = []


@pytest.fixture(autouse=True)
def bound_in_gin():
    SEEN.clear()
    gin.bind_parameter("model_fn_kinds_test.gin_model_fn.clip_norm", CLIP_NORM)
    yield
    gin.clear_config()


@pytest.mark.parametrize("kind", KINDS)
def test_trains_and_evaluates(tmp_path, kind):
    input_fn = fakes.make_input_fn(*fakes.classification_data(64), batch_size=32)
    estimator = fakes.make_estimator(tmp_path, model_fn=KINDS[kind])
    estimator.train(input_fn)
    assert estimator.evaluate(input_fn)["global_step"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_gets_its_own_arguments(tmp_path, kind):
    input_fn = fakes.make_input_fn(*fakes.classification_data(64), batch_size=32)
    fakes.make_estimator(tmp_path, model_fn=KINDS[kind]).train(input_fn)
    assert set(SEEN) == {CLIP_NORM}


@pytest.mark.parametrize("devices", [("CPU:0",), ("CPU:0", "CPU:1")])
def test_a_model_fn_assigns_what_no_op_trains(devices, tmp_path):
    """As tf.assign did: floats are the mean of the replicas', integers the first's."""

    def network():
        made = fakes.network()
        made.mean = made.add_weight(shape=[6], trainable=False, name="mean")
        made.seen = made.add_weight(
            shape=[], initializer="zeros", dtype="int64", trainable=False, name="seen"
        )
        return made

    def model_fn(features, labels, mode, network, optimizer, params):
        if mode == ge.ModeKeys.TRAIN:
            network.mean.assign(tf.reduce_mean(features, 0))
            network.seen.assign(network.seen + tf.shape(features, tf.int64)[0])
        return fakes.classifier_fn(features, labels, mode, network, optimizer, params)

    x, y = fakes.classification_data(16)
    estimator = fakes.make_estimator(
        tmp_path, model_fn=model_fn, network=network, devices=devices
    )
    estimator.train(fakes.make_input_fn(x, y, batch_size=8))
    value = estimator.get_variable_value("network/mean")
    np.testing.assert_allclose(value, x[8:].mean(0), atol=1e-6)
    assert estimator.get_variable_value("network/seen") == 16 / len(devices)
