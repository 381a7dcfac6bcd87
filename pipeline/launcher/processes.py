# SPDX-License-Identifier: Apache-2.0
"""Runs the tasks of a cluster together, and ends them together."""

import collections
import contextlib
import dataclasses
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from ..errors import EXIT_REFUSED, EXIT_RESTART
from ..run.durations import clock
from ..run.signals import SIGNALS
from .group import ProcessGroup
from .num_workers import NumWorkers

_POLL_SECS = 0.1
# A task that loses another one may end before that one does.
_BLAME_SECS = 5.0
# Longest wait for the last lines of a task: its own child processes may still hold the pipe.
_LAST_LINES_SECS = 1.0
# Silence of all tasks after which the launcher logs what each of them wrote last.
_SILENCE_SECS = 60.0
# Seconds between two lines about the state: while all run, and while the last ones run.
_STATE_SECS, _LAST_SECS = 600.0, 60.0
_PREFIX = re.compile(rb"[IWEF]\d{4} [\d:.]+ +\d+ \S+\] ")  # Of absl.
_STEP = re.compile(rb"\] train \| step (\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One process to run.

    Attributes:
      name: name in front of its lines, 'worker 1'.
      command: program and arguments.
      environment: all environment variables.
      is_chief: whether the others are expected to end soon after it.
      replaceable: whether it can be started again while the others continue.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    is_chief: bool = False
    replaceable: bool = False


@dataclasses.dataclass(frozen=True)
class End:
    """The end of one task at a time in seconds; the code is 128 + n for signal n."""

    task: Task
    code: int
    at: float

    def __str__(self) -> str:
        if self.code > 128 and self.code - 128 in list(signal.Signals):
            return f"{self.task.name} was killed by {signal.Signals(self.code - 128).name}"
        return f"{self.task.name} exited with {self.code}"


@contextlib.contextmanager
def caught_signals() -> Iterator[collections.deque[int]]:
    """Yields the signals that arrive in the block; ignored ones stay ignored, as by nohup."""
    received: collections.deque[int] = collections.deque()
    numbers = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {n: signal.signal(n, lambda number, _: received.append(number)) for n in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(
    make_tasks: Callable[[], Sequence[Task]],
    *,
    grace_secs: float,
    exit_secs: float,
    max_restarts: int,
    workers: NumWorkers | None = None,
) -> int:
    """Runs tasks until all have ended; no process is left.

    Args:
      make_tasks: returns the tasks of a start, each with another name.
      grace_secs: seconds from asking tasks to end until SIGKILL.
      exit_secs: seconds in which the others must end after the leading task ended with 0.
      max_restarts: number of restarts after a failure, of a replaceable task or of all.
      workers: chooses the number of workers that `make_tasks` makes; None if it never changes.
        Its restarts do not count.

    Returns:
      0 if every exit code was 0, or that of the first failure; 128 + n for signal n.
    """
    with caught_signals() as received:
        while True:
            with ProcessGroup() as group:
                cluster = _Cluster(group, grace_secs, exit_secs, max_restarts, workers)
                if workers:
                    workers.begin()
                for task in make_tasks():
                    cluster.start(task)
                while cluster.running:
                    time.sleep(_POLL_SECS)
                    cluster.step(received)
                code = cluster.code()
            # A refusal would repeat itself, unless it is of a smaller number of workers.
            is_smaller = workers and workers.now < workers.most
            if cluster.signals or not code or (code == EXIT_REFUSED and not is_smaller):
                return code
            max_restarts = cluster.restarts_left
            if cluster.grows:
                continue
            is_worker = cluster.failure and not cluster.failure.task.replaceable
            if workers and is_worker and (text := workers.failed()):
                log(text)
                continue
            max_restarts -= 1
            if max_restarts < 0:
                return code
            log(f"starting all tasks again, {max_restarts} restarts left")


class _Cluster:
    """The tasks of one start.

    note which tasks have ended
    pass on signals
    unless the tasks are ending already:
        start a replaceable task again if it failed
        ask all to end if a task failed, or did not follow the leading one
        ask all to end if more workers can be started
        log the state at times, and what each task wrote last if all have been silent for long
    if they were asked to end grace_secs ago: kill them
    """

    def __init__(
        self,
        group: ProcessGroup,
        grace_secs: float,
        exit_secs: float,
        restarts_left: int,
        workers: NumWorkers | None,
    ) -> None:
        self.running: dict[str, tuple[Task, subprocess.Popen[bytes]]] = {}
        self.restarts_left = restarts_left
        self.signals: list[signal.Signals] = []  # To the launcher.
        self.failure: End | None = None  # The one that ended the others.
        self.grows = False  # The tasks end so that more workers can start.
        self._group, self._grace_secs, self._exit_secs = group, grace_secs, exit_secs
        self._workers = workers
        self._threads: dict[str, list[threading.Thread]] = {}
        self._last: dict[str, bytes] = {}  # The last line of each task.
        self._began = self._state_at = self._silent_since = time.monotonic()
        self._report_secs = _SILENCE_SECS
        self._step: tuple[int, float] | None = None  # The last step in a line, and when.
        self._ends: list[End] = []
        self._code: int | None = None  # Known when a failure ends the others.
        self._kill_at = math.inf
        self._killed = False

    def start(self, task: Task) -> None:
        process = self._group.start(task.command, task.environment)
        self.running[task.name] = task, process
        self._threads[task.name] = [
            threading.Thread(target=self._copy_lines, args=(task.name, pipe, to), daemon=True)
            for pipe, to in ((process.stdout, 1), (process.stderr, 2))
        ]
        for thread in self._threads[task.name]:
            thread.start()

    def step(self, received: collections.deque[int]) -> None:
        self._note_ends()
        while received:
            self._pass_on(signal.Signals(received.popleft()))
        if self._code is None and not self.signals:
            self._replace()
            self._judge()
            self._grow()
            self._log_state()
            self._log_silence()
        elif self.running and time.monotonic() >= self._kill_at:
            self._kill(f"{', '.join(self.running)} did not end within {self._grace_secs:g} s")

    def code(self) -> int:
        """Returns the exit code, after the last task has ended."""
        if self._code is not None:
            return self._code
        self.failure = self._first_failure()
        if self.failure is not None:
            log(str(self.failure))
            return self.failure.code
        return 128 + self.signals[0] if self._killed else 0

    def _note_ends(self) -> None:
        codes = {name: process.poll() for name, (_, process) in self.running.items()}
        ended = {name: code for name, code in codes.items() if code is not None}
        if not ended:
            return
        until = time.monotonic() + _LAST_LINES_SECS
        for name, code in ended.items():
            for thread in self._threads[name]:
                thread.join(max(0.0, until - time.monotonic()))
            task, _ = self.running.pop(name)
            if not self._killed:  # After SIGKILL to all, the codes mean nothing.
                self._ends.append(End(task, code if code >= 0 else 128 - code, time.monotonic()))

    def _pass_on(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if self.signals.count(signal.SIGINT) > 1:
            self._kill("got a second SIGINT")
        else:
            self._ask_to_end(number, f"got {number.name}")

    def _replace(self) -> None:
        if any(end.task.is_chief for end in self._ends):
            return  # The others are about to end.
        for end in list(self._ends):
            failed = end.code not in (0, EXIT_REFUSED)  # A refusal would repeat itself.
            if end.task.replaceable and failed and self.restarts_left:
                self.restarts_left -= 1
                self._ends.remove(end)
                log(f"{end}: starting it again, {self.restarts_left} restarts left")
                self.start(end.task)

    def _judge(self) -> None:
        leader = next((end for end in self._ends if end.task.is_chief), None)
        if failure := self._first_failure():
            self.failure, self._code, reason = failure, failure.code, str(failure)
        elif leader and self.running and time.monotonic() - leader.at >= self._exit_secs:
            late = f"{', '.join(self.running)} did not end within {self._exit_secs:g} s"
            self._code = 1
            reason = f"{late} after {leader.task.name}. Set --exit_secs to wait longer"
        if self._code is not None:
            self._ask_to_end(signal.SIGTERM, reason)

    def _grow(self) -> None:
        may_grow = self._code is None and self._workers and not self._ends
        if may_grow and self._workers.grows():
            self.grows, self._code = True, EXIT_RESTART
            reason = f"a checkpoint was written: starting all {self._workers.most} workers"
            self._ask_to_end(signal.SIGTERM, reason)

    def _log_state(self) -> None:
        now = time.monotonic()
        secs = _LAST_SECS if self._ends else _STATE_SECS
        if self._code is not None or now - self._state_at < secs:
            return
        self._state_at = now
        parts = [f"running for {clock(now - self._began)}: {', '.join(self.running)}"]
        parts += [f"{end} {clock(now - end.at)} ago" for end in self._ends]
        if self._step:
            step, at = self._step
            parts.append(f"step {step}, {clock(now - at)} ago")
        log(f"state | {' | '.join(parts)}")

    def _log_silence(self) -> None:
        secs = time.monotonic() - self._silent_since
        if secs < _SILENCE_SECS:
            self._report_secs = _SILENCE_SECS
        elif secs >= self._report_secs:
            self._report_secs = min(2 * self._report_secs, self._report_secs + _STATE_SECS)
            for name, (_, process) in self.running.items():
                last = _PREFIX.sub(b"", self._last.get(name, b"nothing")).decode(errors="replace")
                log(f"no line for {secs:.0f} s | {name}, process {process.pid}, wrote: {last}")

    def _first_failure(self) -> End | None:
        """Returns the failure that ended the others; None if there is none, or not known yet."""
        failed = [end for end in self._ends if end.code]
        own = [end for end in failed if end.code != EXIT_RESTART]  # 75: it lost another task.
        if own:
            return own[0]
        is_final = failed and (not self.running or time.monotonic() - failed[0].at >= _BLAME_SECS)
        return failed[0] if is_final else None

    def _ask_to_end(self, number: signal.Signals, reason: str) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + self._grace_secs)
        names = ", ".join(self.running)
        asked = f"; {number.name} to {names}, SIGKILL {self._grace_secs:g} s later"
        log(f"{reason}{asked if names else ''}")
        for _, process in self.running.values():  # Each task ends the processes that it started.
            process.send_signal(number)

    def _copy_lines(self, name: str, pipe: IO[bytes], to: int) -> None:
        """Writes each line of a task, with its name in front, to a file descriptor."""
        with pipe:
            for line in pipe:
                self._last[name] = line.removesuffix(b"\n")
                self._silent_since = time.monotonic()
                if step := _STEP.search(line):
                    self._step = int(step[1]), self._silent_since
                try:
                    _write(to, b"[%s] %s\n" % (name.encode(), self._last[name]))
                except OSError:  # Nobody reads there any more. The guard ends the tasks.
                    os._exit(128 + signal.SIGPIPE)

    def _kill(self, reason: str) -> None:
        log(f"{reason}: SIGKILL to {', '.join(self.running)}")
        self._killed = True
        self._kill_at = math.inf
        for _, process in self.running.values():
            process.kill()


def log(text: str) -> None:
    """Writes a line of the launcher to stderr."""
    with contextlib.suppress(OSError):
        _write(2, f"[launch] {text}\n".encode())


_write_lock = threading.Lock()


def _write(to: int, line: bytes) -> None:
    with _write_lock:
        while line:
            line = line[os.write(to, line) :]
