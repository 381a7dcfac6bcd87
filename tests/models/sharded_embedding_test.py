"""Tables in shards: one table to all who look, save and load."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import Embedding, ShardedEmbedding
from models.shard_initializers import _reseeded
from pipeline.strategy import variables
from tests.embedding_tables import cut, gradient, made, table


def test_shards_are_one_table():
    whole = made(11, 4, combiner="mean")
    parts = cut(Embedding(11, 4, combiner="mean"))
    store = {}
    whole.save_own_variables(store)
    parts.load_own_variables(store)
    assert [v.shape for v in parts.trainable_variables] == [[4, 4], [4, 4], [3, 4]]
    np.testing.assert_array_equal(parts.embeddings, table(11))
    ids = tf.ragged.constant([[3, 4, 10], [], [10, 7]])
    np.testing.assert_allclose(parts(ids), whole(ids))
    slopes = [
        gradient(lambda: parts(ids), v.value)[0] for v in parts.trainable_variables
    ]
    expected, _ = gradient(lambda: whole(ids), whole.embeddings.value)
    np.testing.assert_allclose(np.concatenate(slopes), expected, rtol=1e-6)
    again = {}
    parts.save_own_variables(again)
    np.testing.assert_array_equal(again["0"], store["0"])
    with pytest.raises(ValueError, match="that of the file has"):
        made().load_own_variables(store)


def test_shards_are_saved_under_the_name_of_the_table():
    model = keras.Sequential([cut(Embedding(11, 4)), keras.layers.Dense(2)])
    model(tf.constant([[3, 1, 3], [7, 0, 0]]))
    optimizer = keras.optimizers.Adagrad()
    optimizer.build(model.trainable_variables)
    named = variables.named_state(model)
    assert list(named) == ["embedding/embeddings", "dense/kernel", "dense/bias"]
    assert named["embedding/embeddings"].shape == [11, 4]
    slots = variables.named_state(optimizer, named)
    assert slots["accumulator/embedding/embeddings"].shape == [11, 4]
    # The names in checkpoints that it has always had.
    sharded = ShardedEmbedding(11, 4)
    assert list(variables.named_state(sharded)) == ["table"]
    assert isinstance(sharded.table, tf.Variable)


@pytest.mark.parametrize("initializer", ["glorot_uniform", "orthogonal"])
def test_shards_begin_as_the_whole_table_would(initializer):
    options = {"embeddings_initializer": initializer}
    given = keras.initializers.get(options.pop("embeddings_initializer"))
    parts = cut(Embedding(11, 4, given))
    np.testing.assert_array_equal(parts.embeddings, given([11, 4]))


def test_what_looks_at_the_whole_table_keeps_it_whole():
    for option in ("embeddings_regularizer", "embeddings_constraint"):
        layer = cut(
            Embedding(
                11,
                4,
                **{option: {"embeddings_regularizer": "l2"}.get(option, "unit_norm")},
            )
        )
        assert layer.embeddings.shape == [11, 4]


def test_shards_begin_with_values_of_their_own():
    initializer = keras.initializers.RandomNormal(seed=3)
    first, second = (_reseeded(initializer, offset)([4, 2]) for offset in (0, 4))
    assert not np.allclose(first, second)
    again = _reseeded(keras.initializers.RandomNormal(seed=3), 4)([4, 2])
    np.testing.assert_array_equal(second, again)
    values = [part.numpy() for part in cut(Embedding(8, 2)).trainable_variables]
    assert not np.allclose(values[0], values[1])
