# SPDX-License-Identifier: Apache-2.0
"""Processes that end with this one, even if it is killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

# The system closes the guard's stdin when the launcher ends, by SIGKILL too. A scheduler sends
# SIGTERM to all processes of a job: the guard ignores it, so that the tasks can save.
_GUARD = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
sys.stdin.buffer.read()
os.killpg(0, signal.SIGKILL)
"""


class ProcessGroup:
    """A process group that is killed when the block ends, or when this process does.

    Its leader is a guard process, which waits for the end of this one. Ctrl-C in a terminal
    reaches this process and not the group. Processes that a task starts belong to it as well.
    """

    def __init__(self) -> None:
        """Starts the guard."""
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD], stdin=subprocess.PIPE, process_group=0
        )
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for process in (*self._processes, self._guard):
            process.wait()
        self._guard.stdin.close()

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: IO[bytes] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Starts a process in the group.

        Args:
          command: program and arguments.
          environment: all environment variables.
          output: file for its stdout and stderr; None for two pipes.

        Returns:
          The process.
        """
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output or subprocess.PIPE,
            stderr=subprocess.STDOUT if output else subprocess.PIPE,
            process_group=self._guard.pid,
        )
        self._processes.append(process)
        return process

    def kill(self) -> None:
        """Kills all processes of the group."""
        # The id cannot belong to other processes before `__exit__` has waited for the guard.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard.pid, signal.SIGKILL)
