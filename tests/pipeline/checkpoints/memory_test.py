"""How much memory saves and restores take besides the values."""

import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.checkpoints import checkpoint, checkpoint_reader
from pipeline.driver import runtime
from tests import allocated, fakes

# Of float32: 4 MiB, as TensorFlow rounds sizes up.
NUMBERS = 2**20
SIZE = 4 * NUMBERS
TABLES = 6


def tables(value=0.0):
    made = {
        f"t{i}": tf.Variable(tf.fill([NUMBERS // 32, 32], value + i))
        for i in range(TABLES)
    }
    return {"net": made}


def taken_by(work):
    """The most bytes that `work` took in TensorFlow and in arrays."""
    tracemalloc.start()
    try:
        _, tensors = allocated.by(work)
        _, arrays = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return tensors + arrays


def test_large_tables_are_saved_from_where_they_are(tmp_path):
    state = tables()
    # After an update of rows TensorFlow copies a table at each ordinary read.
    for variable in state["net"].values():
        row = tf.IndexedSlices(tf.ones([1, 32]), tf.constant([3]))
        variable.scatter_add(row)
    saver = checkpoint.Saver(str(tmp_path), state)
    taken = taken_by(lambda: saver.save(1))
    assert taken < SIZE
    # What one update more costs: a copy, if the save still held the values.
    taken = taken_by(lambda: state["net"]["t0"].scatter_add(row))
    assert taken < SIZE


@pytest.mark.parametrize(("in_place", "limit"), [(False, 2.0), (True, 0.5)])
def test_large_tables_are_restored_one_at_a_time(
    in_place, limit, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoint_reader, "_LARGE_BYTES", SIZE)
    path = checkpoint.Saver(str(tmp_path), tables(1.0)).save(1)
    other = tables()
    taken = taken_by(lambda: checkpoint.restore(other, path, in_place=in_place))
    assert taken < limit * SIZE
    for i in range(TABLES):
        assert np.unique(other["net"][f"t{i}"]).tolist() == [1.0 + i]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("large", [0, SIZE])
def test_a_model_of_another_dtype(large, in_place, tmp_path, monkeypatch):
    """It takes over the values, be they large or not."""
    monkeypatch.setattr(checkpoint_reader, "_LARGE_BYTES", large)
    saved = {"net": {"a": tf.Variable([0.5, 1.5]), "b": tf.Variable([3, 4])}}
    path = checkpoint.Saver(str(tmp_path), saved).save(1)
    zeros = {"a": tf.zeros([2], tf.float16), "b": tf.zeros([2], tf.int32)}
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        mirrored = {name: tf.Variable(value) for name, value in zeros.items()}
    for module in (
        mirrored,
        {name: tf.Variable(value) for name, value in zeros.items()},
    ):
        checkpoint.restore({"net": module}, path, in_place=in_place)
        for name, expected in (("a", [0.5, 1.5]), ("b", [3, 4])):
            for copy in getattr(module[name], "values", [module[name]]):
                assert copy.numpy().tolist() == expected


def test_values_of_each_replica_are_never_put_in_its_place(tmp_path, monkeypatch):
    """What is saved of them is their sum, which is divided when it is restored."""
    monkeypatch.setattr(checkpoint_reader, "_LARGE_BYTES", 0)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        own = tf.Variable(
            [8.0],
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    path = checkpoint.Saver(str(tmp_path), {"net": {"own": own}}).save(1)
    checkpoint.restore({"net": {"own": own}}, path, in_place=True)
    assert [copy.numpy().tolist() for copy in own.values] == [[8.0], [8.0]]


@pytest.mark.parametrize(
    ("chosen", "limit", "told", "beside"),
    [
        (True, 0, "an asynchronous save takes a copy of", True),
        (None, 0, "training waits for a save of", False),
        (False, 0, None, False),
        (None, 1, None, True),
    ],
)
def test_a_save_of_much_takes_no_copy_unless_it_is_asked_for(
    chosen, limit, told, beside, tmp_path, monkeypatch, log
):
    monkeypatch.setattr(runtime, "_MUCH_MEGABYTES", limit)
    made = []

    class Saver(checkpoint.Saver):
        def __init__(self, *args, asynchronous=False, **options):
            made.append(asynchronous)
            super().__init__(*args, asynchronous=asynchronous, **options)

    monkeypatch.setattr(checkpoint, "Saver", Saver)
    x, y = fakes.classification_data(8)
    estimator = fakes.make_estimator(
        tmp_path, async_checkpoint=chosen, optimizer=keras.optimizers.SGD
    )
    estimator.train(fakes.make_input_fn(x, y, batch_size=8), steps=1)
    assert set(made) == {beside}
    lines = [line for line in log() if "RunConfig(async_checkpoint=" in line]
    assert len(lines) == (told is not None)
    assert all(told in line for line in lines)
