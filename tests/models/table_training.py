"""Trains a network of tables, with outcomes that are equal on all strategies.

`table_training.py EXECUTION MODEL_DIR CHECKPOINT RESULT` does it as a task of a cluster.
"""

import functools
import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.inputs import Schema
from gin_estimator.models import BinaryClassHead, table_model, wide_and_deep
from small import Losses

STEPS, BATCH, ROWS = 4, 8, 21
LARGE = 997
OTHERS = {"other_columns": {"weight": "number"}}
SCHEMA = Schema(
    {
        "age": {"kind": "number", "default": 0.0},
        "word": {"kind": "word", "vocabulary": ["a", "b", "c"], "embedding": 4},
        "hour": {"kind": "number", "buckets": [6, 12], "embedding": "one_hot"},
        "tags": {"kind": "bag of ids", "size": LARGE, "embedding": 3, "combiner": "sqrtn"},
        "other": {"kind": "word", "shared_with": "word"},
        "counted": {"kind": "bag of ids", "size": 5, "embedding": "one_hot", "wide": False},
        "income": {"kind": "number", "default": 0.0, "wide": False},
        "a pair": {"kind": "cross", "of": ["word", "tags"], "hash_buckets": 600},
    },
    **OTHERS,
)
TRAINED = Schema({n: SCHEMA.features[n] for n in ("age", "word", "tags", "a pair")}, **OTHERS)


def columns(rows=ROWS):
    """Returns columns as a reader does, and labels that follow word and age."""
    rng = np.random.default_rng(0)
    words = rng.choice(["a", "b", "c", "?", ""], size=[2, rows])

    def bags(size):
        lengths = rng.integers(0, 4, size=rows)
        lengths[:2] = 0, 3
        return tf.RaggedTensor.from_row_lengths(rng.integers(0, size, lengths.sum()), lengths)

    numbers = {name: rng.normal(size=rows).astype("float32") for name in ("age", "income")}
    raw = {
        **numbers,
        "word": words[0],
        "other": words[1],
        "hour": rng.integers(0, 24, rows).astype("float32"),
        "weight": rng.integers(1, 4, rows).astype("float32"),
        **{name: bags(SCHEMA.features[name].size) for name in ("tags", "counted")},
    }
    raw = {k: v if isinstance(v, tf.RaggedTensor) else tf.constant(v) for k, v in raw.items()}
    return raw, ((words[0] == "a") + numbers["age"] > 0.3).astype("int64")


def input_fn(mode, size=BATCH):
    """Training: five rows in each step, which replicas cannot share equally."""
    raw, labels = columns()
    data = tf.data.Dataset.from_tensor_slices((TRAINED.prepared().encode(raw), labels))
    if mode == ge.ModeKeys.TRAIN:
        return data.take(5).batch(size).repeat()
    if mode == ge.ModeKeys.PREDICT:
        return data.batch(BATCH).map(lambda features, labels: features)
    return data.batch(BATCH)


graphs = []  # In which model_fn was traced.


def model_fn(features, labels, mode, network, optimizer, wide_optimizer):
    graphs.append(tf.compat.v1.get_default_graph())
    head = BinaryClassHead(weight_column="weight")
    return table_model(
        features,
        labels,
        mode,
        network,
        optimizer,
        wide_optimizer,
        head=head,
        clip_norm=0.5,
    )


def make_estimator(model_dir, checkpoint=None, **config):
    modules = {
        "network": functools.partial(wide_and_deep, TRAINED, hidden=[4]),
        "optimizer": lambda: keras.optimizers.Adagrad(0.1),
        "wide_optimizer": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.003),
    }
    config = ge.RunConfig(str(model_dir), tf_random_seed=1, **config)
    return ge.Estimator(model_fn, modules=modules, config=config, warm_start_from=checkpoint)


def outcome(estimator):
    """Trains; returns the losses of the steps, and an evaluation."""
    hook = Losses()
    size = BATCH // (estimator.config.gradient_accumulation_steps or 1)
    estimator.train(functools.partial(input_fn, size=size), max_steps=STEPS, hooks=[hook])
    if estimator.config.execution == "parameter_server" and not estimator.config.is_chief:
        return None
    return {"losses": hook.values, "evaluation": estimator.evaluate(input_fn)}


def main():
    execution, model_dir, checkpoint, result = sys.argv[1:]
    options = {}
    if execution == "parameter_server":
        cut = functools.partial(ge.parameter_server, min_shard_bytes=64, max_shards=2)
        options["train_distribute"] = cut
    found = outcome(make_estimator(model_dir, checkpoint, execution=execution, **options))
    if found is not None:
        pathlib.Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    ge.run(main)
