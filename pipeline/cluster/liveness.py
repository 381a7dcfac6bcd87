"""Finds the tasks of a cluster that are stopped or stuck: they do not reply.

A process that is stopped keeps its port. The kernel accepts connections for it, and
TensorFlow's questions are never answered. TensorFlow's servers speak HTTP/2, in which a
server sends its settings to whoever connects. A task that sends none is not running.
"""

import contextlib
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping

from pipeline.cluster import watcher
from pipeline.cluster.ports import PeerLostError, split
from pipeline.process import exit_codes

# Pause between two rounds of questions.
_POLL_SECS = 1.0
# Longest wait for a reply.
_MOST_REPLY_SECS = 5.0
# Time by which two questions may be further apart than planned on a busy machine.
_LATE_SECS = 3.0
# Time in which the main thread sees for itself that a task is lost, if it can.
_NOTICE_SECS = 5.0
# Least time in which a program that saw it cleans up: that may wait for the task again.
_UNWIND_SECS = 60.0
# The word by which the process that is watched says that it saw the loss.
_NOTICED = b"noticed\n"
# The bytes with which an HTTP/2 client begins, and its settings, of which there are
# none.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def is_silent(address: str, *, timeout_secs: float = _MOST_REPLY_SECS) -> bool:
    """Asks a task for a reply.

    Args:
      address: host and port of the task.
      timeout_secs: seconds to wait for a reply.

    Returns:
      True where the port is open, or the host is cut off, and no reply comes. False
      where the task replies; and where nothing listens, for a task that has ended is
      noticed elsewhere.
    """
    try:
        with socket.create_connection(split(address), timeout=timeout_secs) as task:
            task.settimeout(timeout_secs)
            task.sendall(_HELLO)
            task.recv(1)
    except TimeoutError:
        return True
    except OSError:
        return False
    return False


class Silence:
    """The time for which each task has been silent, while this process ran.

    Attributes:
      tasks: addresses by the tasks' names, 'ps 0'.
    """

    def __init__(self, tasks: Mapping[str, str], *, lost_after_secs: float) -> None:
        """Begins with no task silent; `tasks` has addresses by the tasks' names."""
        self.tasks = dict(tasks)
        self._lost_after_secs = lost_after_secs
        self._reply_secs = max(min(lost_after_secs, _MOST_REPLY_SECS), 0.1)
        self._since: dict[str, float] = {}
        self._asked = math.inf

    def listen(self) -> None:
        """Asks each task for a reply.

        Raises:
          PeerLostError: names the tasks that have been silent for too long.
        """
        for name, address in self.tasks.items():
            began = time.monotonic()
            silent = is_silent(address, timeout_secs=self._reply_secs)
            now = time.monotonic()
            if now - self._asked > 2 * self._reply_secs + _POLL_SECS + _LATE_SECS:
                # This process was stopped, and maybe the whole machine with it: the
                # task could not reply either.
                self.forget()
            elif silent:
                self._since.setdefault(name, began)
            else:
                self._since.pop(name, None)
            self._asked = now
        now = time.monotonic()
        lost = [
            f"{name} ({self.tasks[name]})"
            for name, since in self._since.items()
            if now - since >= self._lost_after_secs
        ]
        if lost:
            raise PeerLostError(
                f"{' and '.join(lost)} of the cluster has not replied for "
                f"{self._lost_after_secs:g} s, though its port is open: it is stopped "
                "or stuck, or this host does not reach it. End it, and start all tasks "
                "again: they go on from the last checkpoint. "
                "parameter_server.lost_after_secs says how long to wait."
            )

    def forget(self) -> None:
        """Counts each task's silence anew, from the next reply that does not come."""
        self._since = {}


class Watch:
    """The watch over the tasks, which ends this process where it waits for a lost one.

    A process of its own listens, since this one may be inside of TensorFlow, which
    waits for that task and holds Python's lock. Where Python runs, `check` raises.
    Where `check` is not called within some seconds, this process is ended with 75. It
    is also ended where it is still there after as much silence again, a minute at the
    least.
    """

    def __init__(self, tasks: Mapping[str, str], *, lost_after_secs: float) -> None:
        """Begins to listen, for as long as this process lives.

        Args:
          tasks: addresses by the tasks' names.
          lost_after_secs: seconds of silence after which a task counts as lost.
        """
        settings = {
            "tasks": dict(tasks),
            "lost_after_secs": lost_after_secs,
            "notice_secs": _NOTICE_SECS,
            "unwind_secs": max(lost_after_secs, _UNWIND_SECS),
        }
        self._process = watcher.start(__name__, settings, code=exit_codes.AGAIN)
        os.set_blocking(self._process.stdout.fileno(), False)
        self._said = b""
        self._error: PeerLostError | None = None

    def check(self) -> None:
        """Raises where a task was found to be lost; costs no more than a read.

        Raises:
          PeerLostError: see `Silence.listen`.
        """
        if self._error is None:
            # The read returns None where there is nothing to read yet.
            self._said += self._process.stdout.read() or b""
            if not self._said.endswith(b"\n"):
                return
            self._error = PeerLostError(self._said.decode().strip())
            with contextlib.suppress(OSError):
                self._process.stdin.write(_NOTICED)
        raise self._error


def main() -> None:
    """Listens on behalf of another process, see `Watch`, until that process ends."""
    settings = watcher.settings()
    parent, noticed = watcher.Parent(settings), threading.Event()
    threading.Thread(target=_read, args=[noticed], daemon=True).start()
    tasks, secs = settings["tasks"], settings["lost_after_secs"]
    error = _first_loss(Silence(tasks, lost_after_secs=secs), parent)
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), f"{error}\n".encode())
    if _is_noticed(noticed, parent, settings["notice_secs"]):
        secs = settings["unwind_secs"]
        error = _first_loss(Silence(tasks, lost_after_secs=secs), parent)
    parent.end(str(error))


def _read(noticed: threading.Event) -> None:
    """Reads what the parent says; ends this process when the parent ends."""
    while sys.stdin.buffer.readline():
        noticed.set()
    os._exit(0)


def _first_loss(silence: Silence, parent: watcher.Parent) -> PeerLostError:
    """Waits until a task is lost, and returns the error that says so.

    Silence does not count while the parent is stopped: it waits for nobody then.
    """
    while not parent.is_gone:
        time.sleep(_POLL_SECS)
        try:
            silence.listen()
        except PeerLostError as error:
            if not parent.is_stopped:
                return error
        if parent.is_stopped:
            silence.forget()
    os._exit(0)


def _is_noticed(noticed: threading.Event, parent: watcher.Parent, left: float) -> bool:
    """Returns whether the parent noticed in `left` seconds of its running time."""
    while left > 0 and not noticed.wait(_POLL_SECS):
        left -= 0 if parent.is_stopped else _POLL_SECS
    return noticed.is_set()
