# SPDX-License-Identifier: Apache-2.0
"""`tf.contrib.lookup`: tables of words and numbers."""

from typing import Any

import tensorflow as tf

_LINE, _NUMBER = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER


def index_table_from_tensor(
    mapping: Any, num_oov_buckets: int = 0, default_value: int = -1, *_: Any, **__: Any
) -> Any:
    """Replaces `tf.contrib.lookup.index_table_from_tensor`: words to their positions, int64."""
    keys = tf.convert_to_tensor(mapping)
    positions = tf.range(tf.size(keys, tf.int64), dtype=tf.int64)
    initializer = tf.lookup.KeyValueTensorInitializer(keys, positions)
    return _index_table(initializer, num_oov_buckets, default_value)


def index_table_from_file(
    vocabulary_file: str,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    *_: Any,
    **__: Any,
) -> Any:
    """Replaces `tf.contrib.lookup.index_table_from_file`: the lines of a file to their numbers."""
    initializer = tf.lookup.TextFileInitializer(
        vocabulary_file, tf.string, _LINE, tf.int64, _NUMBER, vocab_size
    )
    return _index_table(initializer, num_oov_buckets, default_value)


def _index_table(initializer: Any, num_oov_buckets: int, default_value: int) -> Any:
    if num_oov_buckets:
        return tf.lookup.StaticVocabularyTable(initializer, num_oov_buckets)
    return tf.lookup.StaticHashTable(initializer, default_value)


def index_to_string_table_from_file(
    vocabulary_file: str, vocab_size: int | None = None, default_value: str = "UNK", *_: Any
) -> Any:
    """Replaces `tf.contrib.lookup.index_to_string_table_from_file`: numbers of lines to lines."""
    initializer = tf.lookup.TextFileInitializer(
        vocabulary_file, tf.int64, _NUMBER, tf.string, _LINE, vocab_size
    )
    return tf.lookup.StaticHashTable(initializer, default_value)


def index_to_string_table_from_tensor(
    mapping: Any, default_value: str = "UNK", name: Any = None
) -> Any:
    """Replaces `tf.contrib.lookup.index_to_string_table_from_tensor`: positions to words."""
    words = tf.convert_to_tensor(mapping)
    positions = tf.range(tf.size(words, tf.int64), dtype=tf.int64)
    initializer = tf.lookup.KeyValueTensorInitializer(positions, words)
    return tf.lookup.StaticHashTable(initializer, default_value)


HashTable = tf.lookup.StaticHashTable
