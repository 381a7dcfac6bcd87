"""Lets a reader hold a checkpoint, so that retention leaves it alone for so long.

A lease is a small file, `model_dir/readers/<checkpoint>.<host>-<pid>`, which its reader
writes again every minute. A lease that was not written for ten minutes no longer holds:
its reader has died.

Reader and deleter each write first (a lease; a mark) and look for the other's file
after that, so that at least one of them sees the other and steps back.
"""

import contextlib
import os
import socket
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint_files
from pipeline.model_dir import atomic_file, heartbeat
from pipeline.process.refusals import Refusal

RENEW_SECS = 60
EXPIRE_SECS = 10 * RENEW_SECS

_FOLDER = "readers"
_DELETING = "deleting"


class CheckpointGoneError(Refusal, RuntimeError):
    """A checkpoint that retention has deleted, or is about to delete."""


def prepare(model_dir: str) -> None:
    """Makes the folder of leases; where there is none, retention looks for no lease."""
    tf.io.gfile.makedirs(os.path.join(model_dir, _FOLDER))


@contextlib.contextmanager
def reading(path: str, *, renew_secs: float = RENEW_SECS) -> Iterator[None]:
    """Keeps a checkpoint from being deleted while the block runs.

    Args:
      path: checkpoint path prefix.
      renew_secs: seconds between writes of the lease.

    Raises:
      CheckpointGoneError: the checkpoint was deleted before, or is about to be.
    """
    prepare(os.path.dirname(path))
    lease = _file(path, f"{socket.gethostname()}-{os.getpid()}")
    # Written before the mark is looked for, and `deleting` marks before it looks for
    # leases.
    _touch(lease)
    try:
        with heartbeat.renewed(lease, lambda: _touch(lease), secs=renew_secs):
            marked = _holds(_file(path, _DELETING), now=lease)
            if marked or not checkpoint_files.is_complete(path):
                raise CheckpointGoneError(f"checkpoint {path} was deleted.")
            yield
    finally:
        atomic_file.remove(lease)


@contextlib.contextmanager
def deleting(path: str) -> Iterator[bool]:
    """Keeps new readers off a checkpoint while the block runs.

    Args:
      path: checkpoint path prefix.

    Yields:
      Whether the checkpoint may be deleted: nobody reads it.
    """
    if not tf.io.gfile.isdir(os.path.dirname(_file(path, _DELETING))):
        yield True
        return
    mark = _file(path, _DELETING)
    _touch(mark)
    try:
        yield not _readers(path, mark)
    finally:
        atomic_file.remove(mark)


def _readers(path: str, mark: str) -> list[str]:
    """Returns the leases that hold, and removes those that have expired."""
    folder, prefix = os.path.split(_file(path, ""))
    leases = [
        os.path.join(folder, name)
        for name in tf.io.gfile.listdir(folder)
        if name.startswith(prefix) and name != os.path.basename(mark)
    ]
    holding = [lease for lease in leases if _holds(lease, now=mark)]
    for lease in set(leases) - set(holding):
        logging.warning("checkpoint | the lease %s has expired", lease)
        atomic_file.remove(lease)
    return holding


def _file(path: str, owner: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, _FOLDER, f"{name}.{owner}")


def _touch(path: str) -> None:
    with tf.io.gfile.GFile(path, "w") as file:
        # An empty write would leave the time of an existing file as it is.
        file.write("held\n")


def _holds(path: str, *, now: str) -> bool:
    """Whether a file is there and was written not long before the file `now`."""
    age = heartbeat.age(path, now=now)
    return age is not None and age < EXPIRE_SECS
