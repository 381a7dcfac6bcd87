"""Which tasks of a cluster reply, and which are stopped or stuck.

A process that is stopped keeps its port: the kernel accepts connections for it, and
what TensorFlow asks of it is never answered. TensorFlow's servers speak HTTP/2, where a
server says its settings to whoever connects. One that does not is not running.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping

from pipeline import exit_codes
from pipeline.ports import PeerLostError, split

_POLL_SECS = 1.0
_MOST_REPLY_SECS = 5.0
# In which the main thread sees for itself that a task is lost, if it can.
_NOTICE_SECS = 5.0
# What an HTTP/2 client begins with, and its settings, of which there are none.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def is_silent(address: str, *, timeout_secs: float = _MOST_REPLY_SECS) -> bool:
    """Returns whether a task has its port open, or is cut off, and does not reply.

    Args:
      address: its host and port.
      timeout_secs: how long to wait for a reply.

    Returns:
      False, too, where nothing listens: that task has ended, which others notice.
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
    """How long each task has been silent.

    Attributes:
      tasks: address by name.
    """

    def __init__(self, tasks: Mapping[str, str], *, lost_after_secs: float) -> None:
        """
        Args:
          tasks: address by name, 'ps 0'.
          lost_after_secs: silence after which a task counts as lost.
        """
        self.tasks = dict(tasks)
        self._lost_after_secs = lost_after_secs
        self._since: dict[str, float] = {}

    def listen(self) -> None:
        """Asks each task for a reply.

        Raises:
          PeerLostError: names the tasks that have been silent for too long.
        """
        most = max(min(self._lost_after_secs, _MOST_REPLY_SECS), 0.1)
        for name, address in self.tasks.items():
            began = time.monotonic()
            if is_silent(address, timeout_secs=most):
                self._since.setdefault(name, began)
            else:
                self._since.pop(name, None)
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


class Watch:
    """Ends what waits for a task that is silent.

    A thread of its own listens, since the main thread may be inside of TensorFlow,
    which waits for that task. Where it is not, `check` raises; where it is, the process
    ends.
    """

    def __init__(self, tasks: Mapping[str, str], *, lost_after_secs: float) -> None:
        """Begins to listen, as long as this process lives.

        Args:
          tasks: see `Silence`.
          lost_after_secs: see `Silence`.
        """
        self._silence = Silence(tasks, lost_after_secs=lost_after_secs)
        self._error: PeerLostError | None = None
        self._is_noticed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def check(self) -> None:
        """
        Raises:
          PeerLostError: see `Silence.listen`.
        """
        if self._error is not None:
            self._is_noticed.set()
            raise self._error

    def _run(self) -> None:
        while self._error is None:
            time.sleep(_POLL_SECS)
            try:
                self._silence.listen()
            except PeerLostError as error:
                self._error = error
        if not self._is_noticed.wait(_NOTICE_SECS):
            os._exit(exit_codes.failed(str(self._error), exit_codes.AGAIN))
