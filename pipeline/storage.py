"""What a file system refuses, in words that say what to do about it."""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator

import tensorflow as tf

# Only what a file system says of itself: other errors of TensorFlow, such as those of
# a lost peer or of a device without memory, pass through.
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


class StorageError(RuntimeError):
    """model_dir cannot be written."""


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
    """Turns a file system's refusal to write, in the block, into an error of ours.

    Args:
      directory: the model_dir.
      what: is written, as "checkpoint runs/a/model.ckpt-10".
      num_bytes: of it; None where that is not known.
      last_good: path prefix of the last checkpoint, which is not touched, or None;
        itself None where no checkpoint is written.
      only_named: the block does other things as well, and of their errors only those
        count that name `directory`.
      instead: what else can be done.

    Raises:
      StorageError: says what the matter is and that the last checkpoint is intact.
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


def _code(error: Exception) -> int | None:
    """The cause among those known, by its number or by the text in TensorFlow's."""
    if isinstance(error, OSError):
        return error.errno if error.errno in _CAUSES else None
    text = str(error).lower()
    return next((c for c in _CAUSES if os.strerror(c).lower() in text), None)


def _space(directory: str, num_bytes: int | None) -> str:
    """How much there is, where that can be found out, and how much it takes."""
    needed = "" if num_bytes is None else f", {num_bytes:,} bytes needed"
    try:
        free = shutil.disk_usage(directory).free
    except OSError:  # Not a local path.
        return f" at {directory}{needed}"
    return f" at {directory}: {free:,} bytes free{needed}"


def _first_line(error: Exception) -> str:
    """The error without the name of TensorFlow's operation."""
    line = str(error).partition("\n")[0]
    return line.rpartition("}} ")[2].partition(" [Op:")[0]


def _intact(last_good: Callable[[], str | None]) -> str:
    path = last_good()
    if path is None:
        return " No checkpoint was there before."
    return f" The last good checkpoint, {path}, is intact: training goes on from it."
