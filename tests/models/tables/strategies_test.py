"""Networks of tables come to the same on one replica and on several.

Of several processes they do so in `multi_worker_test` and `parameter_server_test`.
"""

import functools

import keras
import pytest
import tensorflow as tf

import inputs
import models
import pipeline as ge
from pipeline.tracing import graph_defs
from tests import tabled_training
from tests.step_trainer import Trainer

REPLICAS = {
    "one": {},
    "two, accumulated": {
        "devices": ("CPU:0", "CPU:1"),
        "gradient_accumulation_steps": 2,
    },
}


@pytest.mark.parametrize("name", REPLICAS)
def test_networks_come_to_the_same(tmp_path, name):
    config = ge.RunConfig(
        model_dir=str(tmp_path),
        log_step_count_steps=None,
        save_summary_steps=None,
        **REPLICAS[name],
    )
    names = tuple(tabled_training.OPTIONS)
    tabled_training.check(tabled_training.train(config, names))


LARGE = inputs.Schema(
    features={
        "user": {"kind": "id", "size": 1009, "default": 0, "embedding": 3},
        "seen": {"kind": "bag of ids", "shared_with": "user"},
        "age": {"kind": "number", "default": 0.0},
    }
)


def test_a_step_makes_no_whole_table():
    """Neither as a value that is read nor as a gradient, in both parts."""
    features = {
        "user": tf.constant([1, 2, 1], tf.int32),
        "seen": tf.ragged.constant([[1, 5], [], [5]], dtype=tf.int32),
        "age": tf.constant([0.1, 0.2, 0.3]),
    }
    given = [[(features, tf.constant([0, 1, 1]))]] * 2
    trainer = Trainer(
        functools.partial(models.table_model, head=models.BinaryClassHead()),
        replicas=2,
        features=tf.nest.map_structure(tf.type_spec_from_value, features),
        labels=tf.TensorSpec([None], tf.int32),
        network=lambda: models.wide_and_deep(LARGE, None, hidden=[2]),
        optimizer=lambda: keras.optimizers.Adagrad(0.1),
        wide_optimizer=lambda: keras.optimizers.Ftrl(0.1),
    )
    tables = {tuple(v.shape) for v in trainer["network"].variables if v.shape[0] > 1000}
    assert tables == {(2 * 1009, 1), (1009, 3)}
    graph = trainer.graph_of(given).as_graph_def(add_shapes=True)
    nodes = list(graph_defs.nodes(graph))
    made = {
        node.op: [dimension.size for dimension in shape.dim]
        for node in nodes
        for shape in node.attr["_output_shapes"].list.shape
        if tuple(dimension.size for dimension in shape.dim) in tables
    }
    assert not made
    assert sum(node.op == "ResourceGather" for node in nodes) > 2
