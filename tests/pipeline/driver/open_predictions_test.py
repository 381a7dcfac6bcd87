"""Predictions that are taken one by one while other calls change the weights."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import holding
from tests import fakes

X, Y = fakes.classification_data(rows=24)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())
EVAL = fakes.make_input_fn(X, Y, batch_size=24)
ONE = fakes.make_input_fn(X[:4], batch_size=1)
TWO = tf.distribute.MirroredStrategy(
    ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
)


def logits(predictions):
    return np.stack([p["logits"] for p in predictions])


def network():
    return fakes.network(batch_norm=True, dropout=0.5)


def trained(model_dir, **options):
    """With checkpoints at 0, 2 and 4."""
    made = fakes.make_estimator(
        model_dir, network=network, save_checkpoints_steps=2, **options
    )
    return made.train(TRAIN, max_steps=4)


@pytest.mark.parametrize("strategy", [None, TWO], ids=["one", "two_replicas"])
def test_each_prediction_keeps_the_weights_that_it_began_with(strategy, tmp_path):
    estimator = trained(tmp_path, train_distribute=strategy)
    two, four = (f"{estimator.model_dir}/model.ckpt-{step}" for step in (2, 4))
    expected = {
        path: logits(estimator.predict(ONE, checkpoint_path=path))
        for path in (two, four)
    }
    pairs = zip(
        estimator.predict(ONE, checkpoint_path=two),
        estimator.predict(ONE, checkpoint_path=four),
        strict=True,
    )
    first, second = zip(*pairs, strict=True)
    np.testing.assert_array_equal(logits(first), expected[two])
    np.testing.assert_array_equal(logits(second), expected[four])
    # What was begun before goes on while others look, and while it is trained.
    begun = estimator.predict(ONE)
    got = [next(begun)]
    estimator.evaluate(EVAL, checkpoint_path=two)
    got.append(next(begun))
    estimator.train(TRAIN, steps=2)
    got += list(begun)
    np.testing.assert_array_equal(logits(got), expected[four])
    assert estimator.global_step == 6
    assert estimator.evaluate(EVAL)["global_step"] == 6


def test_predictions_do_not_disturb_a_training(tmp_path):
    """Begun before it and along it, and taken along it."""
    estimator = trained(tmp_path / "run")
    begun = estimator.predict(ONE)
    taken = []

    class Predicts(ge.Hook):
        every_steps = 1

        def after_step(self, run):
            taken.append(next(begun))
            taken.append(estimator.predict(ONE))

    estimator.train(TRAIN, max_steps=6, hooks=[Predicts()])
    four, five, six = (
        logits(estimator.predict(ONE, checkpoint_path=path))
        for path in (f"{estimator.model_dir}/model.ckpt-4", None, None)
    )
    assert logits([taken[0], taken[2]]).tolist() == four[:2].tolist()
    assert logits(taken[3]).tolist() == six.tolist()
    assert logits(taken[1]).tolist() != six.tolist()
    quiet = trained(tmp_path / "quiet")
    quiet.train(TRAIN, max_steps=6)
    expected = fakes.weights(quiet.model_dir)
    for name, value in fakes.weights(estimator.model_dir).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_a_prediction_that_was_dropped_costs_nothing(tmp_path, monkeypatch):
    estimator = fakes.make_estimator(tmp_path).train(TRAIN, max_steps=1)
    copies = []
    made = holding.Snapshot.__init__

    def counted(self, modules):
        copies.append(modules)
        made(self, modules)

    monkeypatch.setattr(holding.Snapshot, "__init__", counted)
    next(estimator.predict(ONE))
    estimator.predict(ONE)
    list(estimator.predict(ONE))
    closed = estimator.predict(ONE)
    next(closed)
    closed.close()
    gc.collect()
    estimator.train(TRAIN, max_steps=4)
    assert copies == []
    left = estimator.predict(ONE)
    next(left)
    for _ in range(2):  # One that is kept and not asked is copied once.
        estimator.train(TRAIN, steps=1)
    assert len(copies) == 1


def test_tables_are_kept_too(tmp_path):
    def table():
        made = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
        made.insert(tf.constant([1], tf.int64), tf.constant([0.5]))
        return made

    def model_fn(features, mode, weight, table, optimizer):
        found = tf.ensure_shape(table.lookup(features), [None]) + weight
        return ge.EstimatorSpec(
            mode,
            loss=tf.square(found),
            predictions=found,
            train_op=ge.TrainOp(optimizer, [weight]),
        )

    def input_fn():
        return tf.data.Dataset.from_tensors([1]).map(lambda x: tf.cast(x, tf.int64))

    estimator = ge.Estimator(
        model_fn,
        modules={
            "weight": lambda: tf.Variable(1.0),
            "table": table,
            "optimizer": keras.optimizers.SGD,
        },
        config=ge.RunConfig(model_dir=str(tmp_path)),
    )
    estimator.train(lambda: input_fn().repeat(), steps=1)
    twice = lambda: input_fn().repeat(2)  # noqa: E731
    begun = estimator.predict(twice)
    first = next(begun)
    estimator.train(lambda: input_fn().repeat(), steps=1)
    held = estimator._runtimes.training.modules.by_name["table"]
    held.insert(tf.constant([1], tf.int64), tf.constant([7.0]))
    assert next(begun) == first
