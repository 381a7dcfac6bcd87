"""Iterators that are deleted: by a thread, and where the interpreter ends."""

import gc
import queue
import subprocess
import sys
import threading
import weakref

import pytest
import tensorflow as tf

from pipeline.feed import iterators
from tests.clusters import ROOT

# Leaves predictions open at module level, where only the interpreter's end closes them.
LEFT_OPEN = """
import sys
import tensorflow as tf
from pipeline.feed import feed as input_lib
from pipeline.feed.dataset import Source
from pipeline.loop import predictions
from pipeline.strategy.peers import Peers

def endless():
    return tf.data.Dataset.range(8).batch(4).repeat()

feed = input_lib.make_feed(
    Source(endless, "infer"), peers=Peers(tf.distribute.get_strategy())
)
left_open = predictions.predict(lambda features: features, feed)
print(next(left_open), flush=True)
sys.exit(3)
"""


def test_a_process_ends_whose_predictions_were_left_open():
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (3, "[0 1 2 3]\n"), done.stderr
    assert "Exception ignored" not in done.stderr


def distributed(dataset):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    return strategy.distribute_datasets_from_function(lambda context: dataset)


@pytest.mark.parametrize("change", [lambda dataset: dataset, distributed])
def test_nobody_waits_for_a_deletion(change):
    """Neither who lets go of an iterator, nor a search for garbage that finds it."""
    released, in_time = threading.Event(), queue.Queue()

    def endless():
        try:
            while True:
                yield 1
        finally:
            in_time.put(released.wait(20))

    dataset = tf.data.Dataset.from_generator(
        endless, output_signature=tf.TensorSpec([], tf.int32)
    )
    for in_a_cycle in (False, True):
        iterator = iterators.over(change(dataset))
        next(iterator)
        left = weakref.ref(iterator)
        kept = [iterator]
        if in_a_cycle:
            kept.append(kept)
        del iterator, kept
        gc.collect()
        assert left() is None
    released.set()
    assert [in_time.get(timeout=60) for _ in range(2)] == [True, True]


def test_nobody_waits_where_no_thread_starts_any_more(monkeypatch):
    """Python 3.12 refuses threads once the interpreter ends."""
    iterators.over(tf.data.Dataset.range(3))
    let_go, deleted = queue.SimpleQueue(), threading.Event()

    class Held(list):
        def __del__(self):
            deleted.set()

    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    deleting = threading.Thread(target=iterators._delete, daemon=True)
    monkeypatch.setattr(iterators, "_LET_GO", let_go)
    deleting.start()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    let_go.put(Held())
    assert deleted.wait(60)
    assert deleting.is_alive()


@pytest.mark.parametrize("shared", [False, True])
def test_what_many_datasets_read_is_looked_at_once(shared):
    """Each turn would double the time: some inputs stand under two names."""
    dataset = tf.data.Dataset.range(5).shuffle(5, seed=1)
    for _ in range(40):
        other = dataset.take(1) if shared else tf.data.Dataset.range(3)
        dataset = dataset.concatenate(other)
    number = iterators._needed_at_most(dataset)
    assert number == (2**40 if shared else 1)


def test_a_graph_is_walked_once():
    dataset = tf.data.Dataset.range(5).shuffle(5, seed=1).cache()
    for _ in range(12):
        dataset = dataset.concatenate(dataset.take(1))
    graph = iterators._Graph(iterators.definition_of(dataset.repeat()))
    assert (graph.num_needed, graph.breaks_off_a_cache) == (2**12, True)
