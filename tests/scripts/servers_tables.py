"""Lookup tables on parameter servers' workers, with finite data.

    python -m tests.scripts.servers_tables out_dir

The chief trains with a table that is a module, then with some that workers do not
reach, and writes what came of each to out_dir/found.json.
"""

import functools
import json
import pathlib
import sys

import keras
import tensorflow as tf

import pipeline as ge
from pipeline.strategy import parameter_server
from tests.scripts import forked_servers

OUT = pathlib.Path(sys.argv[1])
ROW = functools.partial(parameter_server.parameter_server, start_timeout_secs=120)
WORDS = ["a", "b", "c", "a"]


class Vocabulary(tf.Module):
    """A table of three words, made where the module is."""

    def __init__(self):
        super().__init__()
        numbers = tf.constant([0, 1, 2], tf.int64)
        words = tf.lookup.KeyValueTensorInitializer(tf.constant(WORDS[:3]), numbers)
        self.table = tf.lookup.StaticHashTable(words, -1)


def words_fn():
    """80 words, once."""
    rows = {"word": WORDS * 20}, [0, 1, 2, 0] * 20
    return tf.data.Dataset.from_tensor_slices(rows).batch(8)


def make_model_fn(lookup):
    """A model_fn whose ids are `lookup(vocabulary, words)`."""

    def model_fn(features, labels, mode, network, vocabulary, optimizer):
        ids = tf.reshape(lookup(vocabulary, features["word"]), [-1])
        logits = network(tf.one_hot(ids, 3))
        return ge.EstimatorSpec(
            mode,
            loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
            train_op=ge.TrainOp(optimizer, network.trainable_variables),
            metrics={"ids": ge.metric(keras.metrics.Sum, tf.cast(ids, tf.float64))},
        )

    return model_fn


def estimator(name, lookup):
    """Of a model that looks words up."""
    return ge.Estimator(
        make_model_fn(lookup),
        modules={
            "network": lambda: keras.layers.Dense(3),
            "vocabulary": Vocabulary,
            "optimizer": lambda: keras.optimizers.SGD(0.1),
        },
        config=ge.RunConfig(
            model_dir=str(OUT / name),
            execution="parameter_server",
            train_distribute=ROW,
        ),
    )


def in_branch(vocabulary, words):
    """Looks up where TensorFlow hands no table to."""
    return tf.cond(
        tf.size(words) > 0,
        lambda: vocabulary.table.lookup(words),
        lambda: tf.zeros_like(words, tf.int64),
    )


def run_task():
    """The chief's trainings, or serving it."""
    config = ge.RunConfig()
    # Before TensorFlow connects the tasks.
    outside = None if config.cluster.serves else Vocabulary()
    first = estimator(
        "module", lambda vocabulary, words: vocabulary.table.lookup(words)
    )
    first.train(words_fn)
    if config.cluster.serves:
        return
    found = {"module": {key: float(v) for key, v in first.evaluate(words_fn).items()}}
    refused = {"outside": lambda _, words: outside.table.lookup(words)}
    for name, lookup in (refused | {"in_branch": in_branch}).items():
        try:
            estimator(name, lookup).train(words_fn)
        except ValueError as error:
            found[name] = str(error)
    (OUT / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    forked_servers.run(OUT, run_task)
