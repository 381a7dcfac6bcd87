"""Canned estimators of v1 against those of TensorFlow 2.15."""

import json
import pathlib
import sys

import pytest

import gin_estimator.v1 as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import canned_cases as cases  # noqa: E402

GOLDEN = json.loads(pathlib.Path(__file__).with_name("canned.json").read_text())


@pytest.mark.parametrize("name", list(GOLDEN))
def test_evaluations_are_those_of_tensorflow(name):
    case, version = name.rsplit("_", 1)
    module = tf.estimator if version == "v1" else tf.compat.v2.estimator
    found = cases.evaluated(tf, module, case)
    expected = {key: pytest.approx(value, rel=1e-4) for key, value in GOLDEN[name].items()}
    # The driver reports the mean of examples; TensorFlow the loss of the only batch.
    expected.pop("loss")
    assert {key: found[key] for key in expected} == expected
