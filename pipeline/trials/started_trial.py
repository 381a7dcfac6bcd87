"""A trial that runs: its process, and what is known of it."""

import dataclasses
import math
import os
import pathlib
import signal
import subprocess
from typing import BinaryIO

from pipeline.trials.goal import Goal
from pipeline.trials.study import Trial

# Last lines of a trial's log that are shown where it failed.
_LAST_LINES = 15


@dataclasses.dataclass(kw_only=True)
class Running:
    """A trial's process, and what is known of it.

    Attributes:
      trial: the trial.
      model_dir: its folder.
      process: its process.
      log: file that gets what it writes.
      slot: its place among those that run at a time.
      curve: evaluations that were read, step and value of each.
      began: time at which it would have begun without a break, by the runner's clock.
      stamp: state of the files that they were read from.
      restarts: restarts since the last one of these.
      asked: why it was asked to end; "" where it was not.
      deadline: when it is killed, by the runner's clock.
    """

    trial: Trial
    model_dir: pathlib.Path
    process: subprocess.Popen
    log: BinaryIO
    slot: int
    curve: list[tuple[int, float]]
    began: float
    stamp: object = None
    restarts: int = 0
    asked: str = ""
    deadline: float = math.inf

    def new_points(self, goal: Goal) -> list[tuple[int, float]]:
        """Returns step and value of the evaluations since the last call."""
        stamp = goal.stamp(self.model_dir)
        if stamp == self.stamp:
            return []
        self.stamp = stamp
        # As text: a NaN is none of the values before it, and itself neither.
        seen = set(map(repr, self.curve))
        self.curve = goal.curve(self.model_dir)
        new = [point for point in self.curve if repr(point) not in seen]
        if new:
            self.restarts = 0
        return new

    def ask(self, why: str, deadline: float) -> None:
        """Asks it to save and end, unless it was asked before.

        Args:
          why: reason, for `asked`.
          deadline: when it is killed, by the runner's clock.
        """
        if not self.asked:
            self.asked, self.deadline = why, deadline
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills its process."""
        self.deadline = math.inf
        self.process.kill()


def last_lines(path: pathlib.Path) -> str:
    """Returns the last lines of a trial's log, and where all of it is.

    Args:
      path: path of the log.
    """
    try:
        with open(path, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 10_000))
            found = log.read().decode(errors="replace").splitlines()
    except OSError as error:  # Somebody has deleted it, say.
        found = [str(error)]
    indented = [f"    {line}" for line in found[-_LAST_LINES:]]
    return "\n".join([*indented, f"All of it: {path}"])


def in_words(code: int) -> str:
    """Returns how a process ended, by its exit code."""
    if code >= 0:
        return f"it exited with {code}"
    return f"it was killed by {signal.Signals(-code).name}"
