"""A factory that returns what it has returned before."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from tests import fakes

X, Y = fakes.classification_data(rows=24)
INPUT = fakes.make_input_fn(X, Y, batch_size=8)
SHARED = "returned before"


def repeated():
    return INPUT().repeat()


def built():
    return keras.Sequential([keras.Input([6]), *fakes.network(batch_norm=True).layers])


def of_parts(part):
    """Returns a factory whose networks are new, but for one layer."""
    return lambda: keras.Sequential([part, keras.layers.Dense(fakes.NUM_CLASSES)])


def frozen():
    layer = keras.layers.BatchNormalization(trainable=False)
    layer.build([None, 6])
    return layer


class Known(keras.layers.Layer):
    """Looks up ids in a constant table."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.dense = keras.layers.Dense(fakes.NUM_CLASSES)

    def call(self, x):
        known = self.table.lookup(tf.cast(x[:, :1], tf.int64))
        return self.dense(tf.concat([x, tf.cast(known, x.dtype)], 1))


def constant():
    keys = tf.constant([1, 2], tf.int64)
    entries = tf.lookup.KeyValueTensorInitializer(keys, keys)
    return tf.lookup.StaticHashTable(entries, 0)


def cases():
    network, late, optimizer = built(), fakes.network(), fakes.adam()
    return {
        "built": {"network": lambda: network},
        "built when called": {"network": lambda: late},
        "a layer": {"network": of_parts(keras.layers.Dense(8))},
        "a frozen layer": {"network": of_parts(frozen())},
        "the optimizer": {"optimizer": lambda: optimizer},
    }


@pytest.mark.parametrize("name", cases())
def test_another_estimator_is_refused(tmp_path, name):
    case = cases()[name]
    first = fakes.make_estimator(tmp_path / "first", **case)
    first.train(INPUT, steps=1)
    before = first.evaluate(INPUT)
    other = fakes.make_estimator(tmp_path / "other", **case)
    (module,) = case
    with pytest.raises(ValueError, match=rf"^{module}/.+ {SHARED}.+make_{module}"):
        other.train(INPUT, steps=1)
    assert first.evaluate(INPUT) == before
    assert not list(tmp_path.glob("other/*.index"))


def test_one_that_is_gone_has_trained_it(tmp_path):
    network = built()
    fakes.make_estimator(tmp_path / "a", network=lambda: network).train(INPUT, steps=1)
    again = fakes.make_estimator(tmp_path / "b", network=lambda: network)
    with pytest.raises(ValueError, match=SHARED):
        again.evaluate(INPUT)


@pytest.mark.parametrize("devices", [None, ("CPU:0", "CPU:1")])
def test_one_estimator_may_do_everything_with_it(tmp_path, devices):
    network = []

    def once():
        network.extend([] if network else [built()])
        return network[0]

    estimator = fakes.make_estimator(tmp_path / "run", network=once, devices=devices)
    ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(repeated, max_steps=2),
        ge.EvalSpec(INPUT, exporters=[ge.FinalExporter()]),
    )
    estimator.train(repeated, steps=1)
    assert estimator.evaluate(INPUT)["global_step"] == 3
    assert len(list(estimator.predict(INPUT))) == 24


@pytest.mark.parametrize("devices", [None, ("CPU:0", "CPU:1")])
def test_a_copy_begins_with_the_values_of_a_model_that_is_there(tmp_path, devices):
    model = built()

    def make_network():
        made = keras.models.clone_model(model)
        made.set_weights(model.get_weights())
        return made

    losses = [
        fakes.make_estimator(
            tmp_path / name, network=make_network, devices=devices, tf_random_seed=seed
        ).evaluate(INPUT)["loss"]
        for seed, name in enumerate("ab")
    ]
    logits = model(X, training=False)
    expected = keras.losses.sparse_categorical_crossentropy(Y, logits, True)
    np.testing.assert_allclose(losses, [np.mean(expected)] * 2, rtol=1e-5)


def test_constants_are_nobodys(tmp_path):
    table = constant()
    for name in "ab":
        estimator = fakes.make_estimator(tmp_path / name, network=lambda: Known(table))
        estimator.train(INPUT, steps=1)


def test_a_table_that_counts_is_somebodys(tmp_path):
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    def with_table_fn(features, labels, mode, network, optimizer, table):
        del table
        return fakes.classifier_fn(features, labels, mode, network, optimizer, {})

    def trained(name):
        ge.Estimator(
            with_table_fn,
            modules={
                "network": fakes.network,
                "optimizer": fakes.adam,
                "table": lambda: table,
            },
            model_dir=str(tmp_path / name),
        ).train(INPUT, steps=1)

    trained("a")
    with pytest.raises(ValueError, match=f"^table is .*{SHARED}"):
        trained("b")


def test_open_predictions_do_not_change_what_is_trained(tmp_path):
    network = built()
    estimator = fakes.make_estimator(
        tmp_path, network=lambda: network, save_checkpoints_steps=1
    )
    estimator.train(repeated, steps=2)
    path = f"{tmp_path}/model.ckpt-1"
    list(estimator.predict(INPUT, checkpoint_path=path))
    predictions = estimator.predict(INPUT, checkpoint_path=path)
    next(predictions)
    estimator.train(repeated, steps=2)
    trained = network.get_weights()
    with pytest.raises(ValueError, match=SHARED):
        list(predictions)
    np.testing.assert_equal(network.get_weights(), trained)


def test_a_look_elsewhere_does_not_become_the_start(tmp_path):
    fakes.make_estimator(tmp_path / "other").train(INPUT, steps=2)
    network = fakes.network()
    estimator = fakes.make_estimator(tmp_path / "run", network=lambda: network)
    estimator.evaluate(INPUT, checkpoint_path=f"{tmp_path}/other/model.ckpt-2")
    with pytest.raises(ValueError, match=SHARED):
        estimator.train(INPUT, steps=1)


def test_an_evaluation_elsewhere_needs_its_own(tmp_path):
    network = built()
    estimator = fakes.make_estimator(
        tmp_path,
        network=lambda: network,
        eval_distribute=tf.distribute.OneDeviceStrategy("CPU:0"),
    )
    estimator.train(INPUT, steps=1)
    with pytest.raises(ValueError, match=SHARED):
        estimator.evaluate(INPUT)
