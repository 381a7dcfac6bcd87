# SPDX-License-Identifier: Apache-2.0
"""Compares the training input with that of an earlier run, without Python code.

The sources of a dataset are what no other dataset yields: ranges, arrays, names of files. If
they are equal, the data are the same. The fingerprint of the whole pipeline is that of its graph.
It counts only where saved iterators are exact: a graph that calls Python does not show all.
TensorFlow's own fingerprint is random for a pipeline of two functions or more.
"""

import functools
import hashlib
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ..private import parts_of

# Dataset operations whose saved iterators continue exactly.
_EXACT = {
    "Batch", "Concatenate", "Filter", "FlatMap", "Interleave", "Map", "Options", "PaddedBatch",
    "ParallelBatch", "ParallelInterleave", "ParallelMap", "Prefetch", "Range", "Repeat", "Shard",
    "Shuffle", "Skip", "TFRecord", "Take", "Tensor", "TensorSlice", "Zip",
}  # fmt: skip
# Parts of names of operations whose state is not saved, or not exactly.
_INEXACT = ("Cache", "PyFunc", "Random", "Repeat", "Shuffle")
_MAX_BYTES = 64 << 20  # TensorFlow takes about 10 s for 1 GB, and cannot copy 2 GB.
# Numbers that float64, which processes exchange, can hold.
_MASK = 2**52 - 1


def why_inexact(dataset: tf.data.Dataset) -> str:
    """Returns why a saved iterator may not continue as the original; '' if it does.

    A shuffle that has ended is not saved, so later passes of a `repeat` would have another
    order, unless the repeat is directly behind the shuffle: TensorFlow fuses these two.
    """
    for each in _datasets(dataset):
        if _kind(each) not in _EXACT:
            return f"the place in {type(each).__name__} is not saved exactly"
        if _kind(each) == "Repeat":
            [below] = parts_of(each).inputs
            starts = parts_of(below).inputs if _is_shuffle(below) else [below]
            if any(_is_shuffle(d) for start in starts for d in _datasets(start)):
                return "shuffle() is not directly before repeat(): use shuffle(...).repeat()"
        for function in parts_of(each).functions:
            if any(value.dtype in (tf.variant, tf.resource) for value in function.captured_inputs):
                return "a function of the dataset uses another dataset, a table or a variable"
            if operation := _operation_with_state(function.graph):
                return f"a function of the dataset has a state: {operation}"
    return ""


def of_sources(dataset: tf.data.Dataset) -> int:
    """Returns a number that is equal for the same data, whatever is done with them."""
    numbers = []
    for each in _datasets(dataset):
        if not parts_of(each).inputs:
            numbers.append(_of_source(each))
        numbers += [
            _of_graph(value)
            for function in parts_of(each).functions
            for value in function.captured_inputs
            if value.dtype == tf.variant
        ]
    return zlib.crc32(repr(sorted(numbers)).encode())


def of_pipeline(dataset: tf.data.Dataset) -> int:
    """Returns a number that is equal for the same data and operations; -1: cannot be compared."""
    sources = [each for each in _datasets(dataset) if not parts_of(each).inputs]
    if any(map(_is_large, sources)) or why_inexact(dataset):
        return -1
    return _of_graph(tf.data.experimental.to_variant(dataset))


def kinds_of(dataset: tf.data.Dataset) -> set[str]:
    """Returns the kinds of the operations of a dataset: 'Batch', 'Take'."""
    return {_kind(each) for each in _datasets(dataset)}


def files_of(dataset: tf.data.Dataset) -> list[str]:
    """Returns the existing files among the texts in a dataset's graph; none for large arrays."""
    if any(map(_is_large, _datasets(dataset))):
        return []
    graph = _graph_of(tf.data.experimental.to_variant(dataset))
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    tensors = [node.attr["value"].tensor for node in nodes if node.op == "Const"]
    is_text = tf.string.as_datatype_enum
    texts = {t for each in tensors if each.dtype == is_text for t in _texts(each)}
    return sorted(t for t in texts if t and tf.io.gfile.exists(t) and not tf.io.gfile.isdir(t))


def nodes_of_functions(dataset: tf.data.Dataset) -> Iterator[Any]:
    """Yields the operations in the functions of a dataset, as NodeDefs; arrays are not copied."""
    for each in _datasets(dataset):
        for function in parts_of(each).functions:
            graph = function.graph.as_graph_def()
            yield from graph.node
            for nested in graph.library.function:
                yield from nested.node_def


def out_of_order(dataset: tf.data.Dataset) -> str:
    """Returns an operation with `deterministic=False`; '' for none."""
    for each in _datasets(dataset):
        if parts_of(each).is_unordered:
            return _kind(each)
    nodes = nodes_of_functions(dataset)
    return next((node.op for node in nodes if node.attr["deterministic"].s == b"false"), "")


def _graph_of(variant: tf.Tensor) -> Any:
    # 1: operations with a state, such as generators, are left in the graph.
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=1)
    return tf.compat.v1.GraphDef.FromString(graph.numpy())


def _of_graph(variant: tf.Tensor) -> int:
    """Returns a hash of a dataset's graph, in which each function is named by its content."""
    graph = _graph_of(variant)
    functions = {each.signature.name: each for each in graph.library.function}

    @functools.cache
    def of_function(name: str) -> str:
        each = functions[name]
        # Names of arguments contain those of functions.
        inputs = {arg.name: i for i, arg in enumerate(each.signature.input_arg)}
        types = [arg.type for arg in each.signature.input_arg]
        outputs = [each.ret[arg.name] for arg in each.signature.output_arg]
        outputs = [inputs.get(name, name) for name in outputs]
        return _hash(types, outputs, sorted(of_node(node, inputs) for node in each.node_def))

    def of_node(node: Any, arguments: Mapping[str, int]) -> str:
        # Other attributes have numbers that count the operations of the process.
        names = [n for n in sorted(node.attr) if n != "metadata" and not n.startswith("_")]
        if node.op == "Const" and node.attr["value"].tensor.resource_handle_val:
            names.remove("value")  # So do names of resources.
        inputs = [arguments.get(name, name) for name in node.input]
        return _hash(node.name, node.op, inputs, [(n, of_attr(node.attr[n])) for n in names])

    def of_attr(attr: Any) -> str:
        called = [attr.func.name] if attr.HasField("func") else [f.name for f in attr.list.func]
        if called:
            return _hash([of_function(n) if n in functions else n for n in called])
        return hashlib.blake2b(attr.SerializeToString(deterministic=True)).hexdigest()

    return int(_hash(sorted(of_node(node, {}) for node in graph.node)), 16) & _MASK


def _hash(*parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _texts(tensor: Any) -> list[str]:
    # `tf.make_ndarray` cannot read several texts.
    array = tf.io.parse_tensor(tensor.SerializeToString(), tf.string).numpy()
    return [os.fsdecode(text) for text in np.ravel(array).tolist()]


def _operation_with_state(graph: tf.Graph) -> str:
    """Returns an operation whose state is not saved exactly, also of nested functions; or ''."""
    for operation in graph.get_operations():  # The calls of functions with a state have one.
        exact = operation.type == "Assert" or "Dataset" in operation.type
        if operation.op_def.is_stateful and not exact:
            return operation.type
    functions = graph.as_graph_def().library.function
    kinds = {node.op for function in functions for node in function.node_def}
    kinds |= {operation.type for operation in graph.get_operations()}
    kinds = {kind for kind in kinds if not kind.startswith("Stateless")}
    return next((kind for kind in sorted(kinds) if any(part in kind for part in _INEXACT)), "")


def _datasets(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    yield dataset
    for each in parts_of(dataset).inputs:
        yield from _datasets(each)


def _kind(dataset: tf.data.Dataset) -> str:
    return type(dataset).__name__.strip("_").removesuffix("V2").removesuffix("Dataset")


def _is_shuffle(dataset: tf.data.Dataset) -> bool:
    return _kind(dataset) == "Shuffle"


def _is_large(dataset: tf.data.Dataset) -> bool:
    return sum(each.shape.num_elements() * each.dtype.size for each in parts_of(dataset).arrays) > (
        _MAX_BYTES
    )


def _of_source(dataset: tf.data.Dataset) -> int:
    if not _is_large(dataset):
        return _of_variant(tf.data.experimental.to_variant(dataset))
    edges = [
        (each.shape, each.dtype, each[:8].numpy(), each[-8:].numpy())
        for each in parts_of(dataset).arrays
    ]
    return zlib.crc32(repr([(*e[:2], e[2].tobytes(), e[3].tobytes()) for e in edges]).encode())


def _of_variant(variant: tf.Tensor) -> int:
    try:
        return int(tf.raw_ops.DatasetFingerprint(input_dataset=variant))
    except tf.errors.OpError:  # Its state is not in the graph.
        return 0
