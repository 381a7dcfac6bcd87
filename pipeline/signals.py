"""Signals that ask a process to end: noted where it saves first, else an exception.

with signals.answered() as answers:
    ...                      # A signal ends the process by its handler.
    answers.clean_up()
    ...                      # A signal raises EndedBySignal.
    with Notes() as notes:
        ...                  # A signal is `notes.received`.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipeline import exit_codes

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# For which a signal may wait for Python: TensorFlow may be at work, or hang.
_DEAF_SECS = 5.0
# The same, from a second signal to the end of the process.
_UNWIND_SECS = 10.0
_STOPPING = "stopping; saving. A second Ctrl-C stops at once."


class PreemptedError(RuntimeError):
    """A signal ended this process in order; the same command goes on from there."""


class EndedBySignal(KeyboardInterrupt):  # noqa: N818 (it is no error)
    """A signal came where there is nothing to save.

    Attributes:
      number: of the signal.
      code: to exit with.
    """

    def __init__(self, number: int) -> None:
        """
        Args:
          number: of the signal.
        """
        super().__init__(text_of(number))
        self.number = number
        self.code = code_of(number)


def code_of(number: int) -> int:
    """Returns the exit code after a signal: SIGTERM asks for another start."""
    return exit_codes.INTERRUPTED if number == signal.SIGINT else exit_codes.AGAIN


def text_of(number: int) -> str:
    """Returns what to say of a signal that ends the process."""
    words = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    return f"{words}; the same command goes on from the last save."


class Answers:
    """How this process answers a signal while nobody takes note of it.

    A thread listens, too: Python's own handlers wait until TensorFlow returns to
    Python, which may take as long as it waits for another machine.
    """

    def __init__(self) -> None:
        """Answers nothing yet."""
        self._at_once = True
        self._raised = threading.Event()
        self._ended = threading.Event()
        self._before: dict[int, Any] = {}
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._wakeup_before = -1
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def clean_up(self) -> None:
        """From now on a signal raises, as there is something to clean up."""
        self._at_once = False

    def start(self) -> None:
        """Answers from now on, but not what whoever started the process ignores."""
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        self._wakeup_before = signal.set_wakeup_fd(
            self._theirs.fileno(), warn_on_full_buffer=False
        )
        self._thread.start()

    def stop(self) -> None:
        """Gives the signals back."""
        self._ended.set()
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        # To close it is not enough where another process holds it open. A forked child
        # that comes here has closed it, see `forget`.
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_WR)
        self._theirs.close()
        self._thread.join()
        self._ours.close()

    def forget(self) -> None:
        """In a forked child: leaves the signals, and who listens, to the parent."""
        signal.set_wakeup_fd(-1)
        self._theirs.close()
        self._ours.close()

    def _receive(self, number: int, frame: Any) -> None:
        del frame
        if self._at_once:
            _exit(number)
        # A second one finds nobody who cleans up.
        self._at_once = True
        self._raised.set()
        raise EndedBySignal(number)

    def _listen(self) -> None:
        """Says what is answered, and ends a process that does not answer in time."""
        is_first = True
        while numbers := self._ours.recv(16):
            for number in numbers:
                handler = signal.getsignal(number)
                # Neither an alarm nor a child, nor what the program answers itself.
                if number in self._before and (
                    _is_ours(handler) or handler is signal.default_int_handler
                ):
                    self._answer(number, handler, is_first=is_first)
                    is_first = False

    def _answer(self, number: int, handler: Any, *, is_first: bool) -> None:
        owner = handler.__self__
        if isinstance(owner, Notes) and (is_first or number != signal.SIGINT):
            owner.say()
        elif not is_first:
            self._end_unless(lambda: self._ended.wait(_UNWIND_SECS), number)
        elif owner is self:
            self._end_unless(lambda: self._raised.wait(_DEAF_SECS), number)

    def _end_unless(self, answered: Callable[[], bool], number: int) -> None:
        def watch() -> None:
            if not answered() and not self._ended.is_set():
                _exit(number)

        threading.Thread(target=watch, daemon=True).start()


_answers: Answers | None = None


def _is_ours(handler: Any) -> bool:
    """Whether this module has set a signal's handler, and not the program."""
    return isinstance(getattr(handler, "__self__", None), (Answers, Notes))


def _forget() -> None:
    """In a forked child: its signals are not its parent's."""
    global _answers
    if _answers is not None:
        _answers.forget()
        _answers = None
    for number in signal.valid_signals():
        if _is_ours(signal.getsignal(number)):
            ctrl_c = number == signal.SIGINT
            default = signal.default_int_handler if ctrl_c else signal.SIG_DFL
            signal.signal(number, default)


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def answered() -> Iterator[Answers]:
    """Answers SIGTERM and Ctrl-C from now on; inside of another one that one does.

    Python hands signals to the main thread; in another one nothing changes.
    """
    global _answers
    if _answers is not None:
        yield _answers
        return
    answers = Answers()
    if not _is_main_thread():
        yield answers
        return
    _answers = answers
    answers.start()
    try:
        yield answers
    finally:
        _answers = None
        answers.stop()


def are_answered() -> bool:
    """Whether this process runs inside of `answered`."""
    return _answers is not None


def take_back() -> None:
    """Has Python handle SIGTERM again, which TensorFlow takes as it connects tasks."""
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and _is_main_thread():
        signal.signal(signal.SIGTERM, handler)


class Notes:
    """Takes note of SIGTERM and of a first Ctrl-C; a second Ctrl-C interrupts at once.

    Python hands signals to the main thread; in another one nothing is noted.

    Attributes:
      received: the last signal, or None.
    """

    def __init__(
        self, signals: Sequence[int] = _SIGNALS, *, answer: str = _STOPPING
    ) -> None:
        """
        Args:
          signals: to take note of, between `start` and `stop`.
          answer: what is said at once, before anything was done about it.
        """
        self.received: int | None = None
        self._signals = tuple(signals)
        self._answer = answer
        # Taken by who says it: in a handler, or in the thread that listens.
        self._said = threading.Lock()
        self._before: dict[int, Any] = {}

    def start(self) -> None:
        """From now on; not before TensorFlow connects workers, which takes SIGTERM."""
        if not _is_main_thread() or self._before:
            return
        for number in self._signals:
            self._before[number] = signal.signal(number, self._receive)

    def stop(self) -> None:
        """Gives the signals back."""
        for number, handler in self._before.items():
            # None is a handler that was not set by Python.
            signal.signal(number, handler or signal.SIG_DFL)
        self._before = {}

    def say(self) -> None:
        """Says that a signal came, once; in any thread."""
        if self._said.acquire(blocking=False):
            _write(self._answer)

    def __enter__(self) -> "Notes":
        self.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.stop()

    def _receive(self, number: int, frame: Any) -> None:
        del frame
        self.received = number
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._before.setdefault(signal.SIGINT, before)
        self.say()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _exit(number: int) -> None:
    _write(text_of(number))
    os._exit(code_of(number))


def _write(line: str) -> None:
    """To stderr itself: its buffer may be in use where the signal came in."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{line}\n".encode())
