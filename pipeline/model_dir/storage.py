"""Turns what a file system refuses into an error that says what to do about it.

Everything that is written to model_dir is written inside of a block of `writing`.
"""

import contextlib
import contextvars
import errno
import os
import shutil
from collections.abc import Callable, Iterator

import tensorflow as tf

from pipeline.process.refusals import Refusal

# Only what a file system says of itself. TensorFlow raises the same classes of errors
# for a lost peer or a device without memory, and these pass through.
_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of this user is used up",
    errno.EFBIG: "files of that size are not allowed",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
    errno.ENOTDIR: "a part of the path is a file",
    errno.ENOENT: "a part of the path is not there",
    errno.EIO: "the disk fails",
    errno.ESTALE: "the file system is gone",
}
_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LOOKS = contextvars.ContextVar("looks", default=False)


class StorageError(Refusal, RuntimeError):
    """A refusal of model_dir's file system to write, with its cause and a remedy."""


@contextlib.contextmanager
def writing(
    directory: str,
    what: str,
    *,
    num_bytes: int | None = None,
    last_good: Callable[[], str | None] | None = None,
    only_named: bool = False,
    instead: str = "choose another model_dir",
) -> Iterator[None]:
    """Turns a file system's refusal to write, in the block, into a StorageError.

    Args:
      directory: the model_dir.
      what: what is written, as the error calls it: "checkpoint runs/a/model.ckpt-10".
      num_bytes: size of what is written; None where it is not known.
      last_good: returns the path prefix of the last good checkpoint, or None where
        there is none yet. None itself where the block writes no checkpoint.
      only_named: whether the block does other things as well: an error counts only
        where it names `directory`.
      instead: what else the user can do, as the end of "Free some space, or ...".

    Raises:
      StorageError: names the cause, and the last checkpoint, which is intact.
    """
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        code = _code(error)
        if code is None or (only_named and directory not in str(error)):
            raise
        raise StorageError(
            f"{what} could not be written: {_CAUSES[code]}"
            f"{_space(directory, num_bytes) if code in _OF_SPACE else ''} "
            f"({_first_line(error)}).{_intact(last_good) if last_good else ''} "
            f"{'Free some space' if code in _OF_SPACE else f'See to {directory}'}, or "
            f"{instead}, and start the same command again."
        ) from error


@contextlib.contextmanager
def only_looking() -> Iterator[None]:
    """Has the block's factories and input_fns leave model_dir as it is."""
    token = _LOOKS.set(True)
    try:
        yield
    finally:
        _LOOKS.reset(token)


def is_only_looking() -> bool:
    """Returns whether model_dir is to be left as it is, see `only_looking`."""
    return _LOOKS.get()


def _code(error: Exception) -> int | None:
    """Returns the number of a known cause, maybe read from the words; else None."""
    if isinstance(error, OSError):
        return error.errno if error.errno in _CAUSES else None
    text = str(error).lower()
    return next((c for c in _CAUSES if os.strerror(c).lower() in text), None)


def _space(directory: str, num_bytes: int | None) -> str:
    """Says how many bytes are free, where that is known, and how many are needed."""
    needed = "" if num_bytes is None else f", {num_bytes:,} bytes needed"
    try:
        free = shutil.disk_usage(directory).free
    except OSError:  # Not a local path.
        return f" at {directory}{needed}"
    return f" at {directory}: {free:,} bytes free{needed}"


def _first_line(error: Exception) -> str:
    """Returns an error's first line, without the name of TensorFlow's operation."""
    line = str(error).partition("\n")[0]
    return line.rpartition("}} ")[2].partition(" [Op:")[0]


def _intact(last_good: Callable[[], str | None]) -> str:
    path = last_good()
    if path is None:
        return " No checkpoint was there before."
    return f" The last good checkpoint, {path}, is intact: training goes on from it."
