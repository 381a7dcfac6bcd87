"""Runs the trials of a sweep, each as the command itself in a process of its own.

Nothing is decided here about values: `study` suggests them. A trial is judged by its
process's exit code and by the record of evaluations in its model_dir, so that a sweep
that was killed, and the trials with it, goes on from what lies on disk.
"""

import collections
import contextlib
import dataclasses
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from pipeline.launcher.process_group import ProcessGroup
from pipeline.process import exit_codes
from pipeline.process.refusals import Refusal
from pipeline.trials import hparams, table
from pipeline.trials.folder import Folder, replace, writing
from pipeline.trials.goal import Goal
from pipeline.trials.search import Dimension, Value
from pipeline.trials.started_trial import Running, in_words, last_lines
from pipeline.trials.study import State, Study, Trial

_POLL_SECS = 0.2
_PRUNED, _STOPPED, _LATE = "pruned", "stopped", "late"


class TrialError(Refusal, RuntimeError):
    """A trial that ends its sweep: the next ones would end as it did."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How a sweep's trials are run.

    Attributes:
      command: returns program and arguments of a trial, of its values and its
        model_dir.
      dimensions: what is searched.
      goal: what trials are judged by.
      folder: the sweep's folder.
      trials: number of trials, those that are there included.
      slots: for each of the trials that run at a time what is added to its environment.
      environ: environment of all trials.
      timeout_secs: seconds after which no trial begins; None for no limit.
      trial_secs: seconds that a trial may run, over all its starts; None for any.
      max_restarts: how often in a row a trial that asks for it is started again
        without a new evaluation.
      max_failures: trials that fail in a row before the sweep ends.
      grace_secs: seconds from asking a trial to end until SIGKILL.
    """

    command: Callable[[Mapping[str, Value], pathlib.Path], Sequence[str]]
    dimensions: Sequence[Dimension]
    goal: Goal
    folder: Folder
    trials: int
    slots: Sequence[Mapping[str, str]] = ({},)
    environ: Mapping[str, str]
    timeout_secs: float | None = None
    trial_secs: float | None = None
    max_restarts: int = 5
    max_failures: int = 3
    grace_secs: float = 60


def say(text: str) -> None:
    """Writes a line of the sweep's own to stderr."""
    exit_codes.said(f"[sweep] {text}", 0)


class Runner:
    """The trials that run, and what follows from what they do.

    In each step:
        pass on signals
        read what running trials have reached, and prune
        ask those to end that have run for too long
        judge the trials that ended
        where trials were asked to end grace_secs ago: kill
        where there is room: start the next trial
    """

    def __init__(
        self,
        study: Study,
        plan: Plan,
        group: ProcessGroup,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the runner; starts nothing.

        Args:
          study: the trials.
          plan: how to run them.
          group: the group of their processes.
          clock: returns seconds that never go back.
        """
        self._study = study
        self._plan = plan
        self._group = group
        self._clock = clock
        self._began = clock()
        self._running: list[Running] = []
        rows = study.rows()
        # Those that a killed sweep has left, first.
        self._left = collections.deque(
            row.number for row in rows if row.state is State.OPEN
        )
        self._count = len(rows)
        self._failures = 0
        self._signum: int | None = None
        self._error: Refusal | None = None
        self._killed = False

    def run(self, received: collections.deque[int]) -> int:
        """Runs all trials to their end.

        Args:
          received: numbers of signals to this process, as they come.

        Returns:
          0 where all trials have ended; 75 or 130 after a signal.

        Raises:
          Refusal: a trial was refused, or too many have failed, or the folder cannot be
            written. The trials that ran are saved.
        """
        while True:
            self._step(received)
            if not self._running and (self._is_stopping or not self._has_next()):
                break
            time.sleep(_POLL_SECS)
        if self._error is not None:
            raise self._error
        if self._killed:
            return exit_codes.INTERRUPTED
        return 0 if self._signum is None else exit_codes.AGAIN

    @property
    def _is_stopping(self) -> bool:
        return self._signum is not None or self._error is not None

    def _step(self, received: collections.deque[int]) -> None:
        while received:
            self._pass_on(received.popleft())
        for each in list(self._running):
            code = each.process.poll()
            if code is not None:
                self._running.remove(each)
                each.log.close()
            elif self._clock() >= each.deadline:
                say(f"trial {each.trial.number} does not end: SIGKILL")
                each.kill()
            # A disk that is full, or a metric that the evaluation does not have: the
            # other trials are to be saved.
            with self._stopping_on_refusal():
                self._look(each)
                if code is None:
                    self._end_if_late(each)
                else:
                    self._keep_time(each)
                    self._judge(each, code)
        while not self._is_stopping and self._has_room() and self._has_next():
            with self._stopping_on_refusal():
                self._start_next()

    @contextlib.contextmanager
    def _stopping_on_refusal(self) -> Iterator[None]:
        try:
            yield
        except Refusal as error:
            self._stop(error)
        except OSError as error:  # No more processes, or a disk that fails.
            self._stop(TrialError(f"the sweep cannot go on: {error}"))

    def _has_room(self) -> bool:
        return len(self._running) < len(self._plan.slots)

    def _has_next(self) -> bool:
        """Whether another trial is to begin, or to go on."""
        late = self._plan.timeout_secs
        if late is not None and self._clock() - self._began >= late:
            return False
        return bool(self._left) or self._count < self._plan.trials

    def _start_next(self) -> None:
        if goes_on := bool(self._left):
            trial = self._study.trial(self._left.popleft())
        else:
            trial = self._study.ask()
            self._count += 1
        words = table.values(trial.values, self._plan.dimensions)
        say(f"trial {trial.number} {'goes on' if goes_on else 'begins'} | {words}")
        curve = self._plan.goal.curve(self._plan.folder.model_dir(trial.number))
        # It may be that the sweep was killed between the evaluation and its answer.
        if trial.report(curve):
            self._prune(trial)
            return
        if self._is_late(trial.secs):
            self._end_late(trial, curve)
            return
        taken = {each.slot for each in self._running}
        slot = next(n for n in range(len(self._plan.slots)) if n not in taken)
        self._running.append(self._started(trial, slot, curve))

    def _started(
        self, trial: Trial, slot: int, curve: list[tuple[int, float]]
    ) -> Running:
        plan = self._plan
        model_dir = plan.folder.model_dir(trial.number)
        with writing(plan.folder.path):
            log = open(plan.folder.log(trial.number), "ab")  # noqa: SIM115
        command = plan.command(trial.values, model_dir)
        environ = {**plan.environ, **plan.slots[slot]}
        return Running(
            trial=trial,
            model_dir=model_dir,
            process=self._group.start(command, environ=environ, output=log),
            log=log,
            slot=slot,
            curve=curve,
            # As if it had begun now, with all that it has taken.
            began=self._clock() - trial.secs,
        )

    def _look(self, each: Running) -> None:
        """Reads what a trial has reached, and asks it to end where it is pruned."""
        goal, number = self._plan.goal, each.trial.number
        new = each.new_points(goal)
        if not new:
            return
        self._keep_time(each)
        for point in new:
            say(f"trial {number} | {table.point(goal, *point)}")
        if each.trial.report(each.curve) and not self._is_stopping:
            self._ask(each, _PRUNED)

    def _judge(self, each: Running, code: int) -> None:
        """Ends a trial by the exit code of its process, or starts it again."""
        trial, goal = each.trial, self._plan.goal
        if code == 0:
            self._done(trial)
        elif each.asked == _PRUNED:
            self._prune(trial)
        elif each.asked == _LATE:
            self._end_late(trial, each.curve)
        elif code == exit_codes.REFUSED:
            self._stop(
                TrialError(
                    f"trial {trial.number} was refused:\n{self._last_lines(trial)}\n"
                    "Mend it and start the same command again, which goes on, or give "
                    f"the trial up: --fail={trial.number}."
                )
            )
        elif each.asked == _STOPPED or self._is_stopping:
            say(f"trial {trial.number} is left at {self._where(trial, goal)}")
        elif code == exit_codes.AGAIN and each.restarts < self._plan.max_restarts:
            say(f"trial {trial.number} asks to be started again")
            again = self._started(trial, each.slot, each.curve)
            again.restarts = each.restarts + 1
            self._running.append(again)
        else:
            self._fail(trial, in_words(code))

    def _done(self, trial: Trial) -> None:
        goal, folder = self._plan.goal, self._plan.folder.model_dir(trial.number)
        goal.check_ended(folder)
        curve = goal.curve(folder)
        found = goal.result(curve)
        if found is None:
            self._fail(trial, f"{goal.metric} is NaN")
            return
        trial.done(*found)
        self._failures = 0
        hparams.write(
            self._plan.folder.path, self._plan.dimensions, goal, goal.folder(folder)
        )
        best = self._study.best(maximize=goal.maximize)
        say(
            f"trial {trial.number} is done | {table.point(goal, *found)} | "
            f"best {table.number(best.result)}, trial {best.number} | {self._ended()}"
        )
        self._write_table()

    def _prune(
        self, trial: Trial, why: str = "others were better at that step"
    ) -> None:
        trial.prune()
        self._failures = 0
        say(f"trial {trial.number} is pruned, {why} | {self._ended()}")
        self._write_table()

    def _keep_time(self, each: Running) -> None:
        """Stores how long a trial has run, so that it counts over restarts."""
        if self._plan.trial_secs is not None:
            each.trial.took(self._clock() - each.began)

    def _is_late(self, secs: float) -> bool:
        return self._plan.trial_secs is not None and secs >= self._plan.trial_secs

    def _end_if_late(self, each: Running) -> None:
        if not each.asked and self._is_late(self._clock() - each.began):
            self._keep_time(each)
            self._ask(each, _LATE)

    def _end_late(self, trial: Trial, curve: Sequence[tuple[int, float]]) -> None:
        """Ends a trial that has taken too long, by what it has reached."""
        why = f"it has run for --trial_timeout, {self._plan.trial_secs:g} s"
        # A trial that has learned nothing yet has nothing to count by.
        if any(step for step, _ in curve):
            self._prune(trial, why)
        else:
            self._fail(trial, why)

    def _fail(self, trial: Trial, reason: str) -> None:
        say(f"trial {trial.number} failed: {reason}\n{self._last_lines(trial)}")
        trial.fail(reason)
        self._failures += 1
        self._write_table()
        if self._failures >= self._plan.max_failures:
            self._stop(
                TrialError(
                    f"{self._failures} trials in a row have failed, the last one, "
                    f"trial {trial.number}, as {reason}: see to it, and start the same "
                    "command again, or allow more: --max_failures=100."
                )
            )

    def _stop(self, error: Refusal) -> None:
        """Ends the sweep by an error, once the other trials are saved."""
        self._error = self._error or error
        self._ask_all()

    def _pass_on(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if self._signum is not None and signum == signal.SIGINT:
            say(f"{name} again: SIGKILL")
            self._killed = True
            self._group.kill()
            return
        self._signum = self._signum or signum
        running = ", ".join(str(each.trial.number) for each in self._running)
        say(f"got {name}; trials that are to save and end: {running or 'none'}")
        self._ask_all()

    def _ask_all(self) -> None:
        for each in self._running:
            self._ask(each, _STOPPED)

    def _ask(self, each: Running, why: str) -> None:
        each.ask(why, self._clock() + self._plan.grace_secs)

    def _where(self, trial: Trial, goal: Goal) -> str:
        curve = goal.curve(self._plan.folder.model_dir(trial.number))
        return table.point(goal, *curve[-1]) if curve else "its beginning"

    def _last_lines(self, trial: Trial) -> str:
        return last_lines(self._plan.folder.log(trial.number))

    def _ended(self) -> str:
        ended = sum(row.state is not State.OPEN for row in self._study.rows())
        return f"{ended} of {max(self._plan.trials, self._count)} ended"

    def _write_table(self) -> None:
        plan = self._plan
        text = table.as_csv(self._study.rows(), plan.dimensions, plan.goal)
        replace(plan.folder.table, text)
