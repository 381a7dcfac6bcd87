"""What several processes write, as whole lines that say whose they are."""

import contextlib
import math
import os
import selectors
import subprocess
import sys
import time
from typing import TextIO

_CHUNK = 1 << 16
# A progress bar may go on for hours without ending its line.
_PROGRESS_SECS = 10.0


class Lines:
    """One stream of one process, cut into lines.

    A carriage return overwrites the line, as on a terminal: of a progress bar its last
    state is shown, and until that comes the present one, every ten seconds at most.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._rest = b""
        self._progress_time = -math.inf

    def feed(self, data: bytes, *, now: float) -> bytes:
        """Returns the lines that `data` completes, each with the prefix.

        Args:
          data: what was read.
          now: seconds of a clock that never goes back.
        """
        *whole, self._rest = (self._rest + data).split(b"\n")
        found = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in whole]
        *states, present = self._rest.split(b"\r")
        if states:
            # Earlier states are overwritten by now; keeping them would add up.
            self._rest = states[-1] + b"\r" + present
            if states[-1] and now - self._progress_time >= _PROGRESS_SECS:
                self._progress_time = now
                found.append(states[-1])
        return b"".join(self._prefix + line + b"\n" for line in found)

    def end(self) -> bytes:
        """Returns the last line, where the stream ended without ending it."""
        return self.feed(b"\n", now=-math.inf) if self._rest else b""


class Output:
    """Passes on stdout and stderr of processes, from one thread.

    Whoever writes through it writes whole lines, so that none is cut by another's.

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
            # Held open by what a task started and did not end.
            lines, stream = key.data
            self._write(stream, lines.end())
            key.fileobj.close()
        self._selector.close()

    def add(self, name: str, process: subprocess.Popen) -> None:
        """Passes on what the process writes, from now on.

        Args:
          name: of the task, for the prefix: '[worker 1] '.
          process: started with pipes for stdout and stderr.
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
        """Reads once from every stream that has something.

        Args:
          timeout: seconds to wait for that.

        Returns:
          Whether there was anything.
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
        """Passes on what has been written by now.

        Args:
          secs: bound, for processes that go on writing.
        """
        end = time.monotonic() + secs
        while self._selector.get_map() and time.monotonic() < end:
            if not self.pass_on(timeout=0):
                return

    def _write(self, stream: TextIO | None, data: bytes) -> None:
        if stream is None or not data:  # None was closed as this process began.
            return
        try:
            stream.buffer.write(data)
            stream.buffer.flush()
        except BrokenPipeError:
            self.closed = True
            # What the buffer holds goes there, now and at the interpreter's end.
            with open(os.devnull, "wb") as nowhere, contextlib.suppress(OSError):
                os.dup2(nowhere.fileno(), stream.fileno())
