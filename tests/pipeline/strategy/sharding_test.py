"""Tables in shards, made by hand here: named, saved and restored as one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.checkpoints import checkpoint, holding
from pipeline.strategy import modules, sharding, variables
from pipeline.warm_start.warm_start import warm_start

ROWS, WIDTH = 7, 3
_partitioners = tf.distribute.experimental.partitioners


class Table(tf.Module):
    """A table of `ROWS` in shards, as a strategy's partitioner makes it, or whole."""

    def __init__(self, num_shards, value=0.0):
        super().__init__()
        value = np.broadcast_to(value, [ROWS, WIDTH]).astype(np.float32)
        parts = np.array_split(value, num_shards)
        shards = [
            tf.Variable(part, name=f"t{num_shards}/part_{i}")
            for i, part in enumerate(parts)
        ]
        whole = num_shards == 1
        self.table = shards[0] if whole else sharding.ShardedVariable(shards)


def state_of(num_shards, value=0.0):
    """The state of a table and its trained optimizer, by module."""
    table = Table(num_shards, value)
    trained = [*table.trainable_variables, tf.Variable([1.0, 2.0], name="other")]
    optimizer = keras.optimizers.Adam()
    optimizer.build(trained)
    references = {"table/table": table.table, "other": trained[-1]}
    named = variables.named_state(optimizer, references)
    return {
        "table": variables.named_state(table),
        "other": {"": trained[-1]},
        "optimizer": {name: variables.raw(v) for name, v in named.items()},
    }


class Cuts:
    """A strategy that cuts in two."""

    partitioner = staticmethod(_partitioners.FixedShardsPartitioner(2))


def test_only_a_strategy_that_cuts_is_asked():
    assert sharding.rows_of_shards((5, 3), "float32") == [5]
    with sharding.cut_by(Cuts()):
        assert sharding.rows_of_shards((5, 3), "float32") == [3, 2]
    assert sharding.rows_of_shards((5, 3), "float32") == [5]


def test_names_do_not_tell_how_many_shards_there_are():
    names = {module: list(named) for module, named in state_of(1).items()}
    assert names["optimizer"][2:] == [
        "momentum/table/table",
        "velocity/table/table",
        "momentum/other",
        "velocity/other",
    ]
    assert {module: list(named) for module, named in state_of(3).items()} == names


@pytest.mark.parametrize("saved, restored", [(3, 1), (1, 3), (3, 2)])
def test_any_number_of_shards_restores_a_table_and_its_slots(tmp_path, saved, restored):
    rng = np.random.default_rng(0)
    value = rng.normal(size=[ROWS, WIDTH])
    slot = rng.normal(size=[ROWS, WIDTH]).astype(np.float32)
    before, after = state_of(saved, value), state_of(restored)
    before["optimizer"]["velocity/table/table"].assign(slot)
    path = checkpoint.Saver(str(tmp_path), before).save(5)
    assert checkpoint.read_names(path)["table/table"] == [ROWS, WIDTH]
    checkpoint.restore(after, path)
    table, velocity = (
        after["table"]["table"].numpy(),
        after["optimizer"]["velocity/table/table"].numpy(),
    )
    np.testing.assert_array_equal(table, value.astype(np.float32))
    np.testing.assert_array_equal(velocity, slot)


def test_a_table_of_another_size_is_refused(tmp_path):
    other = {"table": {"table": tf.Variable(tf.zeros([ROWS + 1, WIDTH]))}}
    path = checkpoint.Saver(str(tmp_path), other).save(1)
    with pytest.raises(checkpoint.CheckpointMismatchError, match="of another shape"):
        checkpoint.restore({"table": state_of(2)["table"]}, path)


def test_a_warm_start_takes_over_a_table(tmp_path):
    saved = state_of(1, 4.0) | {"driver": {"global_step": tf.Variable(1)}}
    path = checkpoint.Saver(str(tmp_path), saved).save(1)
    state = state_of(2)
    warm_start(state, path)
    assert state["table"]["table"].numpy().min() == 4.0


def test_a_copy_in_memory_fits_any_number_of_shards():
    rows = np.arange(ROWS * WIDTH).reshape(ROWS, WIDTH)

    def held(num_shards, value=0.0):
        factories = {"table": lambda: Table(num_shards, value)}
        return modules.Modules(factories, tf.distribute.get_strategy())

    copy = holding.Snapshot(held(3, rows))
    for num_shards in (1, 2, 3):
        other = held(num_shards)
        copy.put(other)
        shards = sharding.shards_of(other.by_name["table"].table)
        got = np.concatenate([shard.numpy() for shard in shards])
        np.testing.assert_array_equal(got, rows)
    assert copy.step == 0
