"""Finds the files of an input_fn, and divides them among its pipelines."""

import os
from collections.abc import Callable, Sequence

import tensorflow as tf

from pipeline import ModeKeys, RefusedValueError

from .batching import Batching

# Files that are read in turns, so that a shuffle buffer draws from all of them.
_MOST_AT_ONCE = 16
# A place is one integer, which a shuffle carries at less cost than two.
_MOST_ROWS = 2**40


def of_mode(
    batching: Batching,
    train_files: str | Sequence[str] | None,
    eval_files: str | Sequence[str] | None,
    *,
    owner: str,
    example: str,
) -> list[str]:
    """Returns the files of a mode, each once, in the same order everywhere.

    Args:
      batching: its mode.
      train_files: glob pattern, or a list of patterns.
      eval_files: the same, for EVAL and PREDICT.
      owner: name of the input_fn.
      example: pattern to write instead.

    Raises:
      ValueError: there is no pattern, or no file matches one.
    """
    name = "train_files" if batching.is_training else "eval_files"
    patterns = train_files if batching.is_training else eval_files
    if not patterns:
        raise RefusedValueError(
            f"This mode reads {name}, which is {patterns!r}: write "
            f"{owner}.{name} = '{example}'."
        )
    files: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        found = tf.io.gfile.glob(os.path.expanduser(pattern))
        if not found:
            raise RefusedValueError(
                f"{name}: no file matches {pattern!r}: write a pattern of files "
                f"that are there, {owner}.{name} = '{example}'."
            )
        files.update(found)
    return sorted(files)


def are_shared(files: Sequence[str], batching: Batching) -> bool:
    """Returns whether each pipeline reads all files, and rows of its own in each."""
    return len(files) < batching.num_pipelines


def place_of(file: tf.Tensor, numbers: tf.Tensor | int) -> tf.Tensor:
    """Returns where rows stand, as `in_words` takes it, int64.

    Args:
      file: int64 scalar, the number of the file among all.
      numbers: the number of each row in its file, from 1.
    """
    return file * _MOST_ROWS + numbers


def in_words(files: Sequence[str], places: tf.Tensor, row: str) -> tf.Tensor:
    """Returns where rows stand, for messages: '/data/a.csv line 7'.

    Args:
      files: all files.
      places: int64 of any shape, from `place_of`.
      row: what a row is called.
    """
    names = tf.gather(tf.constant(files), places // _MOST_ROWS)
    numbers = tf.strings.as_string(places % _MOST_ROWS)
    return tf.strings.join([names, f" {row} ", numbers])


def read_in_turns(
    files: list[str],
    read_file: Callable[[tf.Tensor, tf.Tensor], tf.data.Dataset],
    *,
    batching: Batching,
    shuffle: bool,
    seed: int | None,
    block_length: int,
) -> tf.data.Dataset:
    """Reads one epoch of this pipeline's files, several at a time.

    Args:
      files: the files of all pipelines.
      read_file: function of a file's name and its compression, 'GZIP' or '', which
        returns the file's dataset.
      batching: pipeline and mode.
      shuffle: whether TRAIN reads the files in another order each epoch.
      seed: seed of that order.
      block_length: elements of one file before the next file's come.
    """
    if not are_shared(files, batching):
        files = files[batching.pipeline_id :: batching.num_pipelines]
    compression = ["GZIP" if file.endswith(".gz") else "" for file in files]
    sources = tf.data.Dataset.from_tensor_slices((files, compression))
    if shuffle and batching.is_training:
        sources = sources.shuffle(len(files), seed=seed)
    # A pass over PREDICT's files is in their order.
    at_once = 1 if batching.mode == ModeKeys.PREDICT else _MOST_AT_ONCE
    return sources.interleave(
        read_file,
        cycle_length=min(at_once, len(files)),
        block_length=block_length,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
