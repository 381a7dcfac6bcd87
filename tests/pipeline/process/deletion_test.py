"""Iterators that are deleted: by a thread, and where the interpreter ends."""

import gc
import queue
import subprocess
import sys
import threading
import time
import weakref

import pytest
import tensorflow as tf

from pipeline.feed import iterators
from pipeline.process import deletion
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


class SlowToEnd(list):
    """What a search for garbage ends between a finalizer and what the latter is of."""

    def __del__(self):
        time.sleep(0.5)


@pytest.mark.parametrize("in_a_cycle", [False, True])
@pytest.mark.parametrize("change", [lambda dataset: dataset, distributed])
def test_nobody_waits_for_a_deletion(change, in_a_cycle):
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
    iterator = iterators.over(change(dataset))
    next(iterator)
    left = weakref.ref(iterator)
    kept = SlowToEnd([iterator])
    if in_a_cycle:
        kept.append(kept)
    del iterator, kept
    gc.collect()
    assert left() is None
    released.set()
    assert in_time.get(timeout=60)


def test_nobody_waits_where_no_thread_starts_any_more(monkeypatch):
    """Python 3.12 refuses threads once the interpreter ends."""
    iterators.over(tf.data.Dataset.range(3))
    let_go, deleted = queue.SimpleQueue(), threading.Event()

    class Held(list):
        def __del__(self):
            deleted.set()

    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    deleting = threading.Thread(target=deletion._delete, daemon=True)
    monkeypatch.setattr(deletion, "_LET_GO", let_go)
    deleting.start()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    let_go.put(Held())
    assert deleted.wait(60)
    assert deleting.is_alive()
