"""A signal ends training in order: the loop returns, and all is saved."""

import signal
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.hooks import Hook, Run

REASON = "preempted"


class PreemptedError(RuntimeError):
    """Training was asked to end by a signal; what was done is saved."""


class PreemptionHook(Hook):
    """Stops a run after SIGTERM, or a first Ctrl-C, as soon as the loop returns.

    The checkpoint of the clean end holds everything. Where several processes train in
    step, a signal to one of them stops all at the same step. A second Ctrl-C interrupts
    at once. For a program's main thread, to which Python hands its signals.
    """

    def __init__(
        self, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)
    ) -> None:
        """
        Args:
          signals: that stop the run.
        """
        self._signals = tuple(signals)
        self._before: dict[int, Any] = {}
        self._received: int | None = None

    def begin(self, run: Run) -> None:
        """Not earlier: TensorFlow takes SIGTERM for itself when it connects workers."""
        for number in self._signals:
            self._before[number] = signal.signal(number, self._receive)

    def after_loop(self, run: Run) -> None:
        if run.agree(self._received is not None):
            run.request_stop(REASON)

    def end(self, run: Run) -> None:
        for number, handler in self._before.items():
            # None is a handler that was not set by Python.
            signal.signal(number, handler or signal.SIG_DFL)
        self._before = {}

    def interrupts(self) -> Hook:
        """A hook that ends an evaluation along the run by PreemptedError."""
        return _Interrupts(lambda: self._received is not None)

    def _receive(self, number: int, frame: Any) -> None:
        del frame
        self._received = number
        signal.signal(signal.SIGINT, signal.default_int_handler)


class _Interrupts(Hook):
    """Gives up an evaluation: what it evaluates is saved."""

    def __init__(self, received: Callable[[], bool]) -> None:
        self._received = received

    def after_loop(self, run: Run) -> None:
        if run.agree(self._received()):
            raise PreemptedError("a signal ended the evaluation.")
