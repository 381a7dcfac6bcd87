"""What is done to iterators over data besides reading them; what a saved one lacks.

TensorFlow saves the iterators that are alive. One that came to its end is let go of:
by `shuffle` once its buffer holds the rest of a pass, by `zip`, `take` or `batch` at
the last element. With it goes what it would have handed to the next pass: how many
seeds its `shuffle` has drawn, what a `cache` holds. So a restored iterator yields the
rest of this pass as it should, and the next pass in another order.

Directly before `repeat`, TensorFlow fuses `shuffle` with it. This one iterator lives as
long as the data, and so do those that it reads, with their seeds.
"""

import contextlib
import itertools
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from pipeline.feed import fingerprint
from pipeline.process.refusals import Refusal

_IGNORE_EXTERNAL_STATE = 1
_BLOCK_BYTES = 16 << 20
_LONGEST_KEY = 64 << 10
# A state's name and keys, as TensorFlow writes them: `Iterator::Root::...@@key@@key`.
_STATE = re.compile(rb"Iterator::([^@\x00-\x1f]*)((?:@@[^@\x00-\x1f]+)+)")
_DRAWS = b"@@epoch_num_random_samples"
# A cache, with all that it holds, and what feeds it until it is filled.
_CACHE = re.compile(rb"\w+Cache$")
_FEEDS_CACHE = re.compile(rb"\w+CacheImpl\b")
_REPEATS = re.compile(rb"ForeverRepeat|FiniteRepeat|ShuffleAndRepeat")
# A number, but of iterators that number what they read, is that of a dataset which a
# function made: it begins anew with each element, and so does its seed.
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
# They read their input to its end, so that a cache above them is filled in one pass.
_READS_ALL = re.compile(
    r"(Map|ParallelMap|MapAndBatch|Batch|ParallelBatch|PaddedBatch|Prefetch|Shuffle|"
    r"ShuffleAndRepeat|Repeat|Options|Filter|ParallelFilter|Shard|Skip|FlatMap|"
    r"Interleave|ParallelInterleave|Model|Unbatch)Dataset(V\d)?|_Retval"
)
# Their further inputs are what a function captured and may read once for each element.
_CALLS = re.compile(r"(FlatMap|Interleave|ParallelInterleave)Dataset(V\d)?")


def skip(iterator: Any, number: int) -> None:
    """Takes elements, as many as there are, and drops them.

    An iterator of `dataset.skip()` would be saved as one of another dataset.
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


class TooLargeError(Refusal, ValueError):
    """A dataset that holds too many data in memory to be written as a graph."""


def definition_of(dataset: tf.data.Dataset) -> tf.compat.v1.GraphDef:
    """Returns what `dataset` does as a graph, which holds data that are in memory.

    Raises:
      TooLargeError: it would be larger than TensorFlow can write.
    """
    return tf.compat.v1.GraphDef.FromString(serialized(dataset).numpy())


def serialized(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns the same as a string, which another process can read.

    Raises:
      TooLargeError: it would be larger than TensorFlow can write.
    """
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=_IGNORE_EXTERNAL_STATE,
        strip_device_assignment=True,
    )
    if not graph.numpy():
        # TensorFlow only logs it.
        raise TooLargeError(
            "the input holds more than 2 GB in memory, which TensorFlow cannot write "
            "as a graph: write the data to files, and read these "
            "(inputs.tfrecord_input_fn)."
        )
    return graph


def delete_in_background(box: list[Any]) -> None:
    """Empties a list of iterators that nobody else refers to.

    TensorFlow 2.21 keeps a deletion waiting until its autotuning thread wakes up next,
    which takes up to as long as the iterator has lived, a minute at the most.

    While the interpreter ends it deletes them at once: predictions that nobody closed
    are closed then, and a thread that is started then never runs (Python 3.11) or is
    refused (3.12 and later), and what waits for it would wait for ever.
    """
    if not sys.is_finalizing():
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=box.clear, daemon=True).start()
            return
    box.clear()


def lacks(prefix: str, dataset: tf.data.Dataset) -> str:
    """Says what a saved iterator lacks for the passes to come.

    Args:
      prefix: path prefix of a checkpoint that holds one iterator.
      dataset: what it iterates over.

    Returns:
      Words such as 'the seeds of a shuffle'; empty where it lacks nothing, and where
      the order is another one in each run, so that none is the right one. Where the
      graph does not tell, something may be lacking.
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
    """Name and keys of each saved iterator, in a checkpoint of any size."""
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


def _needed_at_most(dataset: tf.data.Dataset) -> int | None:
    """Counts what draws seeds, without a copy of the data as a graph has one.

    Returns:
      A number that `_Graph.num_needed` does not exceed; None where the objects do not
      tell, or where there is a cache.
    """
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
        if (more := _needed_at_most(each)) is None:
            return None
        number += more
    return number


class _Graph:
    """A dataset's graph, as far as the passes to come depend on it.

    Attributes:
      num_needed: iterators that draw seeds, or caches of what those yield, on which
        a later pass depends.
      breaks_off_a_cache: whether such a cache may not get filled in one pass.
      is_unseeded: whether some draw from a seed that is another one in each run.
    """

    def __init__(self, definition: tf.compat.v1.GraphDef) -> None:
        """
        Args:
          definition: of a dataset.
        """
        self._nodes = {node.name: node for node in definition.node}
        self.num_needed = 0
        self.breaks_off_a_cache = False
        self.is_unseeded = any(
            _RANDOM_OPS.fullmatch(node.op) and not any(self._seeds(node))
            for node in definition.node
        )
        for node in definition.node:
            if node.op == "_Retval":
                self._walk(node, repeated=False, filled=True)

    def shares_a_cache(self) -> bool:
        """Whether two inputs of one operation read the same cache in turns."""
        for node in self._nodes.values():
            if node.op != "ConcatenateDataset":
                caches = Counter()
                for each in self._inputs(node):
                    caches.update(set(self._caches(each)))
                if any(number > 1 for number in caches.values()):
                    return True
        return False

    def _walk(self, node: Any, *, repeated: bool, filled: bool) -> None:
        """Counts what draws seeds.

        Args:
          node: a dataset, or a constant.
          repeated: whether it is read again in a later pass.
          filled: whether each pass reads it to its end.
        """
        if _CACHE_OPS.fullmatch(node.op):
            if repeated and self._is_random(node):
                self.num_needed += 1
                self.breaks_off_a_cache |= not filled
            return
        repeated |= bool(_REPEAT_OPS.fullmatch(node.op))
        filled &= bool(_READS_ALL.fullmatch(node.op))
        if repeated and _RANDOM_OPS.fullmatch(node.op):
            self.num_needed += 1
        calls = bool(_CALLS.fullmatch(node.op))
        for number, each in enumerate(self._inputs(node)):
            captured = calls and number > 0
            self._walk(each, repeated=repeated or captured, filled=filled)

    def _is_random(self, node: Any) -> bool:
        """Whether a seed has part in what a dataset yields."""
        if _RANDOM_OPS.fullmatch(node.op):
            return True
        return any(self._is_random(each) for each in self._inputs(node))

    def _caches(self, node: Any) -> Iterator[bytes]:
        """What tells each cache that a dataset reads from others."""
        if _CACHE_OPS.fullmatch(node.op):
            yield self._identity(node)
        for each in self._inputs(node):
            yield from self._caches(each)

    def _identity(self, node: Any) -> bytes:
        """The same for two datasets that are built alike."""
        plain = tf.compat.v1.NodeDef.FromString(node.SerializeToString())
        plain.name = ""
        del plain.input[:]
        inputs = b"".join(self._identity(each) for each in self._inputs(node))
        return plain.SerializeToString(deterministic=True) + inputs

    def _inputs(self, node: Any) -> list[Any]:
        names = [name.partition(":")[0].removeprefix("^") for name in node.input]
        return [self._nodes[name] for name in names if name in self._nodes]

    def _seeds(self, node: Any) -> list[int]:
        """The values of its inputs that are called seeds."""
        values = [each.attr["value"].tensor for each in self._inputs(node)]
        first = 0 if node.op.startswith("Random") else 2
        return [_integer(value) for value in values[first : first + 2]]


def _integer(value: Any) -> int:
    return int(tf.make_ndarray(value).item())
