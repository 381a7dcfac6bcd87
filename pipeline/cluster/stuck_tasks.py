# SPDX-License-Identifier: Apache-2.0
"""Finds tasks of a cluster that are stopped or stuck, which TensorFlow waits for without end."""

import enum
import math
import os
import socket
import threading
import time
from collections.abc import Mapping

from ..errors import EXIT_RESTART, TaskLostError
from . import block_timeout
from .tf_config import split

_POLL_SECS = 1.0
_ANSWER_SECS = 5.0
# If two questions are further apart, this process was stopped itself, maybe with the machine.
_LATE_SECS = _POLL_SECS + _ANSWER_SECS + 8.0
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # Empty SETTINGS.


class Answer(enum.Enum):
    """Answers of a task."""

    RUNS = 1
    ENDED = 2  # Nothing listens at its address.
    SILENT = 3  # The task is stopped or stuck, or its host is not reached.


def ask(address: str) -> Answer:
    """Asks whether TensorFlow's server runs at an address.

    An open port is not enough: the kernel accepts connections for a stopped process. A
    running server answers the preface of HTTP/2.

    Args:
      address: host and port.

    Returns:
      The answer, after 5 s at most for each of connecting and answering.
    """
    try:
        with socket.create_connection(split(address), timeout=_ANSWER_SECS) as connection:
            connection.sendall(_HTTP2_PREFACE)
            return Answer.RUNS if connection.recv(1) else Answer.ENDED
    except TimeoutError:
        return Answer.SILENT
    except OSError:
        return Answer.ENDED


class Silence:
    """How long each task has been silent while this process ran."""

    def __init__(self, tasks: Mapping[str, str], lost_after_secs: float) -> None:
        """Takes the addresses by name of the task."""
        self._tasks = tasks
        self._lost_after_secs = lost_after_secs
        self._since: dict[str, float] = {}
        self._asked_at = time.monotonic()

    def ask(self) -> dict[str, Answer]:
        """Asks all tasks.

        Returns:
          Their answers by name.

        Raises:
          TaskLostError: a task has been silent for `lost_after_secs`. One that has ended is not
            silent.
        """
        answers = {}
        for name, address in self._tasks.items():
            began = time.monotonic()
            answers[name] = ask(address)
            now = time.monotonic()
            if now - self._asked_at > _LATE_SECS:
                self._since.clear()
            elif answers[name] is Answer.SILENT:
                self._since.setdefault(name, began)
            else:
                self._since.pop(name, None)
            self._asked_at = now
            if now - self._since.get(name, now) >= self._lost_after_secs:
                raise TaskLostError(
                    f"{name} ({address}) of the cluster has not answered for "
                    f"{self._lost_after_secs:g} s, though its port is open: it is stopped or "
                    "stuck, or this host does not reach it. End it, and start all tasks again to "
                    "continue from the last checkpoint. Set parameter_server.lost_after_secs to "
                    "wait longer."
                )
        return answers


class Monitor:
    """Ends this process, with exit code 75, if a task is stopped or stuck.

    A thread asks the tasks each second. The main thread cannot end the process: it may wait for
    that task inside of TensorFlow. If TensorFlow even holds Python's lock, so that the thread does
    not run, another process ends this one with exit code 137.
    """

    def __init__(self, tasks: Mapping[str, str], lost_after_secs: float) -> None:
        """Starts the thread, which runs until the process ends.

        Args:
          tasks: addresses by name, workers and servers.
          lost_after_secs: seconds of silence after which a task is considered failed.
        """
        self._silence = Silence(tasks, lost_after_secs)
        self._no_workers_since: float | None = None
        self._end_at = math.inf
        self._alive = block_timeout.Watchdog(
            lost_after_secs + _LATE_SECS,
            f"error: TensorFlow has waited for another task for {lost_after_secs:g} s: one of "
            f"{', '.join(tasks)} is stopped or stuck. End it, and start all tasks again.",
        )
        threading.Thread(target=self._run, name="monitor", daemon=True).start()

    def secs_without_workers(self) -> float:
        """Returns the seconds for which no worker has answered."""
        since = self._no_workers_since
        return 0.0 if since is None else time.monotonic() - since

    def end_after(self, secs: float) -> None:
        """Ends this process with exit code 75 after `secs`, if it has not ended by then."""
        self._end_at = time.monotonic() + secs

    def _run(self) -> None:
        while time.monotonic() < self._end_at:
            try:
                answers = self._silence.ask()
            except TaskLostError as error:
                os.write(2, f"error: {error}\n".encode())
                break
            if any(a is Answer.RUNS for n, a in answers.items() if n.startswith("worker")):
                self._no_workers_since = None
            elif self._no_workers_since is None:
                self._no_workers_since = time.monotonic()
            self._alive.reset()
            time.sleep(_POLL_SECS)
        os._exit(EXIT_RESTART)
