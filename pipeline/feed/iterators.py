"""Makes and skips iterators over data; tells what a saved iterator lacks.

TensorFlow saves the iterators of a pipeline that are alive. A part of the pipeline lets
go of the iterator that it reads when that comes to its end: `shuffle` does once its
buffer holds the rest of a pass; `zip`, `take` and `batch` do at the last element. What
that iterator would have handed to the next pass is lost with it: how many seeds a
`shuffle` has drawn, and what a `cache` holds. So a restored iterator yields the rest of
this pass as it should, and the next pass in another order.

TensorFlow fuses a `shuffle` with a `repeat` directly behind it. This one iterator lives
as long as the data, and so do the iterators that it reads, with their seeds.
"""

import contextlib
import functools
import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from pipeline.feed import fingerprint
from pipeline.process import deletion
from pipeline.process.refusals import Refusal
from pipeline.tracing import graph_defs

# TensorFlow's number of a policy: it neither fails nor warns where an operation has a
# state, such as a random one, for only what the dataset does is asked for here.
_IGNORE_EXTERNAL_STATE = 1
# A checkpoint is read in blocks. Each begins with the end of the one before, so that a
# key that lies across two blocks is found.
_BLOCK_BYTES = 16 << 20
_LONGEST_KEY = 64 << 10
# A state's name and keys, as TensorFlow writes them: `Iterator::Root::...@@key@@key`.
_STATE = re.compile(rb"Iterator::([^@\x00-\x1f]*)((?:@@[^@\x00-\x1f]+)+)")
# The key of the number of seeds that were drawn for the passes so far.
_DRAWS = b"@@epoch_num_random_samples"
# A cache with all that it holds, and the iterators that feed it until it is filled.
_CACHE = re.compile(rb"\w+Cache$")
_FEEDS_CACHE = re.compile(rb"\w+CacheImpl\b")
_REPEATS = re.compile(rb"ForeverRepeat|FiniteRepeat|ShuffleAndRepeat")
# Iterators of a dataset that a function made for one element have a number in their
# names. Such a dataset begins anew with each element, and so does its seed. The
# operations listed here number their inputs, too, and are left out.
_MADE = re.compile(
    rb"\b(?!ForeverRepeat|FiniteRepeat|Zip|Concatenate|DirectedInterleave)\w+\[\d+\]"
)
_RANDOM_OPS = re.compile(r"(Shuffle|ShuffleAndRepeat|Random)Dataset(V\d)?")
_REPEAT_OPS = re.compile(r"(ShuffleAnd)?RepeatDataset(V\d)?")
# The same of objects; and those that read no other dataset, and hide none.
_DRAWS_SEEDS = re.compile(r"shuffle|random")
_SOURCES = {"range", "tensor", "tensor slice", "random"}
_OWN_HANDLE = "variant_tensor_attr"
_CACHE_OPS = re.compile(r"CacheDataset(V2)?")
# Operations that read their input to its end: a cache that they read gets filled in one
# pass.
_READS_ALL = re.compile(
    r"(Map|ParallelMap|MapAndBatch|Batch|ParallelBatch|PaddedBatch|Prefetch|Shuffle|"
    r"ShuffleAndRepeat|Repeat|Options|Filter|ParallelFilter|Shard|Skip|FlatMap|"
    r"Interleave|ParallelInterleave|Model|Unbatch)Dataset(V\d)?|_Retval"
)
# Operations that call a function for each element. Their inputs after the first one are
# what the function captured: it may read them once for each element.
_CALLS = re.compile(r"(FlatMap|Interleave|ParallelInterleave)Dataset(V\d)?")


def skip(iterator: Any, number: int) -> None:
    """Takes elements from an iterator and drops them; stops early where it ends.

    An iterator over `dataset.skip()` would not do: it is saved as an iterator over
    another dataset.

    Args:
      iterator: iterator over a dataset.
      number: elements to drop.
    """

    def drop(iterator: Any, number: tf.Tensor) -> None:
        def one(index: tf.Tensor) -> tf.Tensor:
            next(iterator)
            return index + 1

        tf.while_loop(lambda index: index < number, one, [tf.zeros([], tf.int64)])

    arguments = iterator, tf.constant(number, tf.int64)
    compiled = tf.function(drop, autograph=False).get_concrete_function(*arguments)
    with contextlib.suppress(tf.errors.OutOfRangeError):
        compiled(*arguments)


def take(iterator: Any, number: int) -> list[Any]:
    """Returns the next elements of an iterator, fewer where it ends."""
    taken = []
    for _ in range(number):
        optional = iterator.get_next_as_optional()
        if optional.has_value():
            taken.append(optional.get_value())
    return taken


class TooLargeError(Refusal, ValueError):
    """A dataset that holds too many data in memory to be written as a graph."""


def definition_of(dataset: tf.data.Dataset) -> tf.compat.v1.GraphDef:
    """Returns a dataset's graph, which also holds the data that it has in memory.

    Raises:
      TooLargeError: the graph is larger than TensorFlow can write.
    """
    return tf.compat.v1.GraphDef.FromString(serialized(dataset).numpy())


def serialized(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns a dataset's graph as a string scalar, which another process can read.

    Raises:
      TooLargeError: the graph is larger than TensorFlow can write.
    """
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=_IGNORE_EXTERNAL_STATE,
        strip_device_assignment=True,
    )
    if not graph.numpy():
        # TensorFlow logs that it failed, and returns an empty string.
        raise TooLargeError(
            "the input holds more than 2 GB in memory, which TensorFlow cannot write "
            "as a graph: write the data to files, and read these "
            "(inputs.tfrecord_input_fn)."
        )
    return graph


def over(data: Any) -> Any:
    """Returns a new iterator, for whose deletion nobody waits.

    TensorFlow 2.21 keeps a deletion waiting until its autotuning thread wakes up next.
    This takes up to as long as the iterator has lived, a minute at the most.

    Args:
      data: dataset, or distributed dataset.
    """
    iterator = iter(data)
    held = tf.nest.flatten(iterator, expand_composites=True)
    deletion.leave_to_a_thread(iterator, held)
    return iterator


def lacks(prefix: str, dataset: tf.data.Dataset) -> str:
    """Says what a saved iterator lacks for the passes to come.

    Args:
      prefix: path prefix of a checkpoint that holds one iterator.
      dataset: dataset of the iterator.

    Returns:
      Words such as 'the seeds of a shuffle', also where the graph cannot tell that
      nothing is lacking. Empty where the iterator lacks nothing; and where each run has
      another order, so that no order is the right one.
    """
    num_kept = 0
    goes_on = False
    for name, keys in _states(prefix):
        repeats, is_made = _REPEATS.search(name), _MADE.search(name)
        goes_on |= bool(repeats or is_made)
        if repeats and not is_made and not _FEEDS_CACHE.search(name):
            num_kept += bool(_DRAWS in keys or _CACHE.search(name))
    if not goes_on:
        return ""
    at_most = _needed_at_most(dataset)
    if at_most is not None and at_most <= num_kept:
        return ""
    try:
        graph = _Graph(definition_of(dataset))
    except TooLargeError:
        return (
            "maybe the seeds of a shuffle, as more than 2 GB in memory hide its graph"
        )
    if graph.is_unseeded:
        return ""
    if graph.shares_a_cache():
        return "what a cache that is read in two places holds"
    if graph.breaks_off_a_cache or graph.num_needed > num_kept:
        return "the seeds of a shuffle, or of another random choice, that had ended"
    return ""


def _states(prefix: str) -> Iterator[tuple[bytes, bytes]]:
    """Yields the name and keys of each saved iterator, in a checkpoint of any size."""
    seen = set()
    folder, name = os.path.split(prefix)
    # Not by `glob`, to which brackets in a path mean something else.
    files = tf.io.gfile.listdir(folder)
    for each in (file for file in files if file.startswith(f"{name}.data-")):
        with tf.io.gfile.GFile(os.path.join(folder, each), "rb") as file:
            rest = b""
            while block := file.read(_BLOCK_BYTES):
                block = rest + block
                for match in _STATE.finditer(block):
                    if match[0] not in seen:
                        seen.add(match[0])
                        yield match[1], match[2]
                rest = block[-_LONGEST_KEY:]


def _needed_at_most(
    dataset: tf.data.Dataset, known: dict[int, int | None] | None = None
) -> int | None:
    """Counts what draws seeds, without a copy of the data as a graph has one.

    Args:
      dataset: dataset, which holds those that it reads.
      known: results by the datasets' ids: many may read the same one.

    Returns:
      A number that `_Graph.num_needed` does not exceed; None where the objects do not
      tell, or where there is a cache.
    """
    known = {} if known is None else known
    if id(dataset) not in known:
        known[id(dataset)] = _counted(dataset, known)
    return known[id(dataset)]


def _counted(dataset: tf.data.Dataset, known: dict[int, int | None]) -> int | None:
    """Does the work of `_needed_at_most` for a dataset that is not known yet."""
    kind, inputs, attributes = fingerprint.parts_of(dataset)
    if kind == "cache" or not (inputs or kind in _SOURCES):
        return None
    for name, values in attributes.items():
        functions = [fingerprint.function_in(each) for each in values]
        captured = [each.captured_inputs for each in functions if each is not None]
        # A tensor that is a handle may be another dataset.
        held = [*itertools.chain(*captured), *(() if name == _OWN_HANDLE else values)]
        if any(getattr(t, "dtype", None) in fingerprint.HANDLES for t in held):
            return None
    number = int(bool(_DRAWS_SEEDS.search(kind)))
    for each in inputs:
        if (more := _needed_at_most(each, known)) is None:
            return None
        number += more
    return number


class _Graph:
    """A dataset's graph, as far as the passes to come depend on it.

    Attributes:
      num_needed: number of the iterators on which a later pass depends: they draw
        seeds, or are caches of what such iterators yield.
      breaks_off_a_cache: whether such a cache may not get filled in one pass.
      is_unseeded: whether an iterator draws from a seed that each run chooses anew.
    """

    def __init__(self, definition: tf.compat.v1.GraphDef) -> None:
        """Walks through the graph.

        Args:
          definition: graph of the dataset.
        """
        self._nodes = {node.name: node for node in definition.node}
        # Several nodes may read the same one: what was found of it is kept.
        self._needed_of = functools.cache(self._needed)
        self._is_random = functools.cache(self._yields_at_random)
        self._caches = functools.cache(self._read_caches)
        self._identity = functools.cache(self._described)
        self.num_needed = 0
        self.breaks_off_a_cache = False
        self.is_unseeded = any(
            _RANDOM_OPS.fullmatch(node.op) and not any(self._seeds(node))
            for node in definition.node
        )
        for node in definition.node:
            if node.op == "_Retval":
                number, breaks = self._needed_of(node.name, False, True)
                self.num_needed += number
                self.breaks_off_a_cache |= breaks

    def shares_a_cache(self) -> bool:
        """Whether two inputs of one operation read the same cache in turns."""
        for node in self._nodes.values():
            # Concatenated datasets are read one after the other, and not in turns.
            if node.op != "ConcatenateDataset":
                caches = Counter()
                for each in self._inputs(node):
                    caches.update(self._caches(each.name))
                if any(number > 1 for number in caches.values()):
                    return True
        return False

    def _needed(self, name: str, repeated: bool, filled: bool) -> tuple[int, bool]:
        """Counts the iterators that draw seeds, from a node on towards its inputs.

        Args:
          name: name of an operation that makes a dataset, or of a constant.
          repeated: whether the dataset is read again in a later pass.
          filled: whether each pass reads the dataset to its end.

        Returns:
          Their number, and whether a cache among them may not get filled in one pass.
        """
        node = self._nodes[name]
        if _CACHE_OPS.fullmatch(node.op):
            needed = repeated and self._is_random(name)
            return int(needed), needed and not filled
        repeated |= bool(_REPEAT_OPS.fullmatch(node.op))
        filled &= bool(_READS_ALL.fullmatch(node.op))
        number, breaks = int(repeated and bool(_RANDOM_OPS.fullmatch(node.op))), False
        calls = bool(_CALLS.fullmatch(node.op))
        for place, each in enumerate(self._inputs(node)):
            captured = calls and place > 0
            more, breaks_too = self._needed_of(each.name, repeated or captured, filled)
            number, breaks = number + more, breaks or breaks_too
        return number, breaks

    def _yields_at_random(self, name: str) -> bool:
        """Whether what a dataset yields depends on a seed."""
        node = self._nodes[name]
        if _RANDOM_OPS.fullmatch(node.op):
            return True
        return any(self._is_random(each.name) for each in self._inputs(node))

    def _read_caches(self, name: str) -> frozenset[bytes]:
        """Returns the identities of the caches that a dataset reads."""
        node = self._nodes[name]
        own = [self._identity(name)] if _CACHE_OPS.fullmatch(node.op) else []
        return frozenset(own).union(*(self._caches(n.name) for n in self._inputs(node)))

    def _described(self, name: str) -> bytes:
        """Returns a digest that is the same for two datasets that are built alike."""
        node = self._nodes[name]
        plain = tf.compat.v1.NodeDef.FromString(node.SerializeToString())
        plain.name = ""
        del plain.input[:]
        inputs = b"".join(self._identity(each.name) for each in self._inputs(node))
        text = plain.SerializeToString(deterministic=True)
        return hashlib.sha256(hashlib.sha256(text).digest() + inputs).digest()

    def _inputs(self, node: Any) -> list[Any]:
        """Returns the nodes that a node reads."""
        names = map(graph_defs.name_in, node.input)
        return [self._nodes[name] for name in names if name in self._nodes]

    def _seeds(self, node: Any) -> list[int]:
        """Returns the seeds of an operation that draws: 0 and 0 where none is set."""
        values = [each.attr["value"].tensor for each in self._inputs(node)]
        # `RandomDataset(seed, seed2)`; `ShuffleDataset(input, size, seed, seed2)`.
        first = 0 if node.op.startswith("Random") else 2
        return [_integer(value) for value in values[first : first + 2]]


def _integer(value: Any) -> int:
    return int(tf.make_ndarray(value).item())
