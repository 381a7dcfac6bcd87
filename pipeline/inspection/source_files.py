"""The files that a dataset reads, by the names in its graph; no file is opened.

A pipeline that divides files does so by operations on their names, such as `shard` and
`take`, before it reads them. So the names are taken behind these operations.
"""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from pipeline.feed import fingerprint
from pipeline.inspection import examples

# Operations that yield the names of their input, some of them, or in another order.
_OF_NAMES = {"shard", "skip", "take", "shuffle", "options", "prefetch", "filter"}
_MOST = 100_000


def of(dataset: tf.data.Dataset) -> list[str] | None:
    """Returns the names of the files in order; None where no file is known.

    An empty list says that there are files, and that this pipeline reads none.

    Args:
      dataset: dataset that an input_fn returned.
    """
    nodes = _nodes(dataset)
    if not nodes:
        return None
    return sorted({name for node in nodes for name in _names(node)})


def _nodes(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the datasets of files' names, the nearest to the reading of the files."""
    kind, inputs, values = fingerprint.parts_of(dataset)
    below = [_nodes(each) for each in inputs]
    found = [node for nodes in below for node in nodes]
    if not inputs:
        return [dataset] if _holds_names(values) and _is_text(dataset) else []
    # What yields names itself stands in the place of its input.
    if kind in _OF_NAMES and found == inputs:
        return [dataset]
    return found


def _holds_names(values: dict[str, list[Any]]) -> bool:
    tensors = [
        leaf
        for leaves in values.values()
        for leaf in leaves
        if isinstance(leaf, tf.Tensor) and leaf.dtype == tf.string
    ]
    return any(fingerprint.are_files(tf.reshape(each, [-1])) for each in tensors)


def _is_text(dataset: tf.data.Dataset) -> bool:
    """Whether its elements are names, alone or before something else."""
    first = tf.nest.flatten(dataset.element_spec)[0]
    return first.dtype == tf.string


def _names(dataset: tf.data.Dataset) -> Iterator[str]:
    for element in itertools.islice(examples.quick(dataset), _MOST):
        first = tf.nest.flatten(element)[0]
        yield from (os.fsdecode(name) for name in tf.reshape(first, [-1]).numpy())
