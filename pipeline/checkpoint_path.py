"""The checkpoint that a caller asked for by its path."""

import os

import tensorflow as tf

from pipeline import checkpoint, paths


def found(path: str | None) -> str | None:
    """The path prefix of a checkpoint that a caller asked for; None for none.

    Args:
      path: a prefix, or a directory, of which it is the newest.

    Raises:
      ValueError: there is none; lists those beside it.
    """
    given = path
    if path:
        path = paths.normal(path)
    if path is None or tf.io.gfile.exists(f"{path}.index"):
        return path
    is_directory = tf.io.gfile.isdir(path)
    newest = checkpoint.latest(path) if is_directory else None
    if newest is not None:
        return newest
    folder = path if is_directory else os.path.dirname(path)
    beside = checkpoint.committed(folder)
    raise ValueError(
        f"there is no checkpoint at checkpoint_path={given!r}: write a prefix such as "
        f"{beside[-1] if beside else 'runs/a/model.ckpt-1000'!r}, without .index, or "
        f"leave it out for the latest. Those beside it: {beside}."
    )
