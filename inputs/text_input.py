# SPDX-License-Identifier: Apache-2.0
"""Text files as input: each byte is predicted once, from the bytes before it."""

import functools
import pathlib
import sysconfig
import zlib

import gin
import numpy as np
import tensorflow as tf

from gin_estimator import errors

from .arrays import array_dataset
from .batching import is_integer, make_batching
from .files import Patterns, files_of

_LINE_END = 10
_NO_LABEL = -1
# One file of this many is held out.
_HELD_OUT = 10


@gin.configurable
def text_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    train_files: Patterns = None,
    eval_files: Patterns = None,
    window: int = 128,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    shuffle: bool = True,
    seed: int | None = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Returns windows of text files, which are read into memory.

    Features are bytes, int32 `[batch, window]`. Labels are the byte after each of them, int32
    `[batch, window]`, and -1 after the end of a file. So each byte of each file is a label once;
    the feature before the first byte of a file is a line end.

    Args:
      mode: one of `ModeKeys`. TRAIN reads `train_files`, EVAL and PREDICT `eval_files`; PREDICT
        yields features only.
      input_context: this pipeline; None for one pipeline of one replica.
      train_files: glob pattern, or list of patterns; in gin `@train/standard_library()`.
      eval_files: the same, for EVAL and PREDICT.
      window: bytes in a window.
      batch_size: windows in a global batch. Set exactly one of the two batch sizes.
      batch_size_per_replica: windows in a batch of one replica.
      shuffle: whether TRAIN has another order in each epoch.
      seed: seed of the order; None for another order in each run, and after
        a restart.
      num_epochs: passes in TRAIN; None without end.
      drop_remainder: whether an incomplete last batch is dropped, as a TPU needs.
      first_batch: number of this pipeline's batches to leave out at the start.

    Raises:
      UserValueError: a pattern is missing or matches no file, or the files are empty.
    """
    batching = make_batching(
        mode,
        input_context,
        batch_size=batch_size,
        batch_size_per_replica=batch_size_per_replica,
        num_epochs=num_epochs,
        drop_remainder=drop_remainder,
        first_batch=first_batch,
    )
    if not is_integer(window) or window < 1:
        raise errors.UserValueError(f"window is {window!r}: expected a positive integer.")
    files = files_of(batching, train_files, eval_files, owner="text_input_fn")
    x, y = _windows(tuple(files), window)
    return array_dataset(x, y, batching=batching, shuffle=shuffle, seed=seed)


@gin.configurable
def standard_library(part: str = "train") -> list[str]:
    """Returns the files of Python's standard library: 10 MB of text without a download.

    Tests and installed packages are left out. The name of a file decides whether it is held
    out, so that the parts have the same files on each machine; their text depends on the
    version of Python.

    Args:
      part: 'train', or 'held_out' for one file in ten.

    Raises:
      UserValueError: the part does not exist, or the library is not installed as files.
    """
    if part not in ("train", "held_out"):
        raise errors.UserValueError(f"part is {part!r}: expected 'train' or 'held_out'.")
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if {"site-packages", "dist-packages", "test", "tests"} & set(name.split("/")):
            continue
        is_held_out = zlib.crc32(name.encode()) % _HELD_OUT == 0
        if is_held_out == (part == "held_out"):
            found.append(str(path))
    if not found:
        raise errors.UserValueError(
            f"{root} has no Python files: expected the standard library. Set "
            "text_input_fn.train_files = '/data/*.txt'."
        )
    return found


@functools.lru_cache(maxsize=4)
def _windows(files: tuple[str, ...], window: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns features and labels of all windows, int32 `[windows, window]`."""
    features, labels = [], []
    for path in files:
        with tf.io.gfile.GFile(path, "rb") as file:
            text = np.frombuffer(file.read(), np.uint8)
        padding = np.full(-len(text) % window, _NO_LABEL)
        label = np.concatenate([text, padding]).astype(np.int32)
        feature = np.concatenate([[_LINE_END], label[:-1]]).astype(np.int32)[: len(label)]
        features.append(np.maximum(feature, 0).reshape(-1, window))
        labels.append(label.reshape(-1, window))
    if not any(len(each) for each in labels):
        raise errors.UserValueError(
            f"text_input_fn got empty files, {files[0]} first: expected text."
        )
    return np.concatenate(features), np.concatenate(labels)
