# SPDX-License-Identifier: Apache-2.0
"""Batches of replicas: their rows, and the parts of a global batch."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from ..errors import UserTypeError


class Batch(NamedTuple):
    """One replica's part of a step.

    Attributes:
      features: nest of tensors `[batch, ...]`.
      labels: nest of tensors `[batch, ...]`, or None.
      share: float32 scalar: 0 if the batch is a placeholder that must not count, else 1;
        None if every batch counts.
    """

    features: Any
    labels: Any
    share: tf.Tensor | None = None


def as_pair(element: Any) -> tuple[Any, Any]:
    """Returns features and labels of an element, or their specs; other tuples are features."""
    if type(element) is not tuple:  # A namedtuple is a nest of features.
        return element, None
    return element if len(element) == 2 else (element[0], None)


def components(nest: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a nest with their names, such as `features['a'][0]`."""
    if isinstance(nest, Mapping):
        for key in nest:
            yield from components(nest[key], f"{name}[{key!r}]")
    elif isinstance(nest, (list, tuple)):
        for index, each in enumerate(nest):
            yield from components(each, f"{name}[{index}]")
    elif nest is not None:
        yield name, nest


def components_of(element: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of features and labels with their names."""
    features, labels = as_pair(element)
    return [*components(features, "features"), *components(labels, "labels")]


def num_rows(nest: Any) -> int | tf.Tensor:
    """Returns the number of examples; a Python int if a static shape has it."""
    leaves = [leaf for leaf in tf.nest.flatten(nest) if leaf is not None and leaf.shape.rank != 0]
    for leaf in leaves:
        if leaf.shape[0] is not None:
            return leaf.shape[0]
    return _num_rows(leaves[0]) if leaves else 1


def check_rows(element_spec: Any, name: str, *, splits: bool = False) -> None:
    """Refuses batches whose components have other numbers of rows, as far as shapes have them.

    A scalar belongs to the whole batch.

    Args:
      element_spec: type specs of a batch.
      name: name of the input_fn in the message.
      splits: whether batches are split between replicas, so that scalars are refused, too.

    Raises:
      UserTypeError: a component has no row for each example.
    """
    rows = None
    for place, each in components_of(element_spec):
        shape = getattr(each, "shape", None)
        if shape is None or (shape.rank == 0 and not splits):
            continue
        if shape.rank != 0 and rows is None:
            rows = shape[0]
        if shape.rank == 0 or (shape[0] is not None and shape[0] != rows):
            why, remedy = (
                "by which losses are weighted",
                "Call dataset.batch(32) if it yields single examples. Repeat a value of the whole "
                "batch by tf.repeat, or make it a constant of the model_fn.",
            )
            if splits:
                why, remedy = (
                    "to split batches between replicas",
                    "Repeat its value by tf.repeat, or take input_context to yield the batches of "
                    "single replicas.",
                )
            raise UserTypeError(
                f"{name} yields {place} of shape {tuple(shape)}: expected a row for each example, "
                f"{why}. {remedy}"
            )


def relaxed(spec: Any) -> Any:
    """Returns the spec of a part of a batch, whose number of rows is not known."""
    if not isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        return spec
    if spec.shape.rank is None:
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def part_of(element: Any, index: int, number: int) -> tuple[Any, tf.Tensor | None]:
    """Returns one of `number` parts of a global batch, which differ by one row at most.

    Args:
      element: nest of tensors `[batch, ...]`.
      index: index of the part.
      number: number of parts.

    Returns:
      The part, and whether it has rows: a bool scalar, None for certainly. A part without rows
      is the first row instead.
    """
    rows = num_rows(element)
    start, stop = index * rows // number, (index + 1) * rows // number
    filled = None
    if not isinstance(rows, int) or rows < number:
        filled = start < stop
        start, stop = tf.where(filled, start, 0), tf.where(filled, stop, 1)
    names, leaves = zip(*components_of(element), strict=True)
    sizes = [_num_rows(leaf) for leaf in leaves]
    checks = []
    if len(leaves) > 1 and any(leaf.shape[0] is None for leaf in leaves):
        message = f"{', '.join(names)} have different numbers of rows: expected one per example"
        checks.append(tf.debugging.Assert(tf.reduce_all(tf.equal(sizes, rows)), [message, *sizes]))
    with tf.control_dependencies([check for check in checks if check is not None]):
        part = tf.nest.map_structure(
            lambda leaf: None if leaf is None else _slice(leaf, start, stop), element
        )
    return part, filled


def _num_rows(leaf: Any) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return tf.shape(leaf)[0]


def _slice(leaf: Any, start: Any, stop: Any) -> Any:
    if not isinstance(leaf, tf.SparseTensor):
        return leaf[start:stop]
    first = tf.cast(start, tf.int64)
    begin = tf.concat([[first], tf.zeros_like(leaf.dense_shape[1:])], axis=0)
    size = tf.concat([[tf.cast(stop, tf.int64) - first], leaf.dense_shape[1:]], axis=0)
    part = tf.sparse.slice(leaf, begin, size)
    part.set_shape([None, *leaf.shape[1:]])
    return part
