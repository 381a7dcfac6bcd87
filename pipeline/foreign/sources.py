"""Opens what a user names to start warm from: a checkpoint, a SavedModel, a file."""

import os
from typing import Any

import tensorflow as tf

from pipeline.checkpoints import checkpoint, checkpoint_path, foreign_checkpoint
from pipeline.checkpoints.checkpoint_reader import Reader
from pipeline.foreign import keras_file
from pipeline.foreign.foreign_reader import ForeignReader
from pipeline.foreign.keras_file import KerasFile
from pipeline.process.refusals import RefusedValueError

Source = Reader | ForeignReader | KerasFile


def opened(given: str) -> Source:
    """Returns the content of what is at a path.

    Args:
      given: a path prefix, a folder, a file of Keras', or `runs/a/best`.

    Raises:
      ValueError: there is nothing to take values from; says what there is instead.
      UnreadableCheckpointError: it is damaged.
    """
    if given.endswith(keras_file.ENDS) and tf.io.gfile.exists(given):
        return KerasFile(given)
    reader = Reader(_prefix(given))
    return ForeignReader(reader.path) if is_foreign(reader) else reader


def is_foreign(source: Any) -> bool:
    """Whether another program wrote what is there.

    Args:
      source: the checkpoint or file.
    """
    return isinstance(source, KerasFile) or foreign_checkpoint.is_foreign(source)


def _prefix(given: str) -> str:
    """Returns the path prefix of the checkpoint that a user names.

    Raises:
      ValueError: there is none; says what there is instead.
    """
    path: str | None = given
    if tf.io.gfile.isdir(given):
        path = _newest(given)
    if path is not None and tf.io.gfile.exists(f"{path}.index"):
        return path
    if path_in_run := checkpoint_path.in_run(given):
        return path_in_run
    there = foreign_checkpoint.described(given)
    raise RefusedValueError(
        f"no checkpoint to start warm from at {given!r}: give a model_dir, a "
        "prefix such as runs/a/model.ckpt-1000, or runs/a/best. A SavedModel, a .keras "
        f"and a .weights.h5 are taken, too. {there}"
    )


def _newest(folder: str) -> str | None:
    """Returns the path prefix of the checkpoint in a folder; None without one.

    Raises:
      ValueError: it has several, and nothing says which is the newest.
    """
    if tf.io.gfile.exists(os.path.join(folder, "saved_model.pb")):
        return os.path.join(folder, "variables", "variables")
    try:
        found = checkpoint.latest(folder)
    except ValueError:  # Its checkpoints have no steps, so they are not ours.
        found = None
    found = found or tf.train.latest_checkpoint(folder)
    # A folder that was copied in part may lack the file `checkpoint`.
    names = tf.io.gfile.glob(os.path.join(folder, "*.index"))
    prefixes = sorted(name.removesuffix(".index") for name in names)
    if found is None and len(prefixes) > 1:
        raise RefusedValueError(
            f"{folder!r} has the checkpoints {prefixes}, and no file `checkpoint` that "
            f"says which is the newest: write one, {prefixes[-1]!r}."
        )
    return found or next(iter(prefixes), None)
