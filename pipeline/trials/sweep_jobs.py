"""What a sweep is asked for: to run its trials, to print their commands, to collect.

The flags come in, checked, and an exit code goes out. What is written to stdout is for
other programs and for the end: commands, the table, the best trial.
"""

import collections
import contextlib
import dataclasses
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from pipeline.launcher import processes
from pipeline.launcher.process_group import ProcessGroup
from pipeline.process import exit_codes
from pipeline.trials import goal as goal_lib
from pipeline.trials import hparams, table
from pipeline.trials.definition import OF_GOAL, Definition
from pipeline.trials.folder import Folder, writing
from pipeline.trials.runner import Plan, Runner, say
from pipeline.trials.study import State, Study

_POLL_SECS = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """A sweep, and what is wanted of it.

    Attributes:
      definition: what is tried, and by what it is judged.
      folder: the sweep's folder.
      trials: number of trials, those that are there included; None for those of a grid.
      sampler: one of `sweep_flags.SAMPLERS`.
      pruner: one of `sweep_flags.PRUNERS`.
      seed: seed of what is suggested.
      given_up: numbers of trials that are to count as failed.
      python: interpreter as it is typed, for commands that are printed.
      say: writes a line to stdout.
    """

    definition: Definition
    folder: Folder
    trials: int | None
    sampler: str
    pruner: str
    seed: int
    given_up: Sequence[int]
    python: str
    say: Callable[[str], object]


def run(job: Job, plan: Mapping[str, object]) -> int:
    """Runs all trials here, and says how they ended.

    Args:
      job: the sweep.
      plan: fields of `Plan` that flags give.

    Returns:
      The exit code: 0 where all trials have ended and one has a result, 1 where none
      has; 75 or 130 after a signal; that of the check where it refuses the command.

    Raises:
      Refusal: a trial was refused, or too many have failed.
    """
    with (
        processes.caught_signals() as received,
        job.folder.held(),
        ProcessGroup() as group,
    ):
        code = _check(job, plan["environ"], group, received)
        if code:
            return code
        study = _opened(job)
        runner = Runner(
            study,
            Plan(
                command=lambda values, model_dir: job.definition.command(
                    values, model_dir, python=sys.executable
                ),
                dimensions=job.definition.dimensions,
                goal=job.definition.goal,
                folder=job.folder,
                trials=_trials(job, study),
                **plan,
            ),
            group,
        )
        code = runner.run(received)
    return code or _said(job, study)


def print_commands(job: Job, environ: Mapping[str, str]) -> int:
    """Fixes the values of all trials, and prints the commands of those not ended.

    Args:
      job: the sweep.
      environ: environment of the check.

    Returns:
      The exit code.
    """
    with (
        processes.caught_signals() as received,
        job.folder.held(),
        ProcessGroup() as group,
    ):
        code = _check(job, environ, group, received)
        if code:
            return code
        study = _opened(job)
        rows = study.rows()
        numbers = [row.number for row in rows if row.state is State.OPEN]
        trials = [study.trial(number) for number in numbers]
        trials += [study.ask() for _ in range(len(rows), _trials(job, study))]
        for trial in trials:
            job.say(shlex.join(_typed(job, trial.number, trial.values)))
    return 0


def collect(job: Job) -> int:
    """Stores the results of trials that ran elsewhere, and says what is known.

    Args:
      job: the sweep.

    Returns:
      0, the exit code.
    """
    goal, folder = job.definition.goal, job.folder
    dimensions = job.definition.dimensions
    with folder.held():
        study = _opened(job)
        for row in study.rows():
            model_dir = folder.model_dir(row.number)
            if row.state is not State.OPEN:
                continue
            trial = study.trial(row.number)
            curve = goal.curve(model_dir)
            trial.report(curve)
            if not goal_lib.has_ended(model_dir, curve):
                continue
            goal.check_ended(model_dir)
            found = goal.result(curve)
            if found is None:
                trial.fail(f"{goal.metric} is NaN")
            else:
                trial.done(*found)
                hparams.write(folder.path, dimensions, goal, goal.folder(model_dir))
        return _said(job, study, waits=True)


def _opened(job: Job) -> Study:
    """Returns the study of a folder, once the sweep in it is known to be the same."""
    folder = job.folder
    study = Study(
        folder.study,
        job.definition.dimensions,
        goal=job.definition.goal,
        sampler=job.sampler,
        pruner=job.pruner,
        seed=job.seed,
    )
    folder.begin(job.definition.as_flags(), free=OF_GOAL if study.is_open else ())
    failed = [row.number for row in study.rows() if row.state is State.FAILED]
    # The same command may be typed again.
    for number in set(job.given_up).difference(failed):
        study.trial(number).fail("it was given up by --fail")
    return study


def _trials(job: Job, study: Study) -> int:
    return job.trials or len(study.grid or ())


def _check(
    job: Job,
    environ: Mapping[str, str],
    group: ProcessGroup,
    received: collections.deque[int],
) -> int:
    """Has the command itself check the names and values, in a process of its own.

    A program of the user's has no way to check them but to run.

    Returns:
      0 where all is well; else an exit code, and what the command wrote is shown.
    """
    command = job.definition.check_command(python=sys.executable)
    if command is None:
        return 0
    with contextlib.ExitStack() as stack:
        with writing(job.folder.path):
            output, errors = (stack.enter_context(_temporary(job)) for _ in "12")
        process = group.start(command, environ=environ, output=output, errors=errors)
        while (code := process.poll()) is None:
            if received:
                process.kill()
                process.wait()
                return exit_codes.AGAIN
            time.sleep(_POLL_SECS)
        if code:
            exit_codes.said(_text_of(errors), code)
            return code if code >= 0 else 128 - code
        # What follows the configuration is of this machine.
        job.folder.check_config(_text_of(output).partition("\njob ")[0])
    return 0


def _temporary(job: Job) -> BinaryIO:
    return tempfile.TemporaryFile(dir=job.folder.path)


def _text_of(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").rstrip("\n")


def _typed(job: Job, number: int, values: Mapping[str, object]) -> list[str]:
    """Returns the command of a trial as a user types it."""
    model_dir = job.folder.model_dir(number)
    return job.definition.command(values, model_dir, python=job.python)


def _said(job: Job, study: Study, *, waits: bool = False) -> int:
    """Says the table and the best trial, and returns the exit code.

    Args:
      job: the sweep.
      study: its trials.
      waits: whether trials that have not ended are to be expected.
    """
    definition, rows = job.definition, study.rows()
    for line in table.lines(rows, definition.dimensions, definition.goal):
        job.say(line)
    best = study.best(maximize=definition.goal.maximize)
    if best is None:
        say("no trial has a result")
        return 0 if waits else exit_codes.FAILED
    found = table.point(definition.goal, best.step, best.result)
    job.say(f"best: trial {best.number}, {found}:")
    job.say(f"  {shlex.join(_typed(job, best.number, best.values))}")
    return 0
