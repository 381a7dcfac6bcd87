# SPDX-License-Identifier: Apache-2.0
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
from os import environ
from typing import Any

from absl import logging

from ..errors import EXIT_RESTART, UserValueError
from ..launcher.flags import COMMAND, MAIN, PACKAGE
from ..launcher.group import ProcessGroup
from ..model_dir.evaluation_results import EVALUATIONS, Evaluated, parse
from ..run.suggestions import near
from .study import Study

_POLL_SECS = 0.2
_MAX_RESTARTS = 5  # Without a new evaluation.
_LOG_LINES = 15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """The task of a sweep, as its folder records it.

    Attributes:
      arguments: flags of each trial, or a program and its flags.
      metric: metric of the evaluation that decides.
      maximize: whether larger values are better.
      evaluation: name of the EvalSpec; None if there is one without a name.
      value: 'last' or 'best' evaluation of a trial.
      launch: flags of the launcher if each trial is a cluster; None for one process.
    """

    arguments: Sequence[str]
    metric: str
    maximize: bool
    evaluation: str | None
    value: str
    launch: Sequence[str] | None

    @property
    def is_program(self) -> bool:
        """Whether trials run a program of the user."""
        return bool(self.arguments) and not self.arguments[0].startswith("-")

    @property
    def folder(self) -> str:
        """The folder of the evaluation that decides, below that of a trial."""
        return "eval" if self.evaluation is None else f"eval_{self.evaluation}"

    def flags(self, values: Mapping[str, Any]) -> list[str]:
        """Returns the flags that set some values."""
        prefix = "--" if self.is_program else "--gin."
        return [f"{prefix}{name}={value}" for name, value in values.items()]

    def command(self, model_dir: pathlib.Path, values: Mapping[str, Any]) -> list[str]:
        """Returns the whole command of a trial."""
        tail = [*self.arguments, *self.flags(values), f"--model_dir={model_dir}"]
        if self.launch is not None:
            return [sys.executable, "-m", f"{PACKAGE}.launch", *self.launch, "--", *tail]
        return [sys.executable, *([] if self.is_program else ["-m", MAIN]), *tail]

    def evaluations(self, model_dir: pathlib.Path) -> list[Evaluated]:
        """Returns the evaluations of a trial so far.

        Raises:
          UserValueError: they do not have the metric as a number.
        """
        path = model_dir / self.folder / EVALUATIONS
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

    def __init__(self, sweep: Sweep, study: Study, folder: pathlib.Path, options: Any) -> None:
        """Takes the parts; `options` are the flags of the sweep."""
        self._sweep, self._study, self._folder, self._options = sweep, study, folder, options
        self._free: list[Mapping[str, str]] = options.slot or [{}] * options.parallel
        self._num_trials = min(options.trials, study.size)
        self._until = time.monotonic() + options.timeout
        self._num_failures = 0  # In a row.
        self._running: list[Iterator[None]] = []
        self._signals: list[int] = []

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
                while received:
                    self._signals.append(received.popleft())
                if self._signals.count(signal.SIGINT) > 1:
                    return 128 + signal.SIGINT
                self._fill(group, waiting)
                if not self._running:
                    break
                self._running = [each for each in self._running if next(each, "ended") is None]
                time.sleep(_POLL_SECS)
        if self._signals:
            return EXIT_RESTART
        return 0 if any("value" in trial.user_attrs for trial in self._study.begun()) else 1

    def commands(self) -> Iterator[str]:
        """Yields the commands of all trials without a result."""
        self.collect()
        while len(self._study.begun()) < self._num_trials:
            self._study.ask()
        yield from map(self._command, self._study.running())

    def collect(self) -> list[int]:
        """Records the trials that have ended; returns the numbers of those that have not."""
        still_running = []
        for trial in self._study.running():
            model_dir = self._model_dir(trial)
            evaluations = self._sweep.evaluations(model_dir)
            if _has_finished(model_dir, evaluations):
                self._end(trial, evaluations)
            else:
                still_running.append(trial.number)
        return still_running

    def ranked(self) -> list[Any]:
        """Returns the trials, the best first."""
        sign = -1 if self._sweep.maximize else 1

        def order(trial: Any) -> tuple[bool, float, int]:
            value = trial.user_attrs.get("value")
            return value is None, sign * (value or 0.0), trial.number

        return sorted(self._study.begun(), key=order)

    def table(self) -> list[list[Any]]:
        """Returns the titles and a row for each trial, which it writes to trials.csv as well."""
        trials = self.ranked()
        names = list(dict.fromkeys(name for trial in trials for name in trial.params))
        rows = [["trial", "state", self._sweep.metric, *names, "why"]]
        for trial in trials:
            attributes = trial.user_attrs
            first = [trial.number, trial.state.name.lower(), attributes.get("value")]
            values = [trial.params.get(name) for name in names]
            rows.append([*first, *values, attributes.get("why", "")])
        with open(self._folder / "trials.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        return rows

    def best_command(self) -> str | None:
        """Returns the command of the best trial; None if none has a result."""
        best = next(iter(self.ranked()), None)
        if best is None or "value" not in best.user_attrs:
            return None
        python, text = shlex.quote(sys.executable), self._command(best)
        text = text.replace(f"{python} -m {PACKAGE}.launch ", f"{COMMAND} launch ")
        return text.replace(f"{python} -m {MAIN} ", f"{COMMAND} ")

    def _model_dir(self, trial: Any) -> pathlib.Path:
        return self._folder / f"trial-{trial.number:04d}"

    def _log(self, trial: Any) -> pathlib.Path:
        return self._folder / f"trial-{trial.number:04d}.log"

    def _command(self, trial: Any) -> str:
        return shlex.join(self._sweep.command(self._model_dir(trial), trial.params))

    @property
    def _is_ending(self) -> bool:
        return bool(self._signals) or self._num_failures >= self._options.max_failures

    def _fill(self, group: ProcessGroup, waiting: collections.deque[Any]) -> None:
        """Starts trials in the free slots."""
        while self._free and not self._is_ending:
            if not waiting:
                is_enough = len(self._study.begun()) >= self._num_trials
                if is_enough or time.monotonic() >= self._until:
                    return
                waiting.append(self._study.ask())
            self._running.append(self._run(waiting.popleft(), self._free.pop(0), group))

    def _run(self, trial: Any, slot: Mapping[str, str], group: ProcessGroup) -> Iterator[None]:
        """Runs the processes of a trial; yields while one is running."""
        model_dir = self._model_dir(trial)
        num_reported, restarts, is_pruned = len(self._sweep.evaluations(model_dir)), 0, False
        kill_at: float | None = None  # Set when the process was asked to end.
        process = self._start(trial, slot, group)
        while True:
            yield
            code, evaluations = process.poll(), self._sweep.evaluations(model_dir)
            for each in evaluations[num_reported:]:
                is_pruned = self._report(trial, each) or is_pruned
                num_reported, restarts = num_reported + 1, 0
            if code is None and kill_at is None and (is_pruned or self._is_ending):
                process.send_signal(signal.SIGTERM)  # It saves and ends.
                kill_at = time.monotonic() + self._options.grace_secs
            elif code is None:
                if kill_at is not None and time.monotonic() >= kill_at:
                    process.kill()
            elif code != EXIT_RESTART or kill_at or is_pruned or restarts == _MAX_RESTARTS:
                break
            else:
                restarts += 1
                process = self._start(trial, slot, group)
        self._free.append(slot)
        if is_pruned or (kill_at is None and code == 0):
            self._num_failures = 0
            self._end(trial, evaluations, pruned=is_pruned)
        elif kill_at is None:
            self._fail(trial, code)

    def _start(
        self, trial: Any, slot: Mapping[str, str], group: ProcessGroup
    ) -> subprocess.Popen[bytes]:
        self._model_dir(trial).mkdir(parents=True, exist_ok=True)
        command = self._sweep.command(self._model_dir(trial), trial.params)
        logging.info("sweep | trial %d | %s", trial.number, shlex.join(command))
        with open(self._log(trial), "ab") as output:
            return group.start(command, {"PYTHONUNBUFFERED": "1", **environ, **slot}, output=output)

    def _report(self, trial: Any, evaluated: Evaluated) -> bool:
        """Reports an evaluation; returns whether the trial is pruned."""
        step, metric = evaluated.step, self._sweep.metric
        value = evaluated.metrics[metric]
        logging.info("sweep | trial %d | step %d | %s %g", trial.number, step, metric, value)
        trial.report(value, step)
        is_pruned = step > 0 and trial.should_prune()
        if is_pruned:
            logging.info("sweep | trial %d | pruned at step %d", trial.number, step)
        return is_pruned

    def _fail(self, trial: Any, code: int) -> None:
        """Records that the process of a trial failed."""
        self._num_failures += 1
        path = self._log(trial)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        tail = path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        logging.warning("\n".join([f"sweep | trial {trial.number} {how}: {path}", *tail]))
        self._study.end(trial, None, why=f"{how}: {path}")
        if self._num_failures >= self._options.max_failures:
            logging.error("sweep | %d trials in a row failed", self._num_failures)

    def _end(self, trial: Any, evaluations: Sequence[Evaluated], *, pruned: bool = False) -> None:
        """Records the result of a trial."""
        result = self._sweep.result(evaluations)
        logging.info("sweep | trial %d ended | %s %s", trial.number, self._sweep.metric, result)
        why = "" if evaluations else "no evaluation; --evaluation has the name of the EvalSpec"
        self._study.end(trial, result, pruned=pruned, why=why)


def _has_finished(model_dir: pathlib.Path, evaluations: Sequence[Evaluated]) -> bool:
    """Returns whether training has ended, and its last step was evaluated."""
    try:
        ended = json.loads((model_dir / "training_ended.json").read_text())
        is_evaluated = bool(evaluations) and evaluations[-1].step >= ended["step"]
        return is_evaluated and ended["reason"] in ("finished", "stopped")
    except (OSError, ValueError, KeyError, TypeError):
        return False
