"""Runs the processes of a cluster together, and ends them together, as `torchrun` does.

The commands of the tasks come in, and their output and one exit code go out. Nothing
here knows what the tasks do: it goes by their exit codes and by signals alone.
"""

import collections
import contextlib
import dataclasses
import math
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

from pipeline.launcher.process_group import ProcessGroup
from pipeline.launcher.task_lines import Output
from pipeline.process import exit_codes

# The exit code of a task that ended because another task did.
LOST_PEER = exit_codes.AGAIN

_POLL_SECS = 0.1
# How long the task that failed is waited for once another one has lost it. A process
# that fails drops its connections first and may take seconds to end: its peers can end
# before it does.
_BLAME_SECS = 5.0
# Longest time to read the last words of a task, whose own processes may go on writing.
_DRAIN_SECS = 1.0
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One process to run.

    Attributes:
      name: name in front of its lines and in messages, 'worker 1'.
      command: program and arguments.
      environ: whole environment of the process.
      leads: whether the others are expected to end soon after it.
      replaceable: whether it can be started again while the others go on.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    leads: bool = False
    replaceable: bool = False


@dataclasses.dataclass
class Restarts:
    """A count of restarts after a failure, of one task or of all.

    Attributes:
      allowed: restarts at the most.
      done: restarts up to now.
    """

    allowed: int = 0
    done: int = 0

    @property
    def left(self) -> bool:
        """Whether another restart is allowed."""
        return self.done < self.allowed

    def take(self) -> str:
        """Counts one restart, and returns 'restart 1 of 3'."""
        self.done += 1
        return f"restart {self.done} of {self.allowed}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a run of all tasks.

    Attributes:
      code: exit code: 0 only where every task's was; 128 + n for signal n.
      reason: cause of another code than 0, 'worker 1 was killed by SIGKILL'.
      signum: first signal that asked this process to end; None without one.
    """

    code: int
    reason: str = ""
    signum: int | None = None


@dataclasses.dataclass(frozen=True)
class End:
    """The end of one task.

    Attributes:
      name: name of the task.
      returncode: exit code, or -n for signal n, as `subprocess` has it.
      time: when the end was seen, in seconds of a clock that never goes back.
    """

    name: str
    returncode: int
    time: float

    def __str__(self) -> str:
        """Returns 'worker 1 exited with 3', say."""
        if self.returncode >= 0:
            asks = " (to be started again)" if self.returncode == LOST_PEER else ""
            return f"{self.name} exited with {self.returncode}{asks}"
        signum = -self.returncode
        return f"{self.name} was killed by {_SIGNAL_NAMES.get(signum, signum)}"

    @property
    def code(self) -> int:
        """The exit code as shells count, 128 + n for signal n."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


def first_failure(ends: Sequence[End], *, now: float) -> End | None:
    """Returns the end that made the others end.

    Args:
      ends: ends of tasks, in the order in which they were seen.
      now: seconds, by the clock of the ends.

    Returns:
      The first failure, but rather a task's own than the loss of a peer; None where no
      task failed, and for five seconds after a loss while it is not known of whom.
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
      tasks: tasks to run, each with a name of its own.
      grace_secs: seconds from asking a task to end until SIGKILL.
      exit_secs: seconds that the others have to end after a task that leads has ended
        with 0.
      restarts: count of restarts, to which those of replaceable tasks are added; None
        allows none.
    """
    with caught_signals() as received, Output() as output, ProcessGroup() as group:
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
    """One run of all tasks: what is known of it, and what follows from that.

    In each step:
        note which tasks ended
        pass on signals
        where a task failed that can be replaced: start it again
        where another task failed, or is overdue: ask the others to end
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
        # The first signal to this process. From then on nothing is judged: the tasks'
        # own exit codes say how they ended.
        self._signum: int | None = None
        # The outcome of a run that ends without a signal to this process, by a failure.
        self._verdict: Outcome | None = None
        # When the tasks that were asked to end are killed.
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
        """Returns how the run ended, once no task runs any more."""
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
        # Their last words first, then the lines about their end.
        self._output.drain(secs=_DRAIN_SECS)
        for name in ended:
            end = End(name, self.running.pop(name).returncode, now)
            # After SIGKILL to all an end says nothing about the task.
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
        # SIGHUP means the same, and no task handles it.
        self._send(
            signal.SIGTERM if signum == signal.SIGHUP else signum, reason=f"got {name}"
        )

    def _replace(self) -> None:
        """Starts the replaceable tasks that failed again, as far as is allowed."""
        if any(self._tasks[end.name].leads for end in self._ends):
            return  # The others are about to end.
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
        """Ends all tasks where one failed, nobody reads, or some are overdue."""
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
        # Not to the group: processes that a task has started are to serve it while it
        # saves, and it ends them itself.
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
def caught_signals() -> Iterator[collections.deque[int]]:
    """Collects the signals that ask this process to end, in their order.

    Yields:
      Their numbers, as they come.
    """
    received: collections.deque[int] = collections.deque()
    before = {}
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The program runs under nohup, which has SIGHUP ignored on purpose.
        if signum == signal.SIGHUP and signal.getsignal(signum) == signal.SIG_IGN:
            continue
        before[signum] = signal.signal(signum, lambda s, _: received.append(s))
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
