"""Signals that ask a process to end, which it takes note of to end in order."""

import signal
import threading
from collections.abc import Sequence
from typing import Any


class PreemptedError(RuntimeError):
    """A signal ended this process in order; the same command goes on from there."""


class Notes:
    """Takes note of SIGTERM and of a first Ctrl-C; a second Ctrl-C interrupts at once.

    Python hands signals to the main thread; in another one nothing is noted.

    Attributes:
      received: the last signal, or None.
    """

    def __init__(
        self, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)
    ) -> None:
        """
        Args:
          signals: to take note of, between `start` and `stop`.
        """
        self.received: int | None = None
        self._signals = tuple(signals)
        self._before: dict[int, Any] = {}

    def start(self) -> None:
        """From now on; not before TensorFlow connects workers, which takes SIGTERM."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self._signals:
            self._before[number] = signal.signal(number, self._receive)

    def stop(self) -> None:
        """Gives the signals back."""
        for number, handler in self._before.items():
            # None is a handler that was not set by Python.
            signal.signal(number, handler or signal.SIG_DFL)
        self._before = {}

    def __enter__(self) -> "Notes":
        self.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.stop()

    def _receive(self, number: int, frame: Any) -> None:
        del frame
        self.received = number
        signal.signal(signal.SIGINT, signal.default_int_handler)
