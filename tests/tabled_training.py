"""Trainings of networks for tables: what they come to on any strategy."""

import keras
import numpy as np
import tensorflow as tf

import inputs
import models
import pipeline as ge
from tests import fakes, tabled

STEPS, BATCH = 5, 8
K = keras.optimizers
SCHEMA = inputs.Schema(
    features={
        name: tabled.SCHEMA.features[name] for name in ("age", "word", "tags", "pairs")
    },
    other_columns={"weight": "number"},
)
OPTIONS = {"dnn": {}, "wide_and_deep": {}, "dcn_v2": {"cross_layers": 1, "rank": 2}}
# `dnn` is a part of another.
WITH_ALL_PARTS = ("wide_and_deep", "dcn_v2")
# The losses of one replica.
EXPECTED = {
    "dnn": [0.6515224, 0.6464754, 0.6414869, 0.6370147, 0.6324331, 0.5931140],
    "wide_and_deep": [0.6515224, 0.6136860, 0.5800267, 0.5508759, 0.5248066, 0.5200273],
    "dcn_v2": [0.6144639, 0.5798036, 0.5416650, 0.5016057, 0.4610305, 0.4327817],
}
OPTIMIZERS = {
    "dnn": lambda: K.Adagrad(0.1),
    "wide_and_deep": lambda: K.Adagrad(0.1),
    "dcn_v2": lambda: fakes.adam(learning_rate=0.05),
}
HEAD = models.BinaryClassHead(weight_column="weight")


def network(name):
    """Returns the factory of a network, whose weights are alike however it is cut."""

    def make(config):
        made = getattr(models, name)(SCHEMA, config, 1, hidden=[4], **OPTIONS[name])
        made.build()
        rng = np.random.default_rng(0)
        for table in made.deep.vectors.tables:
            shape = table.num_rows, table.output_dim
            table.load_own_variables({"0": rng.normal(size=shape) / 2})
        crosses = [(each.down, each.up) for each in getattr(made, "crosses", [])]
        for layer in (*sum(crosses, ()), *made.tower.parts, made.logits):
            layer.kernel.assign(rng.normal(size=layer.kernel.shape) / 2)
        return made

    return make


def model_fn(features, labels, mode, wide_optimizer, **modules):
    """All networks at once, each with optimizers of its own."""
    specs = {}
    for name in [name for name in OPTIONS if name in modules]:
        specs[name] = models.table_model(
            features,
            labels,
            mode,
            modules[name],
            modules[f"{name}_optimizer"],
            wide_optimizer if name == "wide_and_deep" else None,
            head=HEAD,
            clip_norm=0.5,
            lazy=name == "dcn_v2",
        )
    weights = specs["dcn_v2"].loss_weights
    return ge.EstimatorSpec(
        mode,
        loss=sum(spec.loss for spec in specs.values()),
        loss_weights=weights,
        train_op=[op for spec in specs.values() for op in spec.train_op or []] or None,
        metrics={
            name: ge.metric(keras.metrics.Mean, spec.loss, sample_weight=weights)
            for name, spec in specs.items()
        },
    )


def input_fn(mode, input_context):
    """Training: the same rows in each step; else all, with a smaller last batch."""
    data = tf.data.Dataset.from_tensor_slices(_data())
    if mode == ge.ModeKeys.TRAIN:
        data = data.take(BATCH).repeat()
    batches = data.batch(input_context.get_per_replica_batch_size(BATCH))
    # With parameter servers a worker's batch is a step: all are alike.
    return batches.shard(
        input_context.num_input_pipelines, input_context.input_pipeline_id
    )


def _data():
    raw, labels = tabled.columns(rows=21)
    names = (*SCHEMA.columns, "weight")
    return SCHEMA.prepared(None).encode({name: raw[name] for name in names}), labels


def train(config, names=WITH_ALL_PARTS):
    """Returns each network's losses: of steps one after the other, of an evaluation."""
    made = {name: network(name) for name in names}
    made |= {f"{name}_optimizer": OPTIMIZERS[name] for name in names}
    made["wide_optimizer"] = lambda: K.Ftrl(0.1, l1_regularization_strength=0.003)
    estimator = ge.Estimator(model_fn, modules=made, config=config)
    recorder = fakes.Recorder(every_steps=1)
    estimator.train(input_fn, max_steps=STEPS, hooks=[recorder])
    windows = [*recorder.values, estimator.evaluate(input_fn)]
    return {name: [float(values[name]) for values in windows] for name in names}


def check(found):
    """Asserts that losses are those of one replica."""
    for name, losses in found.items():
        np.testing.assert_allclose(losses, EXPECTED[name], 1e-5, err_msg=name)
