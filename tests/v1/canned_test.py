"""Canned estimators of v1 against those of TensorFlow 2.15."""

import json
import pathlib
import sys

import numpy as np
import pytest

import gin_estimator.v1 as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import canned_cases as cases  # noqa: E402

pytestmark = pytest.mark.oldest

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


def test_heads_reduce_as_those_of_tensorflow(tmp_path):
    """The default is the mean; `loss_fn`, `thresholds` and `name` count."""
    logits = np.array([[0.5], [-1.0], [2.0], [0.1]], "float32")
    features = {"logits": logits, "w": np.array([1.0, 2.0, 0.0, 3.0], "float32")}
    labels = np.array([1.0, 0.0, 1.0, 0.0], "float32")
    losses = np.log1p(np.exp(-logits[:, 0])) + (1 - labels) * logits[:, 0]
    weights, sums = features["w"], tf.losses.Reduction
    squares = lambda labels, logits: tf.square(labels - logits)  # noqa: E731
    cases = [
        (tf.estimator.BinaryClassHead(), losses.mean()),
        (tf.contrib.estimator.binary_classification_head(), losses.mean()),
        (tf.estimator.BinaryClassHead("w"), (losses * weights).mean()),
        (tf.estimator.BinaryClassHead("w", loss_reduction=sums.SUM), (losses * weights).sum()),
        (
            tf.estimator.BinaryClassHead("w", loss_reduction=sums.MEAN),
            (losses * weights).sum() / weights.sum(),
        ),
        (
            tf.estimator.BinaryClassHead(None, [0.6], None, sums.SUM, squares, name="a"),
            np.square(labels - logits[:, 0]).sum(),
        ),
    ]

    def model_fn(features, labels, mode):
        # One head after the other: the loss of each is a metric.
        specs = [
            head.create_estimator_spec(features, mode, features["logits"], labels)
            for head, _ in cases
        ]
        ops = {str(i): tf.metrics.mean(spec.loss) for i, spec in enumerate(specs)}
        return specs[-1]._replace(eval_metric_ops={**specs[-1].eval_metric_ops, **ops})

    data = lambda: tf.data.Dataset.from_tensor_slices((features, labels)).batch(4)  # noqa: E731
    found = tf.estimator.Estimator(model_fn, str(tmp_path)).evaluate(data)
    for i, (_, expected) in enumerate(cases):
        assert found[str(i)] == pytest.approx(expected, rel=1e-5), i
    assert found["accuracy/positive_threshold_0.6/a"] == pytest.approx(1.0)
    assert found["precision/positive_threshold_0.6/a"] == pytest.approx(1.0)
    assert found["accuracy/a"] == pytest.approx(0.75)


@pytest.mark.parametrize(("optimizer", "rate"), [("SGD", 0.2), (None, None)])
def test_the_rate_of_a_named_optimizer_does_not_depend_on_the_columns(optimizer, rate, tmp_path):
    x = {f"x{i}": np.zeros(4, "float32") for i in range(36)}
    labels = np.arange(4, dtype="float32")
    columns = [tf.feature_column.numeric_column(name) for name in x]
    estimator = tf.estimator.LinearRegressor(columns, str(tmp_path), optimizer=optimizer)
    estimator.train(lambda: tf.data.Dataset.from_tensor_slices((x, labels)).batch(4))
    bias = estimator.get_variable_value("linear/linear_model/bias_weights")
    # The first step of Ftrl moves by nearly its rate, 1 / sqrt(36).
    expected = 2 * labels.sum() * rate if rate else 1 / 6
    np.testing.assert_allclose(bias, expected, rtol=1e-2)
