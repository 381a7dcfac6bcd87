# SPDX-License-Identifier: Apache-2.0
"""The claim on a folder: one process at a time trains, or makes one evaluation, there.

The claim file is locked for the whole run; the kernel frees the lock of a killed process at
once. Locks may not reach other hosts: there the holder renews the file, and its age decides.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import tensorflow as tf
from absl import logging

from ..errors import ModelDirInUseError
from . import storage_watchdog
from .files import write_atomic, writing

FILE = "training.claim"


@dataclasses.dataclass(frozen=True)
class Claim:
    """The holder of a folder.

    Attributes:
      token: unique text of this claim.
      pid: process.
      host: host name.
      time: start in seconds since 1970.
    """

    token: str
    pid: int
    host: str
    time: float


@contextlib.contextmanager
def held(
    directory: str,
    *,
    file: str = FILE,
    renew_secs: float = 10.0,
    expire_secs: float = 60.0,
    settle_secs: float = 2.0,
) -> Iterator[Callable[[], None]]:
    """Holds the claim on a folder during the block.

    Args:
      directory: the model_dir, or the folder of an evaluation.
      file: name of the claim file.
      renew_secs: seconds between renewals.
      expire_secs: seconds without renewal after which another host's claim is void.
      settle_secs: seconds to wait for a simultaneous start on a disk without locks.

    Yields:
      A function to call before writing: it raises ModelDirInUseError if the claim was lost.

    Raises:
      ModelDirInUseError: another process holds it; names the process and the file.
    """
    path = os.path.join(directory, file)
    own = Claim(uuid.uuid4().hex, os.getpid(), socket.gethostname(), time.time())
    with writing(directory, path), contextlib.ExitStack() as stack:
        tf.io.gfile.makedirs(directory)
        has_lock = "://" not in directory and _lock(path, stack)
        found = _read(path)
        if found is not None:
            if found.host != own.host or not has_lock:
                _wait_until_expired(path, found, expire_secs)
            logging.warning(
                "Process %d on %s used %s and was killed: taking over.",
                found.pid,
                found.host,
                directory,
            )
        _write(path, own, in_place=has_lock)
        if not has_lock:
            time.sleep(settle_secs)  # Of simultaneous starts, the last to write wins.
        lock = stack.pop_all()

    def check() -> None:
        holder = _read(path)
        if holder is None or holder.token != own.token:
            text = _refusal(path, holder) if holder else f"{path} was deleted by someone."
            raise ModelDirInUseError(f"this process lost its claim: {text}")

    stopped = threading.Event()

    def renew() -> None:
        while not stopped.wait(renew_secs):
            with contextlib.suppress(OSError, tf.errors.OpError, ModelDirInUseError):
                check()
                os.utime(path) if has_lock else _write(path, own, in_place=False)

    with lock:
        check()
        thread = threading.Thread(target=renew, name="claim", daemon=True)
        thread.start()
        try:
            yield check
        finally:
            stopped.set()
            thread.join()
            with contextlib.suppress(OSError, tf.errors.OpError, ModelDirInUseError):
                check()
                tf.io.gfile.remove(path)


def _lock(path: str, stack: contextlib.ExitStack) -> bool:
    """Locks the file until the stack closes; returns False if the disk has no locks."""
    file = stack.enter_context(open(path, "a"))  # noqa: SIM115 (the caller's stack closes it)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _refusal(path, _read(path)) from None
    except OSError:
        return False
    # The holder before may have deleted this file between open and flock.
    if not os.path.exists(path) or os.stat(path).st_ino != os.fstat(file.fileno()).st_ino:
        return _lock(path, stack)
    return True


def _write(path: str, claim: Claim, *, in_place: bool) -> None:
    text = json.dumps(dataclasses.asdict(claim), indent=2) + "\n"
    if not in_place:
        write_atomic(path, text)
        return
    with open(path, "r+") as file:  # Renaming would leave the lock on the old file.
        file.write(text)
        file.truncate()


def _read(path: str) -> Claim | None:
    """Returns the holder; None if there is none or the file is damaged."""
    try:
        with tf.io.gfile.GFile(path) as file:
            content = json.loads(file.read())
        return Claim(*(content[field.name] for field in dataclasses.fields(Claim)))
    except storage_watchdog.OUTAGE:
        raise
    except (tf.errors.OpError, ValueError, KeyError, TypeError):
        return None


def _wait_until_expired(path: str, found: Claim, expire_secs: float) -> None:
    """Returns once a claim was not renewed for long enough.

    Raises:
      ModelDirInUseError: it was renewed.
    """
    renewed = tf.io.gfile.stat(path).mtime_nsec
    logging.warning("Waiting to see whether process %d on %s is alive.", found.pid, found.host)
    while _now(path) - renewed < expire_secs * 1e9:
        time.sleep(1)
        if tf.io.gfile.stat(path).mtime_nsec != renewed:
            raise _refusal(path, found)


def _now(path: str) -> int:
    """Returns the time in nanoseconds by the clock of the file system."""
    probe = f"{path}.{uuid.uuid4().hex}"
    with tf.io.gfile.GFile(probe, "w") as file:
        file.write("")
    try:
        return tf.io.gfile.stat(probe).mtime_nsec
    finally:
        tf.io.gfile.remove(probe)


def _refusal(path: str, found: Claim | None) -> ModelDirInUseError:
    if found is None:
        return ModelDirInUseError(f"another process uses {os.path.dirname(path)}.")
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.time))
    return ModelDirInUseError(
        f"{os.path.dirname(path)} is in use by process {found.pid} on {found.host} since {since}. "
        f"Set another model_dir, or delete {path} if that process has ended."
    )
