"""The numbers of tf.estimator 2.15.1's canned models, on the same weights and data.

`tests/scripts/tables_of_tf_estimator.py` made the file.
"""

import dataclasses
import functools
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import inputs
import models
import pipeline as ge
from tests import fakes
from tests.old_values import saved
from tests.sources import ROOT

RECORDED = json.loads(pathlib.Path(__file__).with_name("estimator.json").read_text())
STEPS, BATCH = 10, 8
SCHEMA = inputs.Schema(
    features={
        "age": {"kind": "number", "default": 0.0},
        "income": {"kind": "number", "default": 0.0},
        "word": {"kind": "id", "size": 5, "default": 0, "embedding": 4},
        "hour": {"kind": "id", "size": 3, "default": 0, "embedding": "one_hot"},
        "tags": {"kind": "bag of ids", "size": 6, "embedding": 3},
        "pairs": {"kind": "id", "size": 10, "default": 0, "embedding": None},
    }
)
# The rows of the first kernel: there by name, here vectors, one-hot ids, numbers.
THEIRS = {"age": 1, "hour": 3, "income": 1, "tags": 3, "word": 4}
OURS = ("word", "tags", "hour", "age", "income")
NETWORKS = {
    "Linear": lambda: models.linear(schema=SCHEMA, config=None),
    "DNN": lambda: models.dnn(SCHEMA, None, hidden=[5, 4]),
    "DNNLinearCombined": lambda: models.wide_and_deep(SCHEMA, None, hidden=[5, 4]),
}
KINDS = {"Classifier": models.BinaryClassHead, "Regressor": models.RegressionHead}
each_case = pytest.mark.parametrize(
    ("model", "kind"), [(m, k) for m in NETWORKS for k in KINDS]
)


@functools.cache
def encoded():
    """All features, encoded."""
    raw = {
        name: tf.ragged.constant(values, dtype=tf.int64)
        if name == "tags"
        else tf.constant(values, tf.float32 if name in ("age", "income") else tf.int64)
        for name, values in RECORDED["features"].items()
    }
    return SCHEMA.prepared(None).encode(raw)


def batches(kind, steps):
    labels = tf.constant(RECORDED["labels"][kind.lower()])
    data = tf.data.Dataset.from_tensor_slices((encoded(), labels))
    return data.repeat().batch(BATCH, drop_remainder=True).take(steps)


def network_of(model, case):
    """Returns the network with the recorded weights."""
    network = NETWORKS[model]()
    network.num_outputs = 1
    network.build()
    given = {name.removeprefix("dnn/"): np.array(v) for name, v in case.items()}
    if model == "Linear":
        return network
    for table in network.deep.vectors.tables:
        name = f"{table.name}_embedding/embedding_weights"
        value = given[f"input_from_feature_columns/input_layer/{name}"]
        table.embeddings.assign(value)
    kernel = given["hiddenlayer_0/kernel"]
    parts = np.split(kernel, np.cumsum(list(THEIRS.values()))[:-1])
    parts = dict(zip(THEIRS, parts, strict=True))
    given["hiddenlayer_0/kernel"] = np.concatenate([parts[name] for name in OURS])
    layers = [*network.tower.parts, network.logits]
    names = ("hiddenlayer_0", "hiddenlayer_1", "logits")
    for name, layer in zip(names, layers, strict=True):
        layer.kernel.assign(given[f"{name}/kernel"])
        layer.bias.assign(given[f"{name}/bias"])
    return network


def optimizers(model):
    """Returns the modules of a model that update it."""
    ftrl = keras.optimizers.Ftrl(0.2, l1_regularization_strength=0.003)
    adagrad = keras.optimizers.Adagrad(0.05)
    if model == "DNNLinearCombined":
        return {"optimizer": adagrad, "wide_optimizer": ftrl}
    return {"optimizer": ftrl if model == "Linear" else adagrad}


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)


@each_case
def test_logits_and_the_losses_of_ten_steps(model, kind):
    case = RECORDED["cases"][model + kind]
    network, modules = network_of(model, case["weights"]), optimizers(model)
    close(network(encoded())[:, 0], case["logits_before"])
    losses = []
    for features, labels in batches(kind, STEPS):
        with tf.GradientTape(persistent=True) as tape:
            spec = models.table_model(
                features, labels, "train", network, **modules, head=KINDS[kind]()
            )
            loss = tf.reduce_mean(spec.loss)
        losses.append(float(loss))
        for op in spec.train_op:
            trained = [v.value for v in op.variables]
            # Dense: Keras alone would square each use of a row by itself.
            gradients = map(tf.convert_to_tensor, tape.gradient(loss, trained))
            op.optimizer.apply(list(gradients), op.variables)
    close(losses, case["losses"])
    close(network(encoded())[:, 0], case["logits_after"])


def test_the_driver_gives_the_same(tmp_path):
    """By two optimizers, which update rows of tables."""
    case = RECORDED["cases"]["DNNLinearCombinedClassifier"]
    made = optimizers("DNNLinearCombined")
    recorder = fakes.Recorder(every_steps=1)
    head = models.BinaryClassHead()

    estimator = ge.Estimator(
        functools.partial(models.table_model, head=head),
        modules={
            "network": lambda: network_of("DNNLinearCombined", case["weights"]),
            "optimizer": lambda: keras.optimizers.Adagrad.from_config(
                made["optimizer"].get_config()
            ),
            "wide_optimizer": lambda: keras.optimizers.Ftrl.from_config(
                made["wide_optimizer"].get_config()
            ),
        },
        config=ge.RunConfig(model_dir=str(tmp_path), log_step_count_steps=None),
    )
    estimator.train(lambda: batches("Classifier", STEPS), hooks=[recorder])
    close([each["loss"] for each in recorder.values], case["losses"])


@pytest.fixture(scope="module")
def page():
    """The two blocks of code of the page of old rows."""
    text = (ROOT / "docs/old_rows.md").read_text(encoding="utf-8")
    return [block.partition("```")[0] for block in text.split("```python\n")[1:]]


def test_the_page_of_old_rows_takes_a_canned_checkpoint(page, tmp_path):
    """With the columns of here. Linear weights are 0, as recorded; slots are not."""
    case = RECORDED["cases"]["DNNLinearCombinedClassifier"]
    there = {name: np.array(v, "float32") for name, v in case["weights"].items()}
    there["linear/linear_model/bias_weights"] = np.zeros([1], "float32")
    slots = {"word": 5, "hour": 3, "tags": 6, "pairs": 10}
    slots = {n: np.random.default_rng(k).random([k, 1], "f") for n, k in slots.items()}
    for name, slot in slots.items():
        weights = f"linear/linear_model/{name}/weights"
        there |= {weights: 0 * slot, f"training/Ftrl/{weights}/linear": slot}
    names = {}
    exec(page[0].replace("old/model_dir", saved(tmp_path, **there)), names)
    names |= {"THERE": THEIRS, "DEEP": OURS, "WIDE": list(slots)}
    names |= {"SLOTS": {"wide_optimizer": {"linear": "training/Ftrl/{}/linear"}}}
    chosen = names["settings"].vars_to_warm_start.replace("rows/", "(rows/|kernel)")
    estimator = ge.Estimator(
        functools.partial(models.table_model, head=models.BinaryClassHead()),
        modules={
            "network": functools.partial(models.wide_and_deep, SCHEMA, hidden=[5, 4])
        },
        config=ge.RunConfig(model_dir=str(tmp_path / "here")),
        warm_start_from=dataclasses.replace(
            names["settings"], vars_to_warm_start=chosen
        ),
    )
    data = tf.data.Dataset.from_tensor_slices(encoded()).batch(BATCH)
    logits = [each["logits"][0] for each in estimator.predict(lambda: data)]
    close(logits, case["logits_before"])
    network = network_of("DNNLinearCombined", case["weights"])
    ftrl = keras.optimizers.Ftrl(0.2)
    ftrl.build(network.wide_variables)
    names["init_fn"]({"network": network, "wide_optimizer": ftrl})
    rows = [v for v in ftrl.variables if v.path.endswith("rows_embeddings_linear")]
    close(rows[0], np.concatenate(list(slots.values())))


def test_the_page_of_old_rows_has_tables_that_were_read_by_mod(page):
    names = {"np": np}
    exec(page[1], names)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable(
            "table",
            initializer=tf.reshape(tf.range(14.0), [7, 2]),
            partitioner=tf.compat.v1.fixed_size_partitioner(3),
        )
        found = tf.compat.v1.nn.embedding_lookup(table, tf.range(7))
        session.run(tf.compat.v1.global_variables_initializer())
        whole = session.run([tf.convert_to_tensor(table), found])
    close(names["by_id"](whole[0], 3), whole[1])
    assert (whole[0] != whole[1]).any()
