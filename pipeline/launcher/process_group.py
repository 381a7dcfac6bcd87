"""Starts processes none of which outlives this one, even if it is killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import BinaryIO

# The program of the guard. Its stdin is a pipe from this process, which the system
# closes when this process ends, by SIGKILL too. It ignores the SIGTERM that a scheduler
# sends to all processes of a job: the tasks are to save, and it outlives them.
_GUARD = """
import os, signal, sys
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)
sys.stdin.buffer.read()
os.killpg(0, signal.SIGKILL)
"""


class ProcessGroup:
    """A process group that does not outlive this process, however that ends.

    The guard, a process of its own, founds the group and kills it once this process is
    gone. Each task joins the group before its program begins, so that there is no
    moment at which the guard could miss it. Processes that a task starts belong to the
    group, too, unless they leave by setsid. A terminal's Ctrl-C reaches this process
    and not the group.
    """

    def __init__(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            process_group=0,
        )
        self._processes: list[subprocess.Popen] = []

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(self, *unused: object) -> None:
        self.kill()
        for process in (*self._processes, self._guard):
            process.wait()
        self._guard.stdin.close()

    def start(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        output: BinaryIO | None = None,
        errors: BinaryIO | None = None,
    ) -> subprocess.Popen:
        """Starts a process of the group, without stdin.

        Args:
          command: program and arguments.
          environ: whole environment of the process.
          output: file that gets its stdout and stderr; None for a pipe for each.
          errors: file that gets its stderr; None for the same as its stdout.
        """
        to = subprocess.PIPE if output is None else output
        process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=to,
            stderr=to if errors is None else errors,
            bufsize=0,
            process_group=self._guard.pid,
        )
        self._processes.append(process)
        return process

    def kill(self) -> None:
        """Kills all processes of the group, and those that they started."""
        # The guard's id is the group's. The system gives it to no other process until
        # somebody has waited for the guard, which only `__exit__` does.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._guard.pid, signal.SIGKILL)
