"""Text files as input, by bytes: each byte is predicted once, of those before it."""

import functools
import pathlib
import sysconfig
import zlib
from collections.abc import Sequence

import gin
import numpy as np
import tensorflow as tf

from pipeline import RefusedValueError

from . import files as input_files
from .batching import make_batching
from .numpy_input import array_dataset

# What stands before the first byte of a file: the end of a line.
_BEGIN = 10
# The label of what is no byte of a file.
NO_BYTE = -1
# One file in so many is held out.
_HELD_OUT = 10


@gin.configurable
def text_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    train_files: str | Sequence[str] | None = None,
    eval_files: str | Sequence[str] | None = None,
    window: int = 128,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Yields windows of text files, which are read into memory.

    Features are bytes, int32 `[batch, window]`; labels the bytes that follow each of
    them, int32 `[batch, window]`, and -1 behind the end of a file. So each byte of each
    file is a label once; the first of a file follows the end of a line.

    Args:
      mode: one of `ModeKeys`. TRAIN reads `train_files`, the others `eval_files`;
        PREDICT yields features alone.
      input_context: this pipeline; None is one pipeline that feeds one replica.
      train_files: glob pattern, or a list of patterns; in gin
        `@train/standard_library()`.
      eval_files: the same, for EVAL and PREDICT.
      window: bytes in a window.
      batch_size: windows in a global batch. Exactly one of the two batch sizes is
        given.
      batch_size_per_replica: windows in the batch of one replica.
      shuffle: whether TRAIN draws a new order each epoch.
      seed: seed of the order, an integer, the same in every pipeline.
      num_epochs: passes in TRAIN; None is forever. EVAL and PREDICT make one.
      drop_remainder: whether an incomplete last batch is left out, in every mode.
      first_batch: batches of this pipeline to leave out, for a run that goes on.

    Raises:
      ValueError: a pattern is missing or matches no file, the files are empty, or an
        argument is refused by `make_batching`.
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
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        raise RefusedValueError(
            f"window is {window!r}: write a number of bytes, window=128."
        )
    files = input_files.of_mode(
        batching,
        train_files,
        eval_files,
        owner="text_input_fn",
        example="/data/books/*.txt",
    )
    x, y = _windows(tuple(files), window)
    return array_dataset(x, y, batching=batching, shuffle=shuffle, seed=seed)


@gin.configurable
def standard_library(part: str = "train") -> list[str]:
    """Returns Python's own modules: 10 MB of real text that every machine has.

    Tests and installed packages are left out. Which files are held out is decided by
    their names, so that it is the same on each machine; what is in them, by the version
    of Python.

    Args:
      part: 'train', or 'held_out', one file in ten.

    Raises:
      ValueError: there is no such part, or the library is not installed as files.
    """
    if part not in ("train", "held_out"):
        raise RefusedValueError(f"part is {part!r}: write 'train' or 'held_out'.")
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
        raise RefusedValueError(
            f"{root} has no modules as files: write text_input_fn.train_files = "
            "'/data/*.txt'."
        )
    return found


@functools.lru_cache(maxsize=4)
def _windows(files: tuple[str, ...], window: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns all windows of files, and the bytes that follow each of theirs."""
    inputs, labels = [], []
    for path in files:
        with tf.io.gfile.GFile(path, "rb") as opened:
            text = np.frombuffer(opened.read(), np.uint8)
        if not len(text):
            continue
        rows = -(-len(text) // window)
        x, y = np.zeros(rows * window, np.int32), np.full(rows * window, NO_BYTE)
        x[0], x[1 : len(text)], y[: len(text)] = _BEGIN, text[:-1], text
        inputs.append(x.reshape(rows, window))
        labels.append(y.astype(np.int32).reshape(rows, window))
    if not inputs:
        raise RefusedValueError(
            f"the {len(files)} files of text_input_fn are empty: {files[0]} is the "
            "first."
        )
    return np.concatenate(inputs), np.concatenate(labels)
