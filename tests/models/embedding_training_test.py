"""Trainings with a table: by the driver, and on what it makes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from models import Embedding, ShardedEmbedding
from tests import fakes

VOCABULARY = 50


def ids_fn(mode):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, size=(500, 2))
    labels = (rng.normal(size=VOCABULARY)[ids].sum(1) > 0).astype(np.int64)
    data = tf.data.Dataset.from_tensor_slices((ids, labels))
    return (data.repeat() if mode == ge.ModeKeys.TRAIN else data).batch(50)


def model_fn(features, labels, mode, network, head, optimizer):
    logits = head(tf.reshape(network(features), [-1, 2 * 3]))
    predictions = {"logits": logits}
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions=predictions)
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
        predictions=predictions,
        train_op=ge.TrainOp(
            optimizer, [*network.trainable_variables, *head.trainable_variables]
        ),
    )


def make_estimator(model_dir, table=ShardedEmbedding, **config):
    return ge.Estimator(
        model_fn,
        modules={
            "network": lambda: table(VOCABULARY, 3),
            "head": lambda: keras.layers.Dense(2),
            "optimizer": lambda: fakes.adam(learning_rate=0.05),
        },
        config=ge.RunConfig(model_dir=str(model_dir), tf_random_seed=1, **config),
    )


def trained_loss(model_dir, devices):
    trained = make_estimator(model_dir, devices=devices)
    trained.train(ids_fn, max_steps=60)
    return trained.evaluate(ids_fn)["loss"]


def test_trains_alike_on_one_replica_and_on_two(tmp_path):
    # Ids repeat within a batch: their rows' gradients are sums on both.
    one = trained_loss(tmp_path / "one", None)
    assert one < 0.2
    two = trained_loss(tmp_path / "two", ("CPU:0", "CPU:1"))
    assert two == pytest.approx(one, rel=1e-4)


def test_it_goes_on_from_a_checkpoint_of_keras_layer_and_is_exported(tmp_path):
    first = make_estimator(tmp_path, keras.layers.Embedding)
    first.train(ids_fn, max_steps=3)
    name = "optimizer/momentum/network/embeddings"
    second = make_estimator(tmp_path, Embedding)
    assert second.evaluate(ids_fn) == first.evaluate(ids_fn)
    second.train(ids_fn, max_steps=6)
    first = make_estimator(tmp_path, keras.layers.Embedding)
    np.testing.assert_array_equal(
        first.get_variable_value(name), second.get_variable_value(name)
    )
    predicted = list(second.predict(ids_fn))
    path = second.export_saved_model(str(tmp_path / "export"))
    serve = tf.saved_model.load(path).signatures["serving_default"]
    ids = next(iter(ids_fn(ge.ModeKeys.PREDICT)))[0]
    np.testing.assert_allclose(
        serve(features=ids)["logits"],
        [each["logits"] for each in predicted[:50]],
        rtol=1e-5,
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"the id\] \[50\]"):
        serve(features=ids * 0 + VOCABULARY)


def bags_fn(mode):
    rng = np.random.default_rng(0)
    bags = [rng.integers(0, VOCABULARY, size=n % 4).tolist() for n in range(40)]
    ids = tf.ragged.constant(bags, dtype=tf.int64)
    data = tf.data.Dataset.from_tensor_slices((ids, tf.range(40) % 2)).batch(15)
    # A ragged column and a sparse one, and last batches that are smaller.
    return data.map(lambda x, y: ({"a": x, "b": x.to_sparse()}, y))


def bags_model_fn(features, labels, mode, network, head, optimizer):
    bags = network(features)
    logits = head(tf.concat([bags["a"], bags["b"]], axis=-1))
    trained = [*network.trainable_variables, *head.trainable_variables]
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
        train_op=ge.TrainOp(optimizer, trained),
    )


def test_bags_train_alike_on_one_replica_and_on_two(tmp_path):
    losses = []
    for devices in (None, ("CPU:0", "CPU:1")):
        estimator = ge.Estimator(
            bags_model_fn,
            modules={
                "network": lambda: Embedding(VOCABULARY, 3, combiner="mean"),
                "head": lambda: keras.layers.Dense(2),
                "optimizer": lambda: keras.optimizers.Adagrad(0.5),
            },
            config=ge.RunConfig(
                model_dir=str(tmp_path / str(devices)),
                tf_random_seed=1,
                devices=devices,
            ),
        )
        estimator.train(bags_fn)
        losses.append(estimator.evaluate(bags_fn)["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def unknown_id_fn():
    features = tf.constant([[1, VOCABULARY]])
    return tf.data.Dataset.from_tensors((features, tf.constant([0])))


def test_an_unknown_id_ends_the_training(tmp_path):
    estimator = make_estimator(tmp_path)
    with pytest.raises(RuntimeError, match="step 1: .* the id 50 "):
        estimator.train(unknown_id_fn, max_steps=1)


def test_under_xla_an_unknown_id_gives_nan(tmp_path):
    """It drops the check, and reads the last row."""
    estimator = make_estimator(tmp_path, jit_compile=True)
    assert np.isnan(estimator.evaluate(unknown_id_fn)["loss"])


def test_a_large_table_of_keras_layer_is_remarked(tmp_path, caplog):
    rows = 1_300_000
    with caplog.at_level("WARNING"):
        estimator = ge.Estimator(
            model_fn,
            modules={
                "network": lambda: keras.Sequential(
                    [keras.layers.Embedding(rows, 3, embeddings_initializer="zeros")]
                ),
                "head": lambda: keras.layers.Dense(2),
                "optimizer": lambda: keras.optimizers.SGD(0.1),
            },
            config=ge.RunConfig(model_dir=str(tmp_path)),
        )
        estimator.train(ids_fn, max_steps=1)
    (line,) = [text for text in caplog.messages if "keras.layers.Embedding" in text]
    assert "network/embedding is a keras.layers.Embedding of 1,300,000 x 3" in line
    assert "15 MB, at each step: write models.Embedding(1300000, 3)" in line
