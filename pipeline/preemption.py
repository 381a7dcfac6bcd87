"""A signal ends training in order: the loop returns, and all is saved."""

import signal
from collections.abc import Callable, Sequence

from pipeline.hooks import Hook, Run
from pipeline.signals import Notes
from pipeline.signals import PreemptedError as PreemptedError

REASON = "preempted"


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
        self._notes = Notes(signals)

    def begin(self, run: Run) -> None:
        """Not earlier: TensorFlow takes SIGTERM for itself when it connects workers."""
        self._notes.start()

    def after_loop(self, run: Run) -> None:
        if run.agree(self._notes.received is not None):
            run.request_stop(REASON)

    def end(self, run: Run) -> None:
        self._notes.stop()

    def interrupts(self) -> Hook:
        """A hook that ends an evaluation along the run by PreemptedError."""
        return _Interrupts(lambda: self._notes.received is not None)


class _Interrupts(Hook):
    """Gives up an evaluation: what it evaluates is saved."""

    def __init__(self, received: Callable[[], bool]) -> None:
        self._received = received

    def after_loop(self, run: Run) -> None:
        if run.agree(self._received()):
            raise PreemptedError("a signal ended the evaluation.")
