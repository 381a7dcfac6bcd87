"""Signs of life: files that their owner renews, and how old they are.

`claim` and `lease` are such files: a process that was killed does not delete its own,
and only the file's age tells that its owner is gone.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf
from absl import logging


@contextlib.contextmanager
def renewed(path: str, renew: Callable[[], None], *, secs: float) -> Iterator[None]:
    """Calls `renew`, which writes a file again, every `secs` seconds of the block.

    Args:
      path: of the file, for the log.
      renew: writes the file. It is called in a thread of its own, and never after
        the end of the block.
      secs: seconds between two calls.
    """
    ended = threading.Event()
    renewing = threading.Thread(
        target=_renew, args=(path, renew, ended, secs), daemon=True
    )
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        # The owner deletes the file next, and a late call would write it again.
        renewing.join()


def age(path: str, *, now: str) -> float | None:
    """Returns the seconds between the writes of two files; None where one is missing.

    Both times are the file system's: the clocks of two hosts may disagree.

    Args:
      path: the file whose age is asked for.
      now: a file that was written just now, on the same file system.
    """
    try:
        later, earlier = tf.io.gfile.stat(now), tf.io.gfile.stat(path)
    except tf.errors.NotFoundError:
        return None
    return (later.mtime_nsec - earlier.mtime_nsec) / 1e9


def _renew(
    path: str, renew: Callable[[], None], ended: threading.Event, secs: float
) -> None:
    while not ended.wait(secs):
        try:
            renew()
        except (tf.errors.OpError, OSError) as error:
            # No error yet: several calls may fail before the file counts as old, and
            # the next one may succeed.
            logging.warning("cannot renew %s: %s", path, error)
