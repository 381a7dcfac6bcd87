# SPDX-License-Identifier: Apache-2.0
"""Writes what a training spends its time on, for the report of the run."""

import contextlib
import dataclasses
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from ..contract.hooks import RunContext
from ..contract.run_config import RunConfig
from ..model_dir import phases, records, storage_watchdog
from ..model_dir.phases import Line
from ..train.compiled_loop import Steps
from .parts import Part, Start

# Seconds between two appends; in a bucket, each one uploads the file again.
_APPEND_SECS, _APPEND_SECS_IN_BUCKET = 1.0, 10.0
# A long phase of steps has a line for each such share of the attempt: few lines, even after weeks.
_PIECE = 0.01
_SHORTEST_SECS = 1e-3  # Of a phase without steps.
_MAX_CHARACTERS = 300  # Of an error.


@dataclasses.dataclass
class _Piece:
    """The compiled calls since the last line."""

    first: int
    step: int
    num_calls: int = 0
    secs: float = 0.0
    input_secs: float = 0.0
    loss: float = 0.0
    weight: float = 0.0

    def add(self, steps: Steps) -> None:
        self.step = steps.step
        self.num_calls += 1
        self.secs += steps.seconds
        self.input_secs += steps.input_seconds or 0.0
        self.loss += float(steps.totals.loss)
        self.weight += float(steps.totals.weight)

    def fields(self, secs: float) -> dict[str, Any]:
        """Returns the fields of a line of `secs` seconds."""
        if not self.num_calls:
            return {}
        loss = self.loss / self.weight if self.weight else math.nan
        return {
            "first": self.first,
            "input_secs": self.input_secs,
            "hook_secs": max(0.0, secs - self.secs),
            "loss": loss if math.isfinite(loss) else None,
        }


class History(Part):
    """Appends a line to `history.jsonl` for each phase of one call of train(); see `phases.py`.

    It reads the clock where the phase changes, and after each compiled call. Only the process that
    writes checkpoints has the file. An error of the file system ends the file, not the training.
    """

    _is_first = True  # Training of this process.

    def __init__(self, config: RunConfig) -> None:
        """Begins with the phase `START`, of a first training at the begin of the process.

        Not in a notebook, which may have been open for hours. `restore` opens the file.
        """
        self._model_dir = config.model_dir
        self._path = os.path.join(config.model_dir, phases.HISTORY)
        self._append_secs = _APPEND_SECS_IN_BUCKET if "://" in config.model_dir else _APPEND_SECS
        is_first, History._is_first = History._is_first and not hasattr(sys, "ps1"), False
        self._began = _process_began() if is_first else time.time()
        self._since = self._appended_at = self._began
        self._writes = config.save_checkpoints_steps != 0
        self._options: Mapping[str, str] = {}
        self._attempt = 0
        self._phase, self._piece = phases.START, _Piece(0, 0)
        self._has_traced = False
        self._lines: list[Line] = []

    def describe(self, options: Mapping[str, str]) -> None:
        """Takes hyperparameters and options as texts by name."""
        self._options = options

    def restore(self, run: RunContext, start: Start) -> None:
        """Opens the file at the first start; returns to the phase `START` at another one."""
        self._writes = self._writes and run.is_chief
        if not self._writes:
            return
        if self._attempt:
            self.enter(phases.START)
        self._piece = _Piece(start.step, start.step)
        if not self._attempt:
            lines = self._read()
            self._attempt = 1 + max((each.attempt for each in lines), default=0)
            max_step = None if run.max_step is None else int(run.max_step)  # It may be NumPy's.
            self._add(time.time(), options=self._options, max_step=max_step)
            self._append()

    def _read(self) -> list[Line]:
        try:
            return phases.parse(records.content(self._path)[0])
        except (tf.errors.OpError, OSError) as error:
            if storage_watchdog.is_watched(self._path) and storage_watchdog.is_outage(error):
                raise
            self._writes = False
            logging.warning("%s was not read: %s. The run gets no report.", self._path, error)
            return []

    def begin_steps(self) -> None:
        """Enters the phase of the steps; the first call of a training traces them."""
        self.enter(phases.STEPS if self._has_traced else phases.TRACING)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Enters a phase for the block."""
        before = self._phase
        self.enter(name)
        try:
            yield
        finally:
            self.enter(before)

    def enter(self, name: str) -> None:
        """Ends the current phase, and enters another one."""
        now = time.time()
        if self._piece.num_calls or now - self._since >= _SHORTEST_SECS:
            self._add(now)
        # The next attempt may begin with this checkpoint.
        has_saved, self._phase = self._phase == phases.SAVE, name
        if has_saved and self._attempt:
            self._append()
        else:
            self._append_if_due(now)

    def called(self, steps: Steps) -> None:
        """Adds a compiled call, after its hooks."""
        self._piece.add(steps)
        now = time.time()
        piece_secs = max(self._append_secs, _PIECE * (now - self._began))
        if not self._has_traced or now - self._since >= piece_secs:
            self._has_traced = True
            self.enter(phases.STEPS)
        else:
            self._append_if_due(now)

    def end(self, reason: str, details: Sequence[str] = ()) -> None:
        """Ends the attempt.

        Args:
          reason: finished, stopped, failed or preempted.
          details: reasons of hooks, or the error.
        """
        if self._attempt:
            self.enter(phases.END)
            details = tuple(" ".join(each.split())[:_MAX_CHARACTERS] for each in details)
            self._add(time.time(), reason=reason, details=details)
            self._append()

    def _add(self, now: float, **fields: Any) -> None:
        """Adds a line that ends now."""
        piece, since = self._piece, self._since
        self._piece, self._since = _Piece(piece.step, piece.step), now
        if self._writes:
            fields |= piece.fields(now - since)
            self._lines.append(
                Line(phase=self._phase, begin=since, end=now, step=piece.step, **fields)
            )

    def _append_if_due(self, now: float) -> None:
        if self._attempt and self._lines and now - self._appended_at >= self._append_secs:
            self._append()

    def _append(self) -> None:
        if not self._lines:
            return
        lines = [dataclasses.replace(each, attempt=self._attempt) for each in self._lines]
        text = "".join(f"{each.to_json()}\n" for each in lines)
        self._lines, self._appended_at = [], time.time()
        with contextlib.suppress(Exception):  # An earlier write failed: the next save raises it.
            storage_watchdog.call(self._model_dir, self._write, text)

    def _write(self, text: str) -> None:
        try:
            records.append_lines(self._path, text)
        except (tf.errors.OpError, OSError) as error:
            if storage_watchdog.is_watched(self._path) and storage_watchdog.is_outage(error):
                raise  # It is repeated.
            self._writes = False
            logging.warning("%s was not written: %s. The report ends here.", self._path, error)


def _process_began() -> float:
    """Returns the begin of this process in seconds since 1970; on Linux, else the current time."""
    now = time.time()
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        with open("/proc/self/stat") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return now - max(0.0, running)
    return now
