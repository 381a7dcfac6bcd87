"""Finds words and ids among those that are known, by pure operations.

A lookup table of TensorFlow's is a resource: parameter servers' workers could not make
it from a dataset's graph, and a SavedModel would carry it as an asset. Here words are
hashed to 63 bits, found among the sorted hashes of the vocabularies, and compared with
the word that stands there, so that no other word is taken for it.
"""

import abc
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

# Buckets of a hash, of which TensorFlow takes as many as int64 holds.
_MOST_BUCKETS = 2**63 - 1
# Between the marks of two tables; odd, so that the marks differ.
_BETWEEN_TABLES = 0x1E3779B97F4A7C15

Hash = Callable[[tf.Tensor], tf.Tensor]


class Lookup(abc.ABC):
    """Says of each item the place that it has in its table."""

    @abc.abstractmethod
    def find(
        self, items: tf.Tensor, tables: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns places, int32 `[n]`, and which of them are right.

        Args:
          items: strings or int64 `[n]`.
          tables: the number of each item's table, int32 `[n]` or a scalar.

        Returns:
          Places, of any value where an item has none; and bool `[n]`, whether it has
          one, or None where all have.
        """


class HashLookup(Lookup):
    """Spreads words or ids over a number of places, as tf.feature_column does."""

    def __init__(self, buckets: int) -> None:
        """Keeps the number of places.

        Args:
          buckets: how many there are.
        """
        self._buckets = buckets

    def find(self, items, tables):
        return hashed(items, self._buckets), None


class SizeLookup(Lookup):
    """Takes ids from 0 to below a size as they are."""

    def __init__(self, size: int) -> None:
        """Keeps the size.

        Args:
          size: the first id that is none.
        """
        self._size = size

    def find(self, items, tables):
        is_known = (items >= 0) & (items < self._size)
        return tf.cast(tf.where(is_known, items, 0), tf.int32), is_known


class IdLookup(Lookup):
    """Finds ids in one vocabulary."""

    def __init__(self, ids: Sequence[int]) -> None:
        """Sorts the ids.

        Args:
          ids: all ids, each once.
        """
        array = np.array(ids, np.int64)
        order = np.argsort(array)
        self._ids, self._order = array[order], order.astype(np.int32)

    def find(self, items, tables):
        known = tf.constant(self._ids)
        places = _lower_bound(known, items)
        return tf.gather(self._order, places), tf.gather(known, places) == items


class WordLookup(Lookup):
    """Finds words in the vocabularies of several tables, in all at once.

    The hash of a word is marked with its table, by which equal words of two tables
    differ.
    """

    def __init__(self, vocabularies: Mapping[str, Sequence[str]]) -> None:
        """Sorts the hashes of all words.

        Args:
          vocabularies: the words of each table by its name, each word once.
        """
        self.tables = {table: number for number, table in enumerate(vocabularies)}
        words = [np.array([*map(as_bytes, v)], object) for v in vocabularies.values()]
        sizes = [len(each) for each in words]
        flat = np.concatenate(words)
        tables = np.repeat(np.arange(len(words)), sizes)
        places = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
        self._key_of, keys = _distinct_keys(flat, tables)
        order = np.argsort(keys)
        self._keys, self._words = keys[order], flat[order]
        self._places = places[order]

    def find(self, items, tables):
        keys = self._key_of(items, tables)
        known = tf.constant(self._keys)
        found = _lower_bound(known, keys)
        is_known = tf.gather(known, found) == keys
        # Another word may have the same hash.
        is_known &= tf.gather(self._words, found) == items
        return tf.gather(self._places, found), is_known


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


def _lower_bound(known: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Returns the place of each key among sorted ones, or that of another key."""
    places = tf.searchsorted(known, keys)
    return tf.minimum(places, known.shape[0] - 1)


def _strong_hash(number: int) -> Hash:
    return lambda words: tf.strings.to_hash_bucket_strong(
        words, _MOST_BUCKETS, [number, 0]
    )


# The first that gives each word of a table another number is taken.
_HASHES: tuple[Hash, ...] = (
    lambda words: tf.strings.to_hash_bucket_fast(words, _MOST_BUCKETS),
    *map(_strong_hash, range(8)),
)


def _distinct_keys(
    words: np.ndarray, tables: np.ndarray
) -> tuple[Callable[[tf.Tensor, tf.Tensor], tf.Tensor], np.ndarray]:
    """Returns a function of words and tables, and its results, which all differ."""
    for number_of in _HASHES:
        key_of = _marked(number_of)
        with tf.init_scope(), tf.device("/CPU:0"):
            keys = key_of(tf.constant(words), tf.constant(tables, tf.int32)).numpy()
        if len(np.unique(keys)) == len(keys):
            return key_of, keys
    raise AssertionError("each of nine hashes of 63 bits gives two words one number")


def _marked(number_of: Hash) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    def key_of(words: tf.Tensor, tables: tf.Tensor) -> tf.Tensor:
        marks = tf.cast(tables, tf.int64) * _BETWEEN_TABLES
        return tf.bitwise.bitwise_xor(number_of(words), marks)

    return key_of
