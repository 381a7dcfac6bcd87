# SPDX-License-Identifier: Apache-2.0
"""Finds the files of an input_fn and divides them among its pipelines."""

import os
from collections.abc import Callable, Sequence

import tensorflow as tf

from gin_estimator import ModeKeys, errors

from .batching import Batching

Patterns = str | Sequence[str] | None

# Number of files that are read in turn, so that a shuffle buffer draws from all of them.
_NUM_OPEN = 16
# File number and row number share one integer, the position of a row.
_MAX_ROWS = 2**40


def files_of(
    batching: Batching, train_files: Patterns, eval_files: Patterns, *, owner: str
) -> list[str]:
    """Returns the files of a mode, each once and sorted.

    Args:
      batching: its mode decides which patterns count.
      train_files: glob pattern, or list of patterns.
      eval_files: the same, for EVAL and PREDICT.
      owner: name of the input_fn.

    Raises:
      UserValueError: a pattern is missing, or matches no file.
    """
    name = "train_files" if batching.is_training else "eval_files"
    patterns = train_files if batching.is_training else eval_files
    remedy = f"Set {owner}.{name} = '/data/part-*'."
    if not patterns:
        raise errors.UserValueError(
            f"{owner}.{name} is {patterns!r}: expected file patterns. {remedy}"
        )
    files: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        found = tf.io.gfile.glob(os.path.expanduser(pattern))
        if not found:
            raise errors.UserValueError(
                f"{owner}.{name} is {pattern!r}: expected a pattern of existing files. {remedy}"
            )
        files.update(found)
    return sorted(files)


def rows_are_shared(files: Sequence[str], batching: Batching) -> bool:
    """Returns whether each pipeline reads its rows of every file instead of its files."""
    return len(files) < batching.num_pipelines


def position_of(file: tf.Tensor, row: tf.Tensor | int) -> tf.Tensor:
    """Returns int64 positions of rows of a file.

    Args:
      file: int64 scalar, index of the file.
      row: numbers of the rows, from 1.
    """
    return file * _MAX_ROWS + row


def place_of(files: Sequence[str], positions: tf.Tensor, unit: str) -> tf.Tensor:
    """Returns positions as text for messages: '/data/a.csv line 7'.

    Args:
      files: all files.
      positions: int64 of any shape, from `position_of`.
      unit: name of a row: 'line'.
    """
    names = tf.gather(tf.constant(files), positions // _MAX_ROWS)
    return tf.strings.join([names, f" {unit} ", tf.strings.as_string(positions % _MAX_ROWS)])


def interleave(
    files: list[str],
    read_file: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.data.Dataset],
    *,
    batching: Batching,
    shuffle: bool,
    seed: int | None,
    block_length: int,
) -> tf.data.Dataset:
    """Returns one epoch of this pipeline's files, several of them in turn.

    Args:
      files: files of all pipelines.
      read_file: function of a file's name, compression ('GZIP' or '') and index that returns
        its dataset.
      batching: mode and pipeline.
      shuffle: whether TRAIN reads the files in another order in each epoch.
      seed: seed of that order.
      block_length: number of elements of a file before those of the next file.
    """
    indices = range(len(files))
    if not rows_are_shared(files, batching):
        indices = indices[batching.pipeline :: batching.num_pipelines]
    own = [files[index] for index in indices]
    compression = ["GZIP" if file.endswith(".gz") else "" for file in own]
    numbers = tf.constant(list(indices), tf.int64)
    sources = tf.data.Dataset.from_tensor_slices((own, compression, numbers))
    if shuffle and batching.is_training:
        sources = sources.shuffle(len(own), seed=seed)
    # Predictions keep the order of the files.
    num_open = 1 if batching.mode == ModeKeys.PREDICT else _NUM_OPEN
    return sources.interleave(
        read_file,
        cycle_length=min(num_open, len(own)),
        block_length=block_length,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
