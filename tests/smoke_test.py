"""Trains, evaluates, resumes, predicts and exports a tiny model, alone and on two replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge

pytestmark = pytest.mark.oldest

FEATURES = np.random.default_rng(0).normal(size=(97, 4)).astype("float32")
LABELS = (FEATURES.sum(axis=1) > 0).astype("int64")


def model_fn(features, labels, mode, network, optimizer):
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, {"logits": logits})
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables, clip_norm=1.0),
        metrics={"accuracy": ge.metric(keras.metrics.SparseCategoricalAccuracy, labels, logits)},
    )


def input_fn(mode):
    data = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
    return (data.repeat() if mode == ge.ModeKeys.TRAIN else data).batch(32)


def estimator(model_dir, strategy=None):
    modules = {
        "network": lambda: keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(2)]),
        "optimizer": keras.optimizers.Adam,
    }
    config = ge.RunConfig(
        model_dir=model_dir,
        tf_random_seed=1,
        save_checkpoints_steps=5,
        train_distribute=strategy,
    )
    return ge.Estimator(model_fn, modules=modules, config=config)


@pytest.fixture(scope="module", name="alone")
def trained_alone(tmp_path_factory):
    found = estimator(tmp_path_factory.mktemp("alone"))
    results = ge.train_and_evaluate(
        found,
        ge.TrainSpec(input_fn, max_steps=10),
        ge.EvalSpec(input_fn, exporters=[ge.FinalExporter()]),
    )
    return found, results


def weights(found):
    names = [name for name in found.get_variable_names() if name.startswith("network/")]
    return np.concatenate([found.get_variable_value(name).ravel() for name in names])


def test_two_replicas_that_stop_and_resume_train_as_one(alone, tmp_path):
    found, (metrics, [export]) = alone
    assert metrics["global_step"] == 10
    assert tf.saved_model.contains_saved_model(export)
    for steps in (5, 10):
        strategy = tf.distribute.MirroredStrategy(
            ["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice()
        )
        other = estimator(tmp_path, strategy)
        other.train(input_fn, max_steps=steps)
    np.testing.assert_allclose(weights(other), weights(found), rtol=1e-5, atol=1e-6)
    assert other.evaluate(input_fn) == pytest.approx(metrics, rel=1e-5)


def test_predictions_are_in_the_order_of_the_input(alone):
    found, (metrics, _) = alone
    logits = np.stack([each["logits"] for each in found.predict(input_fn)])
    accuracy = (logits.argmax(axis=1) == LABELS).mean()
    assert accuracy == pytest.approx(metrics["accuracy"], abs=1e-6)
