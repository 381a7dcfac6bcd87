"""Passes on what several processes write, as whole lines that say whose they are."""

import contextlib
import math
import os
import selectors
import subprocess
import sys
import time
from typing import TextIO

_CHUNK = 1 << 16
# Seconds between two states of a progress bar, which may go on for hours in one line.
_PROGRESS_SECS = 10.0


class Lines:
    """One stream of one process, cut into lines.

    A carriage return overwrites the line, as on a terminal. So a progress bar is one
    line with its last state, and, until that comes, a line with the present state every
    ten seconds at most.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._rest = b""
        self._progress_time = -math.inf

    def feed(self, data: bytes, *, now: float) -> bytes:
        """Returns the lines that `data` completes, each with the prefix.

        Args:
          data: bytes that were read.
          now: seconds of a clock that never goes back.
        """
        *whole, self._rest = (self._rest + data).split(b"\n")
        found = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in whole]
        *states, present = self._rest.split(b"\r")
        if states:
            # Earlier states are overwritten: kept, they would fill the memory.
            self._rest = states[-1] + b"\r" + present
            if states[-1] and now - self._progress_time >= _PROGRESS_SECS:
                self._progress_time = now
                found.append(states[-1])
        return b"".join(self._prefix + line + b"\n" for line in found)

    def end(self) -> bytes:
        """Returns the last line, where the stream ended without a line feed."""
        return self.feed(b"\n", now=-math.inf) if self._rest else b""


class Output:
    """The output of all processes, read and passed on in one thread.

    All is written through it and as whole lines: no line is cut by another one.

    Attributes:
      closed: whether nobody reads this process's own stdout or stderr any more.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.closed = False

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, *unused: object) -> None:
        for key in list(self._selector.get_map().values()):
            # A process that a task has started and left behind holds this one open.
            lines, stream = key.data
            self._write(stream, lines.end())
            key.fileobj.close()
        self._selector.close()

    def add(self, name: str, process: subprocess.Popen) -> None:
        """Passes on what a process writes, from now on.

        Args:
          name: name of the task, which stands before its lines: '[worker 1] '.
          process: process with pipes for stdout and stderr.
        """
        for pipe, stream in (
            (process.stdout, sys.stdout),
            (process.stderr, sys.stderr),
        ):
            self._selector.register(
                pipe, selectors.EVENT_READ, (Lines(f"[{name}] "), stream)
            )

    def say(self, text: str) -> None:
        """Writes a line of the launcher's own to stderr."""
        self._write(sys.stderr, f"[launch] {text}\n".encode())

    def pass_on(self, *, timeout: float) -> bool:
        """Reads once from every stream that has something to read.

        Args:
          timeout: seconds to wait until one has.

        Returns:
          Whether one had.
        """
        ready = self._selector.select(timeout)
        for key, _ in ready:
            lines, stream = key.data
            data = os.read(key.fd, _CHUNK)
            if not data:
                self._selector.unregister(key.fileobj)
                key.fileobj.close()
            found = lines.feed(data, now=time.monotonic()) if data else lines.end()
            self._write(stream, found)
        return bool(ready)

    def drain(self, *, secs: float) -> None:
        """Passes on all that has been written by now, for `secs` at the most."""
        end = time.monotonic() + secs
        while self._selector.get_map() and time.monotonic() < end:
            if not self.pass_on(timeout=0):
                return

    def _write(self, stream: TextIO | None, data: bytes) -> None:
        # A stream is None where this process was started with a closed one.
        if stream is None or not data:
            return
        try:
            stream.buffer.write(data)
            stream.buffer.flush()
        except BrokenPipeError:
            self.closed = True
            # The buffer is written once more, at the interpreter's end at the latest:
            # to nowhere then, without another error.
            with open(os.devnull, "wb") as nowhere, contextlib.suppress(OSError):
                os.dup2(nowhere.fileno(), stream.fileno())
