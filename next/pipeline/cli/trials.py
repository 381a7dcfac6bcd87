"""Runs the trials of a sweep, each as a process in its own model_dir."""

import collections
import csv
import dataclasses
import json
import math
import pathlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from ..errors import EXIT_RESTART, UserValueError
from ..launcher.group import ProcessGroup
from ..model_dir.evaluated import EVALUATIONS, Evaluated, parse
from .near import near
from .search import Dimension
from .study import Study

_PACKAGE = __package__.rpartition(".")[0]
_POLL_SECS = 0.2
_MAX_RESTARTS = 5  # Without a new evaluation.
_LOG_LINES = 15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep, as its folder records it.

    Attributes:
      arguments: flags of each trial, or a program and its flags.
      dimensions: names and their possible values.
      metric: metric of the evaluation that decides.
      maximize: whether larger values are better.
      evaluation: name of the EvalSpec; None if there is one without a name.
      value: 'last' or 'best' evaluation of a trial.
      launch: flags of the launcher if each trial is a cluster; None for one process.
    """

    arguments: Sequence[str]
    dimensions: Sequence[Dimension]
    metric: str
    maximize: bool
    evaluation: str | None = None
    value: str = "last"
    launch: Sequence[str] | None = None

    @property
    def is_program(self) -> bool:
        """Whether trials run a program of the user."""
        return bool(self.arguments) and not self.arguments[0].startswith("-")

    def command(self, model_dir: pathlib.Path, values: Mapping[str, Any]) -> list[str]:
        """Returns the whole command of a trial."""
        prefix = "--" if self.is_program else "--gin."
        flags = [f"{prefix}{each.binding(values[each.name])}" for each in self.dimensions]
        tail = [*self.arguments, *flags, f"--model_dir={model_dir}"]
        if self.launch is not None:
            return [sys.executable, "-m", f"{_PACKAGE}.launch", *self.launch, "--", *tail]
        return [sys.executable, *([] if self.is_program else ["-m", f"{_PACKAGE}.main"]), *tail]

    def evaluations(self, model_dir: pathlib.Path) -> list[Evaluated]:
        """Returns the evaluations of a trial so far.

        Raises:
          UserValueError: they do not have the metric as a number.
        """
        folder = "eval" if self.evaluation is None else f"eval_{self.evaluation}"
        path = model_dir / folder / EVALUATIONS
        found = parse(path.read_bytes()) if path.exists() else []
        for each in found:
            if not isinstance(each.metrics.get(self.metric), (int, float)):
                raise UserValueError(
                    f"--metric is {self.metric}: expected a number of the evaluation, which has "
                    f"{', '.join(each.metrics)}.{near(self.metric, each.metrics)} Set another "
                    "--sweep_dir with it."
                )
        return found

    def result(self, evaluations: Sequence[Evaluated]) -> float | None:
        """Returns the value by which a trial counts; None without one."""
        values = [each.metrics[self.metric] for each in evaluations]
        if self.value == "last" or not values:
            return values[-1] if values else None
        numbers = [value for value in values if not math.isnan(value)]
        return (max if self.maximize else min)(numbers, default=math.nan)


class Trials:
    """All trials of a sweep and their folder.

    record the trials that ended without this process
    until there are enough trials or something ends the sweep:
        start a process for each trial without one, as long as slots are free
        report new evaluations, end trials that are pruned
        record the trials that ended; start those again that ask for it
    """

    def __init__(
        self,
        sweep: Sweep,
        study: Study,
        folder: pathlib.Path,
        *,
        slots: Sequence[Mapping[str, str]] = ({},),
        environment: Mapping[str, str],
        num_trials: float = math.inf,
        max_failures: int = 3,
        grace_secs: float = 60.0,
        timeout_secs: float = math.inf,
    ) -> None:
        """Takes the parts.

        Args:
          sweep: what to run.
          study: who suggests values.
          folder: folder of the sweep.
          slots: environment variables of each trial that runs at one time.
          environment: environment variables of all trials.
          num_trials: number of trials in all.
          max_failures: failures in a row that end the sweep.
          grace_secs: seconds from SIGTERM to SIGKILL.
          timeout_secs: seconds after which no trial starts.
        """
        self._sweep, self._study, self._folder = sweep, study, folder
        self._environment, self._free = environment, list(slots)
        self._num_trials = min(num_trials, study.size)
        self._max_failures, self._failures = max_failures, 0
        self._grace_secs = grace_secs
        self._until = time.monotonic() + timeout_secs
        self._processes: list[_Process] = []
        self._signals: list[int] = []

    def model_dir(self, number: int) -> pathlib.Path:
        """Returns the model_dir of a trial."""
        return self._folder / f"trial-{number:04d}"

    def run(self, received: collections.deque[int]) -> int:
        """Runs trials until there are enough.

        Args:
          received: signals to this process.

        Returns:
          0 if a trial has a result, 1 if none has; 75 after a signal, 130 after a second
          Ctrl-C.
        """
        self.collect()
        waiting = collections.deque(self._study.running())
        with ProcessGroup() as group:
            while True:
                self._fill(group, waiting)
                if not self._processes:
                    break
                time.sleep(_POLL_SECS)
                while received:
                    self._signals.append(received.popleft())
                    self._end_all()
                if self._signals.count(signal.SIGINT) > 1:
                    return 128 + signal.SIGINT
                for process in list(self._processes):
                    self._watch(process, group)
        if self._signals:
            return EXIT_RESTART
        return 0 if any("value" in trial.user_attrs for trial in self._study.begun()) else 1

    def commands(self, number: float) -> Iterator[str]:
        """Yields the commands of all trials without a result, with new ones up to a number."""
        self.collect()
        while len(self._study.begun()) < min(number, self._num_trials):
            self._study.ask()
        for trial in self._study.running():
            command = self._sweep.command(self.model_dir(trial.number), trial.params)
            yield shlex.join(command)

    def collect(self) -> list[int]:
        """Records the trials that have ended; returns the numbers of those that have not."""
        still_running = []
        for trial in self._study.running():
            model_dir = self.model_dir(trial.number)
            evaluations = self._sweep.evaluations(model_dir)
            if _has_finished(model_dir, evaluations):
                self._end(trial, evaluations)
            else:
                still_running.append(trial.number)
        return still_running

    def _fill(self, group: ProcessGroup, waiting: collections.deque[Any]) -> None:
        """Starts trials in the free slots."""
        while self._free and not self._signals and self._failures < self._max_failures:
            if not waiting:
                is_enough = len(self._study.begun()) >= self._num_trials
                if is_enough or time.monotonic() >= self._until:
                    return
                waiting.append(self._study.ask())
            trial = waiting.popleft()
            process = _Process(trial, self._free.pop(0), self.model_dir(trial.number))
            process.num_reported = len(self._sweep.evaluations(process.model_dir))
            self._processes.append(process)
            self._start(process, group)

    def _start(self, process: "_Process", group: ProcessGroup) -> None:
        command = self._sweep.command(process.model_dir, process.trial.params)
        environment = {"PYTHONUNBUFFERED": "1", **self._environment, **process.slot}
        process.model_dir.mkdir(parents=True, exist_ok=True)
        logging.info("sweep | trial %d | %s", process.trial.number, shlex.join(command))
        with open(process.log, "ab") as output:
            process.popen = group.start(command, environment, output=output)

    def _watch(self, process: "_Process", group: ProcessGroup) -> None:
        """Reports new evaluations of a process, and its end."""
        code = process.popen.poll()
        evaluations = self._sweep.evaluations(process.model_dir)
        for each in evaluations[process.num_reported :]:
            value = each.metrics[self._sweep.metric]
            trial = f"trial {process.trial.number}"
            logging.info(
                "sweep | %s | step %d | %s %g", trial, each.step, self._sweep.metric, value
            )
            process.num_reported, process.restarts = process.num_reported + 1, 0
            if self._study.report(process.trial, each.step, value) and not process.is_ending:
                logging.info("sweep | %s | pruned at step %d", trial, each.step)
                process.is_pruned = True
                process.ask_to_end(self._grace_secs)
        if code is None:
            process.kill_if_late()
            return
        if code == EXIT_RESTART and not process.is_ending and process.restarts < _MAX_RESTARTS:
            process.restarts += 1
            self._start(process, group)
            return
        self._processes.remove(process)
        self._free.append(process.slot)
        if not process.is_ending or process.is_pruned:
            self._ended(process, code, evaluations)

    def _ended(self, process: "_Process", code: int, evaluations: Sequence[Evaluated]) -> None:
        """Records the end of a process; one that a signal ended stays open."""
        if code and not process.is_pruned:
            self._failures += 1
            tail = process.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
            why = f"{_end(code)}: {process.log}"
            logging.warning("\n".join([f"sweep | trial {process.trial.number} {why}", *tail]))
            self._study.end(process.trial, None, why=why)
        else:
            self._failures = 0
            self._end(process.trial, evaluations, pruned=process.is_pruned)
        if self._failures >= self._max_failures:
            logging.error("sweep | %d trials in a row failed", self._failures)
            self._end_all()

    def _end(self, trial: Any, evaluations: Sequence[Evaluated], *, pruned: bool = False) -> None:
        """Records the result of a trial."""
        why = "" if evaluations else self._no_evaluation(trial.number)
        result = self._sweep.result(evaluations)
        logging.info("sweep | trial %d ended | %s %s", trial.number, self._sweep.metric, result)
        self._study.end(trial, result, pruned=pruned, why=why)

    def _no_evaluation(self, number: int) -> str:
        others = sorted(
            path.parent.name for path in self.model_dir(number).glob(f"*/{EVALUATIONS}")
        )
        names = ", ".join(name.removeprefix("eval_") for name in others)
        return f"no evaluation; set --evaluation to one of {names}" if names else "no evaluation"

    def _end_all(self) -> None:
        for process in self._processes:
            process.ask_to_end(self._grace_secs)

    def table(self) -> tuple[list[str], list[list[Any]]]:
        """Returns the columns and rows of the results, the best first; also in trials.csv."""
        names = [each.name for each in self._sweep.dimensions]
        columns = ["trial", "state", self._sweep.metric, *names, "why"]
        sign = -1 if self._sweep.maximize else 1

        def order(trial: Any) -> tuple[bool, float, int]:
            value = trial.user_attrs.get("value")
            return value is None, 0.0 if value is None else sign * value, trial.number

        rows = []
        for trial in sorted(self._study.begun(), key=order):
            attributes = trial.user_attrs
            values = [trial.params.get(name) for name in names]
            first = [trial.number, trial.state.name.lower(), attributes.get("value")]
            rows.append([*first, *values, attributes.get("why", "")])
        with open(self._folder / "trials.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([columns, *rows])
        return columns, rows

    def best_command(self) -> str | None:
        """Returns the command of the best trial."""
        _, rows = self.table()
        if not rows or rows[0][2] is None:
            return None
        [trial] = [each for each in self._study.begun() if each.number == rows[0][0]]
        return shlex.join(self._sweep.command(self.model_dir(trial.number), trial.params))


@dataclasses.dataclass
class _Process:
    """The process of a trial."""

    trial: Any
    slot: Mapping[str, str]
    model_dir: pathlib.Path
    popen: subprocess.Popen[bytes] | None = None
    num_reported: int = 0
    restarts: int = 0
    is_pruned: bool = False
    kill_at: float | None = None

    @property
    def log(self) -> pathlib.Path:
        return self.model_dir.with_name(f"{self.model_dir.name}.log")

    @property
    def is_ending(self) -> bool:
        return self.kill_at is not None

    def ask_to_end(self, grace_secs: float) -> None:
        """Sends SIGTERM, so that the process saves and ends."""
        if not self.is_ending:
            self.kill_at = time.monotonic() + grace_secs
            self.popen.send_signal(signal.SIGTERM)

    def kill_if_late(self) -> None:
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.popen.kill()


def _has_finished(model_dir: pathlib.Path, evaluations: Sequence[Evaluated]) -> bool:
    """Returns whether training has ended, and its last step was evaluated."""
    try:
        ended = json.loads((model_dir / "training_ended.json").read_text())
        is_evaluated = bool(evaluations) and evaluations[-1].step >= ended["step"]
        return is_evaluated and ended["reason"] in ("finished", "stopped")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _end(code: int) -> str:
    return f"exited with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
