"""How much memory saves and restores take besides the values."""

import tracemalloc

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.checkpoints import checkpoint, checkpoint_reader
from pipeline.driver import runtime
from tests import fakes

CPU = "CPU:0"
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
    """What `work` returns; the most bytes it took in TensorFlow and in arrays."""
    memory = tf.config.experimental
    before = memory.get_memory_info(CPU)["current"]
    memory.reset_memory_stats(CPU)
    tracemalloc.start()
    try:
        result = work()
        _, arrays = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, memory.get_memory_info(CPU)["peak"] - before + arrays


def test_large_tables_are_saved_from_where_they_are(tmp_path):
    state = tables()
    # After an update of rows TensorFlow copies a table at each ordinary read.
    for variable in state["net"].values():
        row = tf.IndexedSlices(tf.ones([1, 32]), tf.constant([3]))
        variable.scatter_add(row)
    saver = checkpoint.Saver(str(tmp_path), state)
    _, taken = taken_by(lambda: saver.save(1))
    assert taken < SIZE
    # What one update more costs: a copy, if the save still held the values.
    _, taken = taken_by(lambda: state["net"]["t0"].scatter_add(row))
    assert taken < SIZE


def test_large_tables_are_restored_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_reader, "_LARGE_BYTES", SIZE)
    path = checkpoint.Saver(str(tmp_path), tables(1.0)).save(1)
    other = tables()
    _, taken = taken_by(lambda: checkpoint.restore(other, path))
    assert taken < 2 * SIZE
    for i in range(TABLES):
        assert np.unique(other["net"][f"t{i}"]).tolist() == [1.0 + i]


@pytest.mark.parametrize("large", [0, SIZE])
def test_a_model_of_another_dtype(large, tmp_path, monkeypatch):
    """It takes over the values, be they large or not."""
    monkeypatch.setattr(checkpoint_reader, "_LARGE_BYTES", large)
    saved = {"net": {"a": tf.Variable([0.5, 1.5])}}
    path = checkpoint.Saver(str(tmp_path), saved).save(1)
    other = {"net": {"a": tf.Variable([0.0, 0.0], dtype=tf.float16)}}
    checkpoint.restore(other, path)
    assert other["net"]["a"].numpy().tolist() == [0.5, 1.5]


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
