"""Layers, contrib's layers and cells of v1 against those of TensorFlow 2.15 and tf_slim."""

import json
import pathlib
import sys

import numpy as np
import pytest

import gin_estimator as ge
import gin_estimator.v1 as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cases  # noqa: E402

pytestmark = pytest.mark.oldest

GOLDEN = json.loads(pathlib.Path(__file__).with_name("layers.json").read_text())


class Losses(ge.Hook):
    wants_losses, every_steps = True, 1

    def begin(self, run):
        self.losses = []

    def after_step(self, run):
        self.losses += list(run.report.losses)


@pytest.fixture(scope="module", params=list(cases.GROUPS))
def group(request):
    return request.param


@pytest.fixture(scope="module")
def trained(group, tmp_path_factory):
    """Returns losses, variables and outputs of all cases of a group, trained together."""

    def model_fn(features, labels, mode):
        training = mode == tf.estimator.ModeKeys.TRAIN
        loss, outputs = cases.model(tf, tf.contrib.slim, group, features, training)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            update = tf.train.GradientDescentOptimizer(0.05).minimize(loss)
        return tf.estimator.EstimatorSpec(mode, predictions=outputs, loss=loss, train_op=update)

    def input_fn():
        return tf.data.Dataset.from_tensor_slices(cases.INPUTS).batch(cases.BATCH)

    hook = Losses()
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path_factory.mktemp(group)))
    estimator.train(input_fn, hooks=[hook])
    names = estimator.get_variable_names()
    variables = {name: estimator.get_variable_value(name) for name in names}
    rows = list(estimator.predict(lambda: input_fn().take(1)))
    outputs = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return hook.losses, variables, outputs


def assert_same(ours, golden, what):
    found = cases.shortened(ours)
    assert found["shape"] == golden["shape"], what
    np.testing.assert_allclose(found["numbers"], golden["numbers"], 2e-4, 2e-6, err_msg=what)


def test_names_of_variables_are_those_of_tensorflow(group, trained):
    driver = {"global_step", "iteration", "learning_rate", "driver/run_state"}
    assert trained[1].keys() - driver == GOLDEN[group]["variables"].keys()


def test_outputs_after_training_are_those_of_tensorflow(group, trained):
    for name, golden in GOLDEN[group]["outputs"].items():
        assert_same(trained[2][name], golden, name)


def test_trained_variables_are_those_of_tensorflow(group, trained):
    for name, golden in GOLDEN[group]["variables"].items():
        assert_same(trained[1][name], golden, name)


def test_losses_are_those_of_tensorflow(group, trained):
    np.testing.assert_allclose(trained[0], GOLDEN[group]["losses"], rtol=1e-5)
