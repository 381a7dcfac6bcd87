"""A program that TensorFlow 2.15 had half trained; tests/recorders/v1.py recorded its numbers."""

import json
import pathlib
import shutil

import numpy as np
import pytest

import gin_estimator.v1 as tf

import half_trained

pytestmark = pytest.mark.oldest

FOLDER = pathlib.Path(__file__).with_name("tensorflow_2_15")
RECORDED = json.loads((FOLDER / "numbers.json").read_text())


def test_defaults():
    assert half_trained.defaults(tf) == RECORDED["defaults"]


def test_its_model_dir_is_finished_with_its_numbers(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "run")
    losses = []

    class Losses(tf.train.SessionRunHook):
        def before_run(self, run_context):
            return tf.train.SessionRunArgs("the_loss:0")

        def after_run(self, run_context, run_values):
            losses.append(float(run_values.results))

    estimator = half_trained.estimator(tf, tmp_path / "run")
    found = estimator.evaluate(half_trained.input_fn(tf, 1))
    assert found == pytest.approx(RECORDED["half"], rel=1e-5)
    estimator.train(half_trained.input_fn(tf), hooks=[Losses()], max_steps=half_trained.ALL)
    np.testing.assert_allclose(losses, RECORDED["losses"], rtol=1e-5)
    for name, value in RECORDED["values"].items():
        ours = estimator.get_variable_value(name)
        np.testing.assert_allclose(ours, value, rtol=1e-5, atol=1e-6, err_msg=name)
    found = estimator.evaluate(half_trained.input_fn(tf, 1))
    assert found == pytest.approx(RECORDED["end"], rel=1e-5)
    assert {*RECORDED["values"]} <= {*estimator.get_variable_names()}
