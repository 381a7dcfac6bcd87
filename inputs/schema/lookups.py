"""Finds words and ids among those that have places, by pure operations.

A lookup table of TensorFlow's is a resource: parameter servers' workers could not make
it from a dataset's graph, and a SavedModel would carry it as an asset. Here words are
hashed to 63 bits, found among the sorted hashes of a vocabulary, and compared with the
word that stands there, so that no other word is taken for it.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

# Buckets of a hash, of which TensorFlow takes as many as int64 holds.
_MOST_BUCKETS = 2**63 - 1

Hash = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Places:
    """The places of words or ids in one table.

    Attributes:
      items: bytes or ids, each once, `[n]`.
      places: the place of each, int32 `[n]`.
      other: the place of all others.
    """

    items: np.ndarray
    places: np.ndarray
    other: int


class Lookup(abc.ABC):
    """Finds the items of several features, each in its own table."""

    @abc.abstractmethod
    def find(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the place of each item, int32, of the shape of its part.

        Args:
          parts: strings or int64 `[n]` of each feature, with n of its own.
        """


class HashLookup(Lookup):
    """Spreads words or ids over a number of places, as tf.feature_column does."""

    def __init__(self, buckets: int) -> None:
        """Keeps the number of places.

        Args:
          buckets: how many there are.
        """
        self._buckets = buckets

    def find(self, parts):
        return split(hashed(tf.concat(parts, 0), self._buckets), parts)


class SizeLookup(Lookup):
    """Takes ids from 0 to below a size as they are; others are -1."""

    def __init__(self, size: int) -> None:
        """Keeps the size.

        Args:
          size: the first id that is none.
        """
        self._size = size

    def find(self, parts):
        ids = tf.concat(parts, 0)
        is_known = (ids >= 0) & (ids < self._size)
        return split(tf.cast(tf.where(is_known, ids, -1), tf.int32), parts)


class SortedLookup(Lookup):
    """Finds words or ids among the sorted numbers of their tables.

    Each table is searched by itself, which takes less time than one for all; what
    comes before and after is done at once, as an operation costs more than what it
    computes for a batch.
    """

    def __init__(self, tables: Sequence[Places]) -> None:
        """Sorts the tables.

        Args:
          tables: the places in the table of each feature; of words, or of ids.
        """
        self._number_of: Hash = tf.identity
        if tables[0].items.dtype == object:
            self._number_of = _distinct([each.items for each in tables])
        sorted_tables = [self._sorted(each) for each in tables]
        self._numbers = [_captured(numbers[None]) for numbers, *_ in sorted_tables]
        self._items, self._places, self._others = (
            _captured(np.concatenate(each))
            for each in list(zip(*sorted_tables, strict=True))[1:]
        )
        sizes = [len(each.items) for each in tables]
        self._starts = np.cumsum([0, *sizes[:-1]]).tolist()

    def find(self, parts):
        items = tf.concat(parts, 0)
        numbers = split(self._number_of(items), parts)
        found = [
            start + _lower_bound(known, each)
            for start, known, each in zip(
                self._starts, self._numbers, numbers, strict=True
            )
        ]
        found = tf.concat(found, 0)
        is_known = tf.equal(tf.gather(self._items, found), items)
        places = tf.gather(self._places, found)
        return split(tf.where(is_known, places, tf.gather(self._others, found)), parts)

    def _sorted(
        self, table: Places
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns numbers in their order, and by it items, places, and the others'."""
        with tf.init_scope(), tf.device("/CPU:0"):
            numbers = self._number_of(tf.constant(table.items)).numpy()
        order = np.argsort(numbers)
        others = np.full(len(order), table.other, np.int32)
        return numbers[order], table.items[order], table.places[order], others


def as_bytes(word: str) -> bytes:
    """Returns a word's bytes; what is not UTF-8 stands in it as 'surrogateescape'.

    Args:
      word: the word.
    """
    return word.encode("utf-8", "surrogateescape")


def hashed(items: tf.Tensor, buckets: int) -> tf.Tensor:
    """Returns a bucket for each word or id, int32, as tf.feature_column does.

    Args:
      items: strings or int64, of any shape.
      buckets: how many there are.
    """
    if items.dtype != tf.string:
        items = tf.strings.as_string(items)
    return tf.cast(tf.strings.to_hash_bucket_fast(items, buckets), tf.int32)


def split(values: tf.Tensor, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Divides what was made of parts that were put in a row.

    Args:
      values: a value for each item of all parts.
      parts: the parts, `[n]`, with n of its own.
    """
    if len(parts) == 1:
        return [values]
    sizes = [part.shape[0] for part in parts]
    if None in sizes:
        sizes = [tf.size(part) for part in parts]
    found = tf.split(values, sizes)
    for each, part in zip(found, parts, strict=True):
        each.set_shape(part.shape)
    return found


def _lower_bound(known: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Returns the place of each number among sorted ones, or that of another number.

    Args:
      known: sorted, int64 `[1, k]`.
      numbers: int64 `[n]`.
    """
    # `tf.searchsorted` puts a dozen operations around this one.
    places = tf.raw_ops.LowerBound(
        sorted_inputs=known, values=tf.expand_dims(numbers, 0)
    )
    return tf.minimum(tf.squeeze(places, 0), known.shape[1] - 1)


def _captured(array: np.ndarray) -> tf.Tensor:
    """Returns a tensor that graphs take from outside.

    As a constant in the graph it would be copied each time that an iterator is made:
    of a million words for seconds.
    """
    with tf.init_scope(), tf.device("/CPU:0"):
        return tf.constant(array)


def _strong_hash(number: int) -> Hash:
    return lambda words: tf.strings.to_hash_bucket_strong(
        words, _MOST_BUCKETS, [number, 0]
    )


# The first that gives each word of a table another number is taken.
_HASHES: tuple[Hash, ...] = (
    lambda words: tf.strings.to_hash_bucket_fast(words, _MOST_BUCKETS),
    *map(_strong_hash, range(8)),
)


def _distinct(tables: Sequence[np.ndarray]) -> Hash:
    """Returns a hash that gives each word of a table another number."""
    for number_of in _HASHES:
        with tf.init_scope(), tf.device("/CPU:0"):
            numbers = [number_of(tf.constant(words)).numpy() for words in tables]
        if all(len(np.unique(each)) == len(each) for each in numbers):
            return number_of
    raise AssertionError("each of nine hashes of 63 bits gives two words one number")
