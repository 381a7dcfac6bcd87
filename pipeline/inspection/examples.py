"""Reads the examples of a dataset, each as a digest of its bytes, within bounds.

Two examples with the same digest are the same: features and labels alike, but for zeros
at their ends. Batches are taken apart, so that it does not matter in which batch an
example came, nor how far it was padded there.
"""

import collections
import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.feed.batch import rows_in

# Examples of endless data that are read: enough to see them come again.
MOST_OF_ENDLESS = 2_000
# Examples of one pass that are read; their digests are kept in memory.
MOST_OF_A_PASS = 200_000


@dataclasses.dataclass(frozen=True)
class Reading:
    """What was read of a dataset.

    Attributes:
      digests: digest of each example, in their order.
      batches: number of batches.
      rows: examples of the first batch; 0 without any.
      is_whole: whether the data ended, so that these are all examples.
    """

    digests: list[bytes]
    batches: int
    rows: int
    is_whole: bool

    @property
    def counts(self) -> collections.Counter:
        """How often each example is there."""
        return collections.Counter(self.digests)

    def __len__(self) -> int:
        """Returns the number of examples."""
        return len(self.digests)


def read(
    dataset: tf.data.Dataset,
    *,
    secs: float = float("inf"),
    clock: Callable[[], float] = time.monotonic,
) -> Reading:
    """Reads a dataset to its end, or until a bound is reached.

    Args:
      dataset: dataset of batches, or of single examples of scalars.
      secs: seconds in which further batches are read after the first one, for which
        files are opened and buffers filled.
      clock: function that returns seconds.
    """
    endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
    most = MOST_OF_ENDLESS if endless else MOST_OF_A_PASS
    digests, sizes, until = [], [], float("inf")
    for element in quick(dataset):
        before = len(digests)
        digests += _digests(element)
        sizes.append(len(digests) - before)
        until = until if len(sizes) > 1 else clock() + secs
        if len(digests) >= most or clock() >= until:
            is_whole = False
            break
    else:
        is_whole = True
    rows = sizes[0] if sizes else 0
    return Reading(digests, len(sizes), rows, is_whole)


def quick(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the same data, whose iterators TensorFlow lets go of at once."""
    options = tf.data.Options()
    # Its thread sleeps for seconds, and an iterator that is deleted waits for it.
    options.autotune.enabled = False
    return dataset.with_options(options)


def _digests(element: Any) -> Iterator[bytes]:
    """Yields the digest of each example of a batch."""
    leaves = tf.nest.flatten(element)
    number = int(rows_in(element))
    columns = [list(_rows(leaf, number)) for leaf in leaves]
    for row in zip(*columns, strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for value in row:
            # The length first: two texts side by side are not one that is longer.
            digest.update(len(value).to_bytes(8, "little"))
            digest.update(value)
        yield digest.digest()


def _rows(leaf: Any, number: int) -> Iterator[bytes]:
    """Yields the bytes of each row of a tensor of `number` rows."""
    if isinstance(leaf, tf.SparseTensor):
        yield from _sparse_rows(leaf, number)
    elif isinstance(leaf, tf.RaggedTensor):
        yield from (repr(row).encode() for row in leaf.to_list())
    elif leaf.dtype == tf.variant:
        for row in range(number):
            yield tf.io.serialize_tensor(leaf[row]).numpy()
    else:
        array = np.asarray(leaf.numpy())
        # A value that has no row for each example belongs to all of them.
        rows = array if np.ndim(array) and len(array) == number else [array] * number
        yield from map(_text_bytes if leaf.dtype == tf.string else _bytes, rows)


def _bytes(row: Any) -> bytes:
    # How far an example is padded depends on the others of its batch.
    return row.tobytes().rstrip(b"\0")


def _text_bytes(row: Any) -> bytes:
    texts = np.asarray(row).ravel().tolist()
    while texts and not texts[-1]:
        texts.pop()
    return repr(texts).encode()


def _sparse_rows(leaf: tf.SparseTensor, number: int) -> Iterator[bytes]:
    rows: list[list[Any]] = [[] for _ in range(number)]
    values = leaf.values.numpy().tolist()
    for (row, *place), value in zip(leaf.indices.numpy().tolist(), values, strict=True):
        rows[row].append((place, value))
    return (repr(row).encode() for row in rows)
