"""Graphs as TensorFlow writes them down."""

import pytest
import tensorflow as tf

from pipeline.tracing import graph_defs


def definition_of(fn):
    function = tf.function(fn, autograph=False)
    return function.get_concrete_function(tf.zeros([])).graph.as_graph_def()


def test_nodes_of_branches_are_nodes_of_the_graph():
    definition = definition_of(
        lambda x: tf.cond(x > 0, lambda: tf.exp(x), lambda: tf.tanh(x))
    )
    assert {"Exp", "Tanh"} <= {node.op for node in graph_defs.nodes(definition)}
    assert not graph_defs.calls_python(definition)


def test_a_call_of_python_is_found_in_a_branch():
    def by_python(x):
        return tf.numpy_function(lambda x: x, [x], tf.float32)

    definition = definition_of(
        lambda x: tf.cond(x > 0, lambda: by_python(x), lambda: x)
    )
    assert graph_defs.calls_python(definition)


@pytest.mark.parametrize("text", ["a/b", "a/b:0", "a/b:output:0", "^a/b"])
def test_the_name_in_an_input(text):
    assert graph_defs.name_in(text) == "a/b"
