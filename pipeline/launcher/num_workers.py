# SPDX-License-Identifier: Apache-2.0
"""How many workers the next start of a cluster has, with `--min_workers`."""

import contextlib
import os
import re
import time
from collections.abc import Callable

_INDEX = re.compile(r"model\.ckpt-(\d+)\.index")
_LOOK_SECS = 1.0  # Between two looks into model_dir.


class NumWorkers:
    """Chooses the number of workers, from `least` to `most`.

    if a start failed after it had written a checkpoint: start all workers again
    if it failed before: start one worker fewer
    while fewer than `most` train: after `retry_secs` and a checkpoint, start all again

    `retry_secs` doubles with each start of all workers that fails. On one machine workers differ
    only in their number, so that the last one is left out, whichever failed.

    Attributes:
      most: number of workers of the first start.
      now: number of workers of the next start.
    """

    def __init__(
        self,
        most: int,
        least: int,
        *,
        model_dir: str,
        retry_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the limits, and the local directory whose checkpoints show progress."""
        self.most = self.now = most
        self._least, self._model_dir, self._clock = least, model_dir, clock
        self._retry_secs = self._wait_secs = retry_secs
        self._step = -1  # Largest step that was saved before this start.
        self._began = self._looked_at = clock()

    def begin(self) -> None:
        """Notes that a start begins."""
        self._began = self._clock()
        self._step = max(self._step, newest_step(self._model_dir))

    def failed(self) -> str:
        """Chooses the number after a failure.

        Returns:
          A line for the log; '' if even the smallest number failed.
        """
        if self._has_saved():
            self._start_all()
        elif self.now == self._least:
            return ""
        else:
            self.now -= 1
        if self.now == self.most:
            return f"starting all {self.most} workers again"
        return (
            f"starting {self.now} of {self.most} workers, and all again after the next checkpoint, "
            f"in {self._wait_secs:g} s at the earliest"
        )

    def grows(self) -> bool:
        """Returns whether to end the tasks now, to start all workers."""
        now = self._clock()
        if (
            self.now == self.most
            or now - self._began < self._wait_secs
            or now - self._looked_at < _LOOK_SECS
        ):
            return False
        self._looked_at = now
        if not self._has_saved():
            return False
        self._start_all()
        return True

    def _start_all(self) -> None:
        self._wait_secs = 2 * self._wait_secs if self.now < self.most else self._retry_secs
        self.now = self.most

    def _has_saved(self) -> bool:
        return newest_step(self._model_dir) > self._step


def newest_step(model_dir: str) -> int:
    """Returns the step of the newest checkpoint; -1 for none."""
    with contextlib.suppress(OSError):  # It does not exist yet.
        found = map(_INDEX.fullmatch, os.listdir(model_dir))
        return max((int(match[1]) for match in found if match), default=-1)
    return -1
