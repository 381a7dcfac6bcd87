"""Says which row of a table each word or id has, by pure operations.

A lookup table of TensorFlow's is a resource: parameter servers' workers could not make
it from a dataset's graph, and a SavedModel would carry it as an asset. Here words are
hashed to 63 bits, found among the sorted hashes of the vocabulary, and compared with
the word that stands there, so that no other word is taken for it.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from .features import MISSING_ID

# Buckets of a hash, of which TensorFlow takes as many as int64 holds.
_MOST_BUCKETS = 2**63 - 1


def _strong_hash(key: int) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda words: tf.strings.to_hash_bucket_strong(
        words, _MOST_BUCKETS, [key, 0]
    )


# The first that gives each word of a vocabulary another number is taken.
_HASHES: tuple[Callable[[tf.Tensor], tf.Tensor], ...] = (
    lambda words: tf.strings.to_hash_bucket_fast(words, _MOST_BUCKETS),
    *map(_strong_hash, range(8)),
)


class Vocabulary:
    """Finds words or ids among those of a list.

    Attributes:
      size: how many there are.
    """

    def __init__(self, items: Sequence[str | int]) -> None:
        """Sorts the items.

        Args:
          items: all words, or all ids, each once.
        """
        self.size = len(items)
        if isinstance(items[0], str):
            array = np.array([as_bytes(item) for item in items], object)
            self._number_of, keys = _distinct_numbers(array)
        else:
            array = keys = np.array(items, np.int64)
            self._number_of = tf.identity
        order = np.argsort(keys)
        self._keys, self._items = keys[order], array[order]
        self._order = order.astype(np.int32)

    def find(self, items: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the place of each item in the list, int32, and whether it has one.

        Args:
          items: strings or int64 `[n]`.
        """
        places = tf.searchsorted(self._keys, self._number_of(items))
        places = tf.minimum(places, self.size - 1)
        is_known = tf.equal(tf.gather(self._items, places), items)
        return tf.gather(self._order, places), is_known


def _distinct_numbers(
    words: np.ndarray,
) -> tuple[Callable[[tf.Tensor], tf.Tensor], np.ndarray]:
    """Returns a hash that gives each word another number, and these numbers."""
    for number_of in _HASHES:
        with tf.init_scope(), tf.device("/CPU:0"):
            numbers = number_of(tf.constant(words)).numpy()
        if len(np.unique(numbers)) == len(words):
            return number_of, numbers
    raise AssertionError("nine hashes of 63 bits each give two words one number")


def as_bytes(word: str) -> bytes:
    """Returns a word's bytes; what is not UTF-8 stands in it as 'surrogateescape'.

    Args:
      word: the word.
    """
    return word.encode("utf-8", "surrogateescape")


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of one table: those of a vocabulary, then unknown ones, then missing.

    Attributes:
      vocabulary: what has a row of its own; None where `known` ids, or the buckets of
        a hash, are rows.
      known: rows before the unknown ones.
      is_hashed: whether a hash spreads words or ids over the known rows.
      unknown: rows for what is not known; 0 refuses it.
      has_missing: whether the last row is that of missing values.
    """

    vocabulary: Vocabulary | None
    known: int
    is_hashed: bool
    unknown: int
    has_missing: bool

    @property
    def size(self) -> int:
        """All rows."""
        return self.known + self.unknown + self.has_missing

    def of(self, items: tf.Tensor, where: str) -> tf.Tensor:
        """Returns the row of each item, int32.

        Args:
          items: strings or int64 `[n]`; '' or `MISSING_ID` is missing.
          where: what the items are of, for the message about one that is refused.
        """
        rows, is_known = self._found(items)
        if self.has_missing:
            is_missing = missing(items)
            is_known = is_known | is_missing
        if self.unknown:
            rows = tf.where(is_known, rows, self.known + _hashed(items, self.unknown))
        elif not self.is_hashed:
            rows = refused(
                rows,
                ~is_known,
                items,
                f"{where} is",
                f"which is none of its {self.known}: write unknown=1 for a row of "
                "those that are not known, or mend the data"
                if self.vocabulary
                else f"and size={self.known} allows 0 to {self.known - 1}: write a "
                "greater size, or hash_buckets",
            )
        return tf.where(is_missing, self.size - 1, rows) if self.has_missing else rows

    def _found(self, items: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a row of each item, and whether it is right."""
        if self.vocabulary is not None:
            return self.vocabulary.find(items)
        if self.is_hashed:
            return _hashed(items, self.known), tf.ones_like(items, tf.bool)
        is_known = (items >= 0) & (items < self.known)
        return tf.cast(tf.where(is_known, items, 0), tf.int32), is_known


def missing(items: tf.Tensor) -> tf.Tensor:
    """Returns which words or ids are missing.

    Args:
      items: strings or int64, of any shape.
    """
    return tf.equal(items, "" if items.dtype == tf.string else MISSING_ID)


def _hashed(items: tf.Tensor, buckets: int) -> tf.Tensor:
    """Returns a bucket for each word or id, int32, as tf.feature_column does."""
    if items.dtype != tf.string:
        items = tf.strings.as_string(items)
    return tf.cast(tf.strings.to_hash_bucket_fast(items, buckets), tf.int32)


def refused(
    result: tf.Tensor, bad: tf.Tensor, values: tf.Tensor, where: str, what: str
) -> tf.Tensor:
    """Returns a result whose computation fails where a value is bad.

    Args:
      result: the result.
      bad: bool `[n]`.
      values: `[n]`, named in the message.
      where: what the value is of, for the message.
      what: why it is bad, and what to write.
    """

    def fail() -> tf.Tensor:
        value = values[tf.argmax(bad)]
        text = value if value.dtype == tf.string else tf.strings.as_string(value)
        message = tf.strings.join([where, " ", text, ", ", what, "."])
        with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
            return tf.identity(result)

    return tf.cond(tf.reduce_any(bad), fail, lambda: tf.identity(result))
