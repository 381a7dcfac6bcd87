"""`tf.contrib.lookup`: tables of words and numbers."""

from typing import Any

import tensorflow as tf


def index_table_from_tensor(
    mapping: Any, num_oov_buckets: int = 0, default_value: int = -1, *_: Any, **__: Any
) -> Any:
    """Replaces `tf.contrib.lookup.index_table_from_tensor`: words to their positions, int64."""
    keys = tf.convert_to_tensor(mapping)
    positions = tf.range(tf.size(keys, tf.int64), dtype=tf.int64)
    initializer = tf.lookup.KeyValueTensorInitializer(keys, positions)
    if num_oov_buckets:
        return tf.lookup.StaticVocabularyTable(initializer, num_oov_buckets)
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
