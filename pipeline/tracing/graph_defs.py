"""Reads graphs in the form in which TensorFlow writes them: as a GraphDef."""

import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def nodes(definition: tf.compat.v1.GraphDef) -> Iterator[Any]:
    """Yields all nodes of a graph, and of the functions that it calls."""
    bodies = (each.node_def for each in definition.library.function)
    return itertools.chain(definition.node, *bodies)


def calls_python(definition: tf.compat.v1.GraphDef) -> bool:
    """Whether some node calls a function of the Python process that made the graph."""
    return any(node.op in _PYTHON_OPS for node in nodes(definition))


def name_in(text: str) -> str:
    """Returns the name of the node that another one has as an input.

    Args:
      text: input as a NodeDef lists it: "name", "name:0", "name:output:0" or "^name".
    """
    return text.removeprefix("^").partition(":")[0]
