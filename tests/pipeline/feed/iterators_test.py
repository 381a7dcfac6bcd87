"""Iterators that are deleted: in the background, and where the interpreter ends."""

import subprocess
import sys
import threading

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


def test_a_box_is_emptied_without_waiting_for_it():
    held, released = threading.Event(), threading.Event()

    class Slow:
        def __del__(self):
            held.wait(60)
            released.set()

    box = [Slow()]
    iterators.delete_in_background(box)
    assert not released.is_set()
    held.set()
    assert released.wait(60)


def test_where_no_thread_starts_any_more_a_box_is_emptied_at_once(monkeypatch):
    """Python 3.12 refuses threads once the interpreter ends."""

    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    box = [object()]
    iterators.delete_in_background(box)
    assert box == []


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
