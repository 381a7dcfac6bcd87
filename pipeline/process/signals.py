"""Answers SIGTERM and Ctrl-C: at once, by an exception, or by a note to save first.

with signals.answered() as answers:
    ...                      # A signal ends the process in its handler.
    answers.clean_up()
    ...                      # A signal raises EndedBySignal.
    with Notes() as notes:
        ...                  # A signal is noted, in `notes.received`.

Each answer takes more time than the one before it, and saves more. Where Python cannot
raise in time, because TensorFlow hangs, the process is ended all the same; a note waits
for its training until a second signal comes.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipeline.process import exit_codes
from pipeline.process.refusals import Refusal

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Longest time from a signal to its exception. Python raises none as long as TensorFlow
# is at work, which may wait for another machine forever.
_DEAF_SECS = 5.0
# Longest time from a second signal to the end of the process.
_UNWIND_SECS = 10.0
_STOPPING = "stopping; saving."
_CTRL_C = " A second Ctrl-C stops at once."


class PreemptedError(Refusal, RuntimeError):
    """An end by a signal, in order: the same command goes on from what was saved."""


class EndedBySignal(KeyboardInterrupt):  # noqa: N818 (it is no error)
    """An end by a signal that came where there was nothing to save.

    Attributes:
      number: number of the signal.
      code: exit code.
    """

    def __init__(self, number: int) -> None:
        """Makes the exception of one signal, given by its number."""
        super().__init__(text_of(number))
        self.number = number
        self.code = code_of(number)


def code_of(number: int) -> int:
    """Returns the exit code after a signal: SIGTERM asks for another start."""
    return exit_codes.INTERRUPTED if number == signal.SIGINT else exit_codes.AGAIN


def text_of(number: int) -> str:
    """Returns the last words of a process that a signal ends."""
    words = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    return f"{words}; the same command goes on from the last save, if there is one."


class Answers:
    """The answers of this process to a signal that no `Notes` take note of.

    A handler in the main thread does what is to be done. A thread listens besides:
    Python calls handlers only when TensorFlow returns to Python, and TensorFlow may
    wait for another machine. The thread says at once that the signal came, and ends the
    process where the handler does not get to it in time.
    """

    def __init__(self) -> None:
        """Prepares the thread; answers nothing before `start`."""
        self._at_once = True
        self._raised = threading.Event()
        self._ended = threading.Event()
        self._before: dict[int, Any] = {}
        # Python writes each signal's number to `_theirs` as it arrives, whatever the
        # main thread does; the thread reads it from `_ours`.
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._wakeup_before = -1
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def clean_up(self) -> None:
        """Lets a signal raise from now on, as there is something to clean up."""
        self._at_once = False

    def start(self) -> None:
        """Answers from now on the signals that were not set to be ignored."""
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        self._wakeup_before = signal.set_wakeup_fd(
            self._theirs.fileno(), warn_on_full_buffer=False
        )
        self._thread.start()

    def stop(self) -> None:
        """Gives the signals back to their handlers of before."""
        self._ended.set()
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        # Closing alone would not end the thread's `recv` where a forked child holds the
        # socket open as well. A child that comes here itself has closed it in `forget`.
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_WR)
        self._theirs.close()
        self._thread.join()
        self._ours.close()

    def forget(self) -> None:
        """Leaves, in a forked child, the signals and the thread to the parent."""
        signal.set_wakeup_fd(-1)
        self._theirs.close()
        self._ours.close()

    def _receive(self, number: int, frame: Any) -> None:
        del frame
        if self._at_once:
            _exit(number)
        # A second signal comes while the first one's exception unwinds: there is
        # nobody left to catch another one.
        self._at_once = True
        self._raised.set()
        raise EndedBySignal(number)

    def _listen(self) -> None:
        """Answers each signal that arrives, until the socket is closed; in a thread."""
        is_first = True
        while numbers := self._ours.recv(16):
            for number in numbers:
                handler = signal.getsignal(number)
                # The numbers of all signals come here: of SIGALRM and SIGCHLD as well,
                # and of those that the program has come to handle itself.
                if number in self._before and (
                    _is_ours(handler) or handler is signal.default_int_handler
                ):
                    self._answer(number, handler, is_first=is_first)
                    is_first = False

    def _answer(self, number: int, handler: Any, *, is_first: bool) -> None:
        """Says that a signal is noted, or sees to it that the process ends in time."""
        # A module for `default_int_handler`, which matches none of the classes below.
        owner = handler.__self__
        if isinstance(owner, Notes) and (is_first or number != signal.SIGINT):
            owner.say(number)
        elif not is_first:
            self._end_unless(lambda: self._ended.wait(_UNWIND_SECS), number)
        elif owner is self:
            self._end_unless(lambda: self._raised.wait(_DEAF_SECS), number)

    def _end_unless(self, answered: Callable[[], bool], number: int) -> None:
        """Ends the process when `answered`, which waits, returns False."""

        # In one more thread: this one goes on listening.
        def watch() -> None:
            if not answered() and not self._ended.is_set():
                _exit(number)

        threading.Thread(target=watch, daemon=True).start()


_answers: Answers | None = None


def _is_ours(handler: Any) -> bool:
    """Whether a signal's handler is this module's, and not the program's."""
    return isinstance(getattr(handler, "__self__", None), (Answers, Notes))


def _forget() -> None:
    """Gives a forked child Python's own handlers: only the parent is to save."""
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
    """Answers SIGTERM and Ctrl-C while the block runs.

    Inside of another such block the outer one goes on answering. Python hands signals
    to the main thread: in any other thread nothing changes.

    Yields:
      The answers, for `Answers.clean_up`.
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
        # Python does not know that its handler was replaced below it, in C. To set the
        # same one once more puts it back there.
        signal.signal(signal.SIGTERM, handler)


class Notes:
    """A note of SIGTERM and of a first Ctrl-C; a second Ctrl-C interrupts at once.

    Python hands signals to the main thread: in any other thread nothing is noted.

    Attributes:
      received: number of the last signal; None while there was none.
    """

    def __init__(
        self, signals: Sequence[int] = _SIGNALS, *, answer: str = _STOPPING
    ) -> None:
        """Takes note of nothing before `start`.

        Args:
          signals: numbers of the signals to take note of.
          answer: line to write when a signal arrives, before the training can stop.
        """
        self.received: int | None = None
        self._signals = tuple(signals)
        self._answer = answer
        # Acquired once, by the handler or by the thread that listens, whichever comes
        # first: a lock, as the two may come at the same time.
        self._said = threading.Lock()
        self._before: dict[int, Any] = {}

    @property
    def are_taken(self) -> bool:
        """Whether signals are noted: between `start` and `stop`, in the main thread."""
        return bool(self._before)

    def start(self) -> None:
        """Takes note from now on; called after TensorFlow took SIGTERM for itself."""
        if not _is_main_thread() or self._before:
            return
        for number in self._signals:
            self._before[number] = signal.signal(number, self._receive)

    def stop(self) -> None:
        """Gives the signals back to their handlers of before."""
        for number, handler in self._before.items():
            # None stands for a handler that was not set by Python.
            signal.signal(number, handler or signal.SIG_DFL)
        self._before = {}

    def say(self, number: int) -> None:
        """Says that a signal came, given by its number; once, and in any thread."""
        if self._said.acquire(blocking=False):
            # Beneath a launcher, who answers Ctrl-C himself, stderr is a pipe.
            by_hand = number == signal.SIGINT and os.isatty(2)
            _write(self._answer + _CTRL_C * by_hand)

    def __enter__(self) -> "Notes":
        self.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.stop()

    def _receive(self, number: int, frame: Any) -> None:
        del frame
        self.received = number
        # From the first signal on, whichever it was, Ctrl-C interrupts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self._before.setdefault(signal.SIGINT, before)
        self.say(number)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _exit(number: int) -> None:
    _write(text_of(number))
    os._exit(code_of(number))


def _write(line: str) -> None:
    """Writes to stderr without its buffer, which may be in use as a signal comes."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{line}\n".encode())
