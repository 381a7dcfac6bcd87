"""What an input is made of: the same in each process, and what differs in words."""

import functools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from pipeline.feed import code_digest, fingerprint
from tests.clusters import ROOT

ROWS = np.arange(40, dtype=np.float32)
Data = tf.data.Dataset


def counted(stop):
    def numbers():
        yield from range(stop)

    return Data.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64))


def by_python(function):
    return Data.range(4).map(lambda i: tf.numpy_function(function, [i], tf.int64))


def times(factor, row):
    return row * factor


def gathered(values):
    return Data.range(4).map(lambda i: tf.gather(values, i)).repeat()


def looked_up(data):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([1])), 0
    )
    return data.map(table.lookup)


def ragged(rows):
    return Data.from_tensor_slices(tf.ragged.constant(rows)).batch(2)


def sparse(rows):
    return Data.from_tensor_slices(tf.ragged.constant(rows).to_sparse()).batch(2)


def inputs():
    """Datasets of all kinds, by name."""
    rows = Data.from_tensor_slices({"a": ROWS, "b": ROWS})
    words = Data.from_tensor_slices(["a", "b"])
    return {
        "map": rows.map(lambda e: e["a"] * 2).shuffle(10).batch(4).prefetch(2),
        "random": Data.range(9).map(lambda i: tf.random.uniform([]), 2),
        "captured": gathered(tf.constant(np.arange(1000.0))),
        "generator": counted(3).batch(2),
        "python": by_python(lambda i: i + 1),
        "table": looked_up(words),
        "files": Data.list_files(f"{ROOT}/docs/*.md").interleave(
            lambda name: tf.data.TextLineDataset(name).shuffle(3)
        ),
        "ragged": ragged([[1, 2], [], [3]]),
        "sparse": sparse([[1, 2], [], [3]]),
        "sampled": Data.sample_from_datasets([Data.range(3), Data.range(4)]),
        "shard": words.cache().repeat().shard(2, 1),
        "buckets": Data.range(5)
        .map(lambda i: tf.range(i))
        .bucket_by_sequence_length(tf.size, [2], [2, 2])
        .take(3),
    }


def described():
    return {
        name: fingerprint.of(data).as_json()["operations"]
        for name, data in inputs().items()
    }


# After as many other operations, and under other seeds of hashes.
ELSEWHERE = """
import json
import logging
import tensorflow as tf
from absl import flags
tf.random.set_seed(5)
for _ in range(3):
    tf.data.Dataset.range(3).map(lambda i: i + tf.random.uniform([], 0, 9, tf.int64))
from tests.pipeline.feed import fingerprint_test
print(json.dumps(fingerprint_test.described()))
"""


def test_another_process_describes_the_same_alike():
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    here = json.loads(json.dumps(described()))
    assert json.loads(done.stdout) == here


@pytest.mark.parametrize("name", list(inputs()))
def test_the_same_is_the_same(name):
    before, now = (fingerprint.of(inputs()[name]) for _ in range(2))
    assert fingerprint.compare(before, now) is None
    assert before.digest == now.digest
    again = fingerprint.Fingerprint.from_json(json.loads(json.dumps(before.as_json())))
    assert fingerprint.compare(again, now) is None


def sliced(values):
    return Data.from_tensor_slices(np.asarray(values))


def padded(shapes):
    rows = Data.from_tensors({"a": np.zeros(3), "b": np.zeros(3)})
    return rows.padded_batch(2, shapes)


CHANGES = {
    "range": (Data.range(20), Data.range(100, 120), True, "range: start 0 -> 100"),
    "values": (
        sliced([1, 2]),
        sliced([1, 3]),
        True,
        "tensor slice: int64 [2] of other content",
    ),
    **{
        kind.__name__: (
            kind([[1, 2], [], [3]]),
            kind([[1, 2], [], [4]]),
            True,
            "of other content",
        )
        for kind in (ragged, sparse)
    },
    "number": (sliced([1]), sliced([1, 2]), True, "int64 [1] -> [2]"),
    "captured": (
        gathered(tf.range(99)),
        gathered(tf.range(1, 100)),
        True,
        "map: int32 [99] of other content",
    ),
    "generator": (counted(3), counted(4), True, "generator"),
    "shard": (Data.range(9).shard(2, 0), Data.range(9).shard(2, 1), True, "index 0 ->"),
    "another_source": (sliced([1]), Data.range(1), True, "tensor slice -> range"),
    "function": (
        sliced(ROWS).map(lambda x: x * 2),
        sliced(ROWS).map(lambda x: x * 3),
        False,
        "another function: map_lambda",
    ),
    "closed_over": (
        sliced(ROWS).map(functools.partial(times, 2.0)),
        sliced(ROWS).map(functools.partial(times, 3.0)),
        False,
        "another function",
    ),
    "python": (
        by_python(lambda i: i + 1),
        by_python(lambda i: i + 2),
        False,
        "another function",
    ),
    "batch": (
        Data.range(8).batch(2),
        Data.range(8).batch(4),
        False,
        "batch: batch_size 2 -> 4",
    ),
    "one_of_several_shapes": (
        padded({"a": [10], "b": [20]}),
        padded({"a": [12], "b": [20]}),
        False,
        "padded batch: padded_shapes",
    ),
    "one_of_several_numbers": (
        Data.from_tensors((1, 2)),
        Data.from_tensors((5, 2)),
        True,
        "tensor: ",
    ),
    "added": (
        Data.range(8).batch(2),
        Data.range(8).shuffle(8).batch(2),
        False,
        "shuffle added",
    ),
    "removed": (Data.range(8).repeat(), Data.range(8), False, "no repeat"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_is_said(name):
    before, now, in_data, words = CHANGES[name]
    change = fingerprint.compare(fingerprint.of(before), fingerprint.of(now))
    assert words in change.words
    assert change.in_data is in_data


def test_seeds_are_not_compared():
    seeded = [fingerprint.of(Data.range(8).shuffle(8, seed)) for seed in (1, 2, None)]
    assert seeded[0] == seeded[1] == seeded[2]


@pytest.mark.parametrize("name", ["function", "generator"])
def test_functions_of_other_versions_are_not_compared(name):
    before, now = map(fingerprint.of, CHANGES[name][:2])
    before = fingerprint.Fingerprint(before.operations, "tensorflow 2.20, python 3.11")
    assert fingerprint.compare(before, now) is None


def test_files_are_compared_by_path_and_size(tmp_path, monkeypatch):
    first = tmp_path / "a"
    first.write_text("one")

    def read(name):
        return fingerprint.of(tf.data.TextLineDataset([str(name)]))

    before = read(first)
    monkeypatch.chdir(tmp_path)
    assert fingerprint.compare(before, read("a")) is None
    first.write_text("longer")
    change = fingerprint.compare(before, read("a"))
    assert change.in_data
    assert "files a, ... (1, 3 bytes) -> files a, ... (1, 6 bytes)" in change.words


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (Data.range(8).batch(2).prefetch(1), 2),
        (Data.range(8).padded_batch(3), 3),
        (Data.range(8), None),
    ],
)
def test_rows_in_a_batch(data, rows):
    assert fingerprint.of(data).rows == rows


def test_a_large_array_is_sampled_all_over():
    large = np.zeros(20 << 20, np.uint8)
    before = code_digest.of_array(large)
    assert code_digest.of_array(tf.constant(large)) == before
    large[-1] = 1
    assert code_digest.of_array(large) != before
    large[-1], large[10 << 20 : 11 << 20] = 0, 1
    assert code_digest.of_array(large) != before


def helper(row):
    return row + 1


def test_a_function_is_what_it_names():
    def named(row):
        return [helper(each) for each in row]

    before = code_digest.of_function(named)
    assert code_digest.of_function(named) == before
    original = helper.__code__
    try:
        helper.__code__ = (lambda row: row + 2).__code__
        assert code_digest.of_function(named) != before
    finally:
        helper.__code__ = original


def test_a_function_is_the_objects_that_it_sees():
    class Reader:
        def __init__(self, start):
            self.start = start
            self.me = self

        def read(self, row):
            return row + self.start

    one, same, other = (code_digest.of_function(Reader(n).read) for n in (1, 1, 2))
    assert one == same != other
