"""Processes that run and end together, as `torchrun` has them."""

import collections
import contextlib
import dataclasses
import math
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

from pipeline import exit_codes
from pipeline.process_group import ProcessGroup
from pipeline.task_lines import Output

# What a task exits with that ended because another one did.
LOST_PEER = exit_codes.AGAIN

_POLL_SECS = 0.1
# A process that fails drops its connections first and may take seconds to end, so that
# those who lost it can end before it does.
_BLAME_SECS = 5.0
_DRAIN_SECS = 1.0
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One process to run.

    Attributes:
      name: What its lines and the messages call it, 'worker 1'.
      command: Program and arguments.
      environ: Its whole environment.
      leads: Whether the others are expected to end soon after it.
      replaceable: Whether it can be started again while the others go on.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    leads: bool = False
    replaceable: bool = False


@dataclasses.dataclass
class Restarts:
    """How often tasks are started again after a failure, one of them or all.

    Attributes:
      allowed: How often they may be.
      done: How often they were.
    """

    allowed: int = 0
    done: int = 0

    @property
    def left(self) -> bool:
        """Whether another one is allowed."""
        return self.done < self.allowed

    def take(self) -> str:
        """Counts one; 'restart 1 of 3'."""
        self.done += 1
        return f"restart {self.done} of {self.allowed}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run of all tasks ended.

    Attributes:
      code: Exit code, 0 only if every task's was; 128 + n for signal n.
      reason: Such as 'worker 1 was killed by SIGKILL'; empty where code is 0.
      signum: The first signal that asked this process to end, None without one.
    """

    code: int
    reason: str = ""
    signum: int | None = None


@dataclasses.dataclass(frozen=True)
class End:
    """A task's end: its name, subprocess's returncode, and when it was seen."""

    name: str
    returncode: int
    time: float

    def __str__(self) -> str:
        """Such as 'worker 1 exited with 3'."""
        if self.returncode >= 0:
            asks = " (to be started again)" if self.returncode == LOST_PEER else ""
            return f"{self.name} exited with {self.returncode}{asks}"
        signum = -self.returncode
        return f"{self.name} was killed by {_SIGNAL_NAMES.get(signum, signum)}"

    @property
    def code(self) -> int:
        """As a shell has it: 128 + n for signal n."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


def first_failure(ends: Sequence[End], *, now: float) -> End | None:
    """The end that made the others end.

    Args:
      ends: in the order in which they were seen.
      now: until it is clear whom a task lost, None is returned: for five seconds.
    """
    failed = [end for end in ends if end.returncode]
    for end in failed:
        if end.returncode != LOST_PEER:
            return end
    return failed[0] if failed and now - failed[0].time >= _BLAME_SECS else None


def run_once(
    tasks: Sequence[Task],
    *,
    grace_secs: float,
    exit_secs: float,
    restarts: Restarts | None = None,
) -> Outcome:
    """Starts all tasks and returns when the last one has ended.

    The first task that fails ends the others, unless it can be replaced. SIGTERM,
    SIGINT and SIGHUP to this process are passed on. No process is left, whatever ends
    this one.

    Args:
      tasks: what to run.
      grace_secs: between asking a task to end and SIGKILL.
      exit_secs: that the others have to end after a task that leads ended with 0.
      restarts: for tasks that are replaceable, which take of it; None for no restart.
    """
    with _caught_signals() as received, Output() as output, ProcessGroup() as group:
        run = _Run(
            group,
            output,
            grace_secs=grace_secs,
            exit_secs=exit_secs,
            restarts=restarts or Restarts(),
        )
        run.start(tasks)
        while run.running:
            output.pass_on(timeout=_POLL_SECS)
            run.step(received, now=time.monotonic())
        return run.outcome()


class _Run:
    """What is known of one run, and what follows from it.

    In each step:
        note which tasks ended
        pass on signals
        where one failed that can be replaced: start it again
        where a task failed or is overdue: ask the others to end
        where they were asked grace_secs ago: kill
    """

    def __init__(
        self,
        group: ProcessGroup,
        output: Output,
        *,
        grace_secs: float,
        exit_secs: float,
        restarts: Restarts,
    ) -> None:
        self.running: dict[str, subprocess.Popen] = {}
        self._group = group
        self._output = output
        self._grace_secs = grace_secs
        self._exit_secs = exit_secs
        self._restarts = restarts
        self._tasks: dict[str, Task] = {}
        self._ends: list[End] = []
        self._interrupts = 0
        # The first one; after it the tasks' own codes say how it went.
        self._signum: int | None = None
        # What is held against the run without one.
        self._verdict: Outcome | None = None
        # When those that were asked to end are killed.
        self._deadline = math.inf
        self._killed = False

    def start(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self._start(task)
        pids = [f"{name} is {p.pid}" for name, p in self.running.items()]
        self._output.say(f"processes: {', '.join(pids)}")

    def step(self, received: collections.deque[int], *, now: float) -> None:
        self._note_ends(now)
        while received:
            self._pass_on(received.popleft(), now)
        if self._verdict is None and self._signum is None:
            self._replace()
            self._judge(now)
        elif now >= self._deadline and self.running:
            names = ", ".join(self.running)
            self._kill(f"{names} did not end within {self._grace_secs:g} s: SIGKILL")

    def outcome(self) -> Outcome:
        """Of a run in which nothing runs any more."""
        if self._verdict is not None:
            return dataclasses.replace(self._verdict, signum=self._signum)
        failure = first_failure(self._ends, now=math.inf)
        if failure is not None:
            self._output.say(str(failure))
            code, reason = failure.code, str(failure)
        elif self._killed:
            code, reason = 128 + self._signum, f"got {_SIGNAL_NAMES[self._signum]}"
        else:
            code, reason = 0, ""
        return Outcome(code=code, reason=reason, signum=self._signum)

    def _start(self, task: Task) -> subprocess.Popen:
        process = self._group.start(task.command, environ=task.environ)
        self._tasks[task.name] = task
        self.running[task.name] = process
        self._output.add(task.name, process)
        return process

    def _note_ends(self, now: float) -> None:
        ended = [n for n, process in self.running.items() if process.poll() is not None]
        if not ended:
            return
        # Their last words come before what is said about them.
        self._output.drain(secs=_DRAIN_SECS)
        for name in ended:
            end = End(name, self.running.pop(name).returncode, now)
            if not self._killed:
                self._ends.append(end)

    def _pass_on(self, signum: int, now: float) -> None:
        self._interrupts += signum == signal.SIGINT
        name = _SIGNAL_NAMES[signum]
        if self._interrupts > 1 and signum == signal.SIGINT:
            self._kill(f"{name} again: SIGKILL")
            return
        self._signum = self._signum or signum
        self._deadline = min(self._deadline, now + self._grace_secs)
        # Nothing handles SIGHUP; it means the same.
        self._send(
            signal.SIGTERM if signum == signal.SIGHUP else signum, reason=f"got {name}"
        )

    def _replace(self) -> None:
        """Starts tasks again that failed and whose peers do without them meanwhile."""
        if any(self._tasks[end.name].leads for end in self._ends):
            return  # All are about to end.
        for end in list(self._ends):
            task = self._tasks[end.name]
            # Another start would be refused for the same reason.
            failed = end.returncode not in (0, exit_codes.REFUSED)
            if task.replaceable and failed and self._restarts.left:
                self._ends.remove(end)
                pid = self._start(task).pid
                self._output.say(
                    f"{end}; {self._restarts.take()}, of this task alone: process {pid}"
                )

    def _judge(self, now: float) -> None:
        """Ends all where one failed, none reads the output, or some are overdue."""
        failure = first_failure(self._ends, now=now if self.running else math.inf)
        led = [end for end in self._ends if self._tasks[end.name].leads]
        if failure is not None:
            self._verdict = Outcome(code=failure.code, reason=str(failure))
        elif self._output.closed:
            code = 128 + signal.SIGPIPE
            self._verdict = Outcome(code=code, reason="nobody reads the output")
        elif led and self.running and now - led[0].time >= self._exit_secs:
            reason = (
                f"{', '.join(self.running)} did not end within {self._exit_secs:g} s "
                f"of {led[0].name}; --exit_secs allows more"
            )
            self._verdict = Outcome(code=1, reason=reason)
        if self._verdict is not None:
            self._deadline = now + self._grace_secs
            self._send(signal.SIGTERM, reason=self._verdict.reason)

    def _send(self, signum: int, *, reason: str) -> None:
        # To the tasks alone: what they started is theirs to end while they save.
        for process in self.running.values():
            process.send_signal(signum)
        if not self.running:
            self._output.say(reason)
            return
        self._output.say(
            f"{reason}; {_SIGNAL_NAMES[signum]} to {', '.join(self.running)}, SIGKILL "
            f"{self._grace_secs:g} s later"
        )

    def _kill(self, text: str) -> None:
        self._output.say(text)
        self._killed = True
        self._deadline = math.inf
        self._group.kill()


@contextlib.contextmanager
def _caught_signals() -> Iterator[collections.deque[int]]:
    """Collects the signals that ask this process to end, in their order."""
    received: collections.deque[int] = collections.deque()
    before = {}
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # nohup has it ignored on purpose.
        if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
            continue
        before[signum] = signal.signal(signum, lambda s, _: received.append(s))
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
