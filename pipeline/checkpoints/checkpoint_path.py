"""Finds the checkpoint that a caller means, or the newest one that can be loaded."""

import os
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint
from pipeline.checkpoints.checkpoint_reader import UnreadableCheckpointError
from pipeline.model_dir import paths
from pipeline.process.refusals import RefusedValueError


def found(path: str | None) -> str | None:
    """Returns the path prefix of the checkpoint that a caller asked for.

    Args:
      path: a path prefix, or a directory, which stands for its newest checkpoint; None
        is returned as it is.

    Raises:
      ValueError: there is no checkpoint; lists those beside it.
    """
    given = path
    if path:
        path = paths.normal(path)
    try:
        if path is None or tf.io.gfile.exists(f"{path}.index"):
            return path
    except tf.errors.OpError as error:
        raise RefusedValueError(
            f"checkpoint_path {given!r} cannot be read: "
            f"{error.message.partition(chr(10))[0]}. Write one that this machine "
            "reaches."
        ) from error
    is_directory = tf.io.gfile.isdir(path)
    newest = checkpoint.latest(path) if is_directory else None
    if newest is not None:
        return newest
    folder = path if is_directory else os.path.dirname(path)
    beside = checkpoint.committed(folder)
    raise RefusedValueError(
        f"there is no checkpoint at checkpoint_path={given!r}: write a prefix such as "
        f"{beside[-1] if beside else 'runs/a/model.ckpt-1000'!r}, without .index, or "
        f"leave it out for the latest. Those beside it: {beside}."
    )


def newest_sound(
    path: str, load: Callable[[str], None], *, agreed: Callable[[bool], bool] = bool
) -> tuple[str, list[str]]:
    """Loads a checkpoint, or else the newest before it that can be loaded.

    Args:
      path: path prefix of the newest checkpoint.
      load: loads the checkpoint of a path prefix; raises UnreadableCheckpointError
        where it cannot.
      agreed: tells whether all processes that load together have succeeded, given
        whether this one has. Each calls it once for each checkpoint.

    Returns:
      The path prefix that was loaded, and those that could not be, newest first.

    Raises:
      CheckpointMismatchError: a checkpoint is of another model; nothing was changed.
      UnreadableCheckpointError: neither this checkpoint nor one before it can be read.
    """
    unreadable: list[str] = []
    while True:
        problem = None
        try:
            load(path)
        except UnreadableCheckpointError as error:
            problem = error
        # A damaged file may be seen by one process alone. All go on from the same
        # checkpoint, so all pass over one that any of them cannot read.
        if agreed(problem is None):
            return path, unreadable
        unreadable.append(path)
        words = problem or f"another process cannot read checkpoint {path}"
        older = checkpoint.before(path)
        if older is None:
            raise UnreadableCheckpointError(
                f"{words} There is none before it either: to begin anew at step 0, "
                "choose another model_dir."
            ) from problem
        logging.warning(
            "checkpoint | %s Going on from step %d, of %s.",
            words,
            checkpoint.step_of(older),
            older,
        )
        path = older
