"""The regressor against numpy, and labels that would broadcast."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import linear, regressor
from pipeline import ModeKeys, SpecError

OUTPUTS = np.array([[1.0], [2.0], [4.0]], np.float32)
LABELS = np.array([0.0, 2.0, 1.0], np.float32)


def identity():
    return keras.Sequential([keras.layers.Activation("linear")])


def regress(outputs, labels, mode=ModeKeys.EVAL, **kwargs):
    return regressor(tf.constant(outputs), labels, mode, identity(), **kwargs)


def value_of(spec, name):
    entry = spec.metrics[name]
    built = entry.factory()
    built.update_state(*entry.args, **entry.kwargs)
    return float(built.result())


@pytest.mark.parametrize("flat_outputs", [False, True])
@pytest.mark.parametrize(
    "labels", [LABELS, LABELS[:, None], LABELS.astype(int)], ids=["flat", "col", "int"]
)
def test_a_missing_last_axis_does_not_broadcast(labels, flat_outputs):
    spec = regress(OUTPUTS[:, 0] if flat_outputs else OUTPUTS, labels)
    np.testing.assert_allclose(spec.loss, [1.0, 0.0, 9.0])
    assert value_of(spec, "mae") == pytest.approx(4 / 3)
    assert value_of(spec, "rmse") == pytest.approx(np.sqrt(10 / 3))


def test_several_outputs():
    outputs = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
    spec = regress(outputs, np.zeros([2, 2]))
    np.testing.assert_allclose(spec.loss, [2.5, 17.0])
    assert value_of(spec, "mae") == pytest.approx(11 / 4)


@pytest.mark.parametrize(
    "loss",
    [
        "huber",
        keras.losses.Huber,
        keras.losses.Huber(),
        lambda y, p: keras.losses.huber(y, p),
    ],
    ids=["name", "class", "object", "function"],
)
def test_loss_of_each_kind_is_one_an_example(loss):
    np.testing.assert_allclose(regress(OUTPUTS, LABELS, loss=loss).loss, [0.5, 0, 2.5])


def test_predictions_keep_the_networks_shape():
    spec = regress(OUTPUTS, None, ModeKeys.PREDICT)
    np.testing.assert_allclose(spec.predictions["predictions"], OUTPUTS)


def test_train_op_regularization_and_metrics():
    network = linear(l2=0.5)
    spec = regressor(
        tf.ones([3, 2]),
        LABELS,
        ModeKeys.TRAIN,
        network,
        keras.optimizers.SGD(),
        clip_norm=1.0,
        metrics={"keras": keras.metrics.MeanSquaredError},
    )
    assert spec.train_op[0].clip_norm == 1.0
    assert set(spec.metrics) == {"mae", "rmse"}
    expected = 0.5 * np.square(network.layers[-1].kernel.numpy()).sum()
    np.testing.assert_allclose(spec.regularization_losses, [expected], rtol=1e-6)


def test_further_metrics():
    spec = regress(OUTPUTS, LABELS, metrics={"mse": keras.metrics.MeanSquaredError})
    assert value_of(spec, "mse") == pytest.approx(10 / 3)


@pytest.mark.parametrize(
    ("outputs", "labels", "kwargs", "text"),
    [
        (OUTPUTS, np.zeros([3, 2]), {}, r"\(3, 2\) and the network's outputs \(3, 1\)"),
        (OUTPUTS, np.zeros([1]), {}, r"\(1,\) and the network's outputs \(3, 1\)"),
        (OUTPUTS, np.zeros([3, 1, 1]), {}, r"\(3, 1, 1\)"),
        (OUTPUTS, None, {}, "needs labels"),
        (OUTPUTS[0, 0], LABELS, {}, r"into \(\), and \[batch, ...\] is needed"),
        (
            OUTPUTS,
            LABELS,
            {"loss": lambda y, p: tf.reduce_mean(y - p)},
            r"gave a scalar for labels of shape \(3, 1\)",
        ),
    ],
)
def test_errors(outputs, labels, kwargs, text):
    with pytest.raises(SpecError, match=text):
        regress(outputs, labels, **kwargs)
