"""Layers of tables with known values, whole or in shards, and what a loss gives."""

import types

import numpy as np
import tensorflow as tf

from models import Embedding
from pipeline.strategy import sharding


def table(rows=10, dims=4):
    return np.random.default_rng(0).normal(size=(rows, dims)).astype(np.float32)


def made(*args, value=None, **options):
    """A built layer, of the same values each time."""
    layer = Embedding(*(args or (10, 4)), **options)
    layer.build()
    layer.embeddings.assign(
        table(layer.num_rows, layer.output_dim) if value is None else value
    )
    return layer


def cut(layer, shards=3):
    """Builds a layer as on so many parameter servers."""
    strategy = types.SimpleNamespace(partitioner=lambda shape, dtype: [shards, 1])
    with sharding.cut_by(strategy):
        layer.build()
    return layer


def gradient(compute, variable):
    """What a loss of the vectors gives for a table, dense; and whether it was rows."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(compute()))
    rows = tape.gradient(loss, variable)
    return tf.convert_to_tensor(rows).numpy(), isinstance(rows, tf.IndexedSlices)
