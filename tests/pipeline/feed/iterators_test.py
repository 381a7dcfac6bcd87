"""What is read of a dataset's graph, and how often."""

import pytest
import tensorflow as tf

from pipeline.feed import iterators


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
