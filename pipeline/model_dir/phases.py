# SPDX-License-Identifier: Apache-2.0
"""What a training spends its time on: the lines of `model_dir/history.jsonl`, and their sums.

    {"attempt": 2, "phase": "steps", "begin": 1767222000.0, "end": 1767222002.1, "step": 480,
     "first": 400, "input_secs": 0.31, "hook_secs": 0.02, "loss": 0.312}

An attempt is one call of train(): a restart begins another one. Its lines follow each other without
a gap. Nothing here imports TensorFlow: the report reads without it.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

HISTORY = "history.jsonl"

# Phases of lines. `START` ends with the restored checkpoint, `TRACING` with the first step.
START, TRACING, STEPS, SAVE, EVALUATION, EXPORT, END = (
    "start",
    "tracing",
    "steps",
    "save",
    "evaluation",
    "export",
    "end",
)
# Parts of the time that are no phases: `REDONE` steps were made before and lost by a kill.
INPUT, HOOKS, REDONE, DOWN = "input", "hooks", "redone", "down"
PARTS = (STEPS, INPUT, HOOKS, SAVE, EVALUATION, EXPORT, START, TRACING, REDONE, DOWN)

# After these ends, the time to the next attempt is no part of the run.
_HAS_ENDED = ("finished", "stopped")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One phase of an attempt, or a piece of it.

    Attributes:
      attempt: number of the attempt, from 1.
      phase: the phase.
      begin: begin in seconds since 1970.
      end: end in seconds since 1970.
      step: global step at the end.
      first: global step at the begin, of lines with steps.
      input_secs: seconds for which the steps waited for data.
      hook_secs: seconds between the compiled calls: hooks, and waiting for other processes.
      loss: mean loss over the steps; None without steps, and for NaN and infinity.
      max_step: global step to train to, of the line with which an attempt starts.
      options: hyperparameters and options as texts by name, of the same line.
      reason: how the attempt ended, of its last line: finished, stopped, failed, preempted.
      details: reasons of hooks, or the error.
    """

    attempt: int = 0
    phase: str
    begin: float
    end: float
    step: int = 0
    first: int | None = None
    input_secs: float = 0.0
    hook_secs: float = 0.0
    loss: float | None = None
    max_step: int | None = None
    options: Mapping[str, str] | None = None
    reason: str | None = None
    details: Sequence[str] = ()

    def to_json(self) -> str:
        """Returns the line, without fields that have their default."""
        fields = {
            field.name: round(value, 3) if field.name in _TIMES else value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        return json.dumps(fields, allow_nan=False)


_TIMES = ("begin", "end", "input_secs", "hook_secs")
_FIELDS = {field.name for field in dataclasses.fields(Line)}


@dataclasses.dataclass(frozen=True)
class Interval:
    """Seconds in which an attempt did one thing; time `DOWN` belongs to the attempt before it."""

    attempt: int
    part: str
    secs: float


@dataclasses.dataclass
class Attempt:
    """One call of train().

    Attributes:
      number: number, from 1.
      begin: begin in seconds since 1970.
      end: end of its last line.
      first: global step of the checkpoint that it continued.
      step: global step that it reached.
      num_redone: number of its steps that an earlier attempt had made.
      max_step: global step to train to.
      options: hyperparameters and options as texts by name; None if not known.
      reason: how it ended; None while it runs, or after a kill.
      details: reasons of hooks, or the error.
    """

    number: int
    begin: float
    end: float
    first: int
    step: int
    num_redone: int = 0
    max_step: int | None = None
    options: Mapping[str, str] | None = None
    reason: str | None = None
    details: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Times:
    """What a run spent its time on.

    Attributes:
      intervals: parts of the time, in order.
      attempts: attempts, in order.
      losses: pairs of a global step and the mean loss of the steps before it, in order.
      wall_secs: seconds from the first begin to the last end, without those after an attempt that
        finished or was stopped.
    """

    intervals: Sequence[Interval]
    attempts: Sequence[Attempt]
    losses: Sequence[tuple[int, float]]
    wall_secs: float

    @property
    def secs(self) -> dict[str, float]:
        """Seconds of each of `PARTS`."""
        found = dict.fromkeys(PARTS, 0.0)
        for each in self.intervals:
            found[each.part] += each.secs
        return found

    @property
    def goodput(self) -> float:
        """Share of the wall time in steps that counted, 0 to 1."""
        return self.secs[STEPS] / self.wall_secs if self.wall_secs > 0 else 0.0


def parse(content: bytes) -> list[Line]:
    """Returns the lines of a file; those that are damaged or still being written are skipped."""
    found = []
    for text in content.decode(errors="replace").split("\n"):
        try:
            fields: Any = json.loads(text)
            line = Line(**{name: fields[name] for name in fields if name in _FIELDS})
            known = line.phase in (START, TRACING, STEPS, SAVE, EVALUATION, EXPORT, END)
            if known and math.isfinite(line.begin + line.end + line.attempt + line.step):
                found.append(line)
        except (ValueError, TypeError, KeyError):
            continue
    return found


def times(lines: Iterable[Line]) -> Times:
    """Returns what a run spent its time on.

    Steps up to the largest one that was reached before are `REDONE`. A clock that was set back, and
    lines that were written twice, count no time twice.
    """
    intervals: list[Interval] = []
    attempts: list[Attempt] = []
    losses: list[tuple[int, float]] = []
    at, reached, rest = None, 0, 0.0  # Time up to which all is counted, largest step.
    for line in lines:
        at = line.begin if at is None else at
        gap, secs = max(0.0, line.begin - at), max(0.0, line.end - max(at, line.begin))
        is_new = not attempts or attempts[-1].number != line.attempt
        if is_new and attempts and attempts[-1].reason in _HAS_ENDED:
            rest += gap
        elif gap:
            intervals.append(Interval(attempts[-1].number, DOWN, gap))
        at += gap
        if is_new:
            attempts.append(Attempt(line.attempt, at, at, line.step, line.step))
        intervals += [each for each in _parts(line, secs, reached) if each.secs]
        at += secs
        _add(line, attempts[-1], at, reached)
        if line.first is not None:
            while losses and losses[-1][0] > line.first:
                losses.pop()
        if line.loss is not None:
            losses.append((line.step, line.loss))
        reached = max(reached, line.step)
    wall_secs = attempts[-1].end - attempts[0].begin - rest if attempts else 0.0
    return Times(intervals, attempts, losses, wall_secs)


def _add(line: Line, attempt: Attempt, end: float, reached: int) -> None:
    """Adds a line to its attempt."""
    attempt.end, attempt.step = end, line.step
    if line.options is not None:
        attempt.first, attempt.options, attempt.max_step = line.step, line.options, line.max_step
    if line.first is not None:
        attempt.num_redone += max(0, min(line.step, reached) - line.first)
    if line.reason is not None:
        attempt.reason, attempt.details = line.reason, line.details


def _parts(line: Line, secs: float, reached: int) -> Iterator[Interval]:
    """Yields the parts of a line of `secs` seconds, after steps up to `reached` were made."""
    if line.phase != STEPS or line.first is None:
        part = {STEPS: HOOKS, END: SAVE}.get(line.phase, line.phase)
        yield Interval(line.attempt, part, secs)
        return
    num_steps, num_redone = line.step - line.first, max(0, min(line.step, reached) - line.first)
    redone = secs * num_redone / num_steps if num_steps else 0.0
    whole = max(line.end - line.begin, 1e-9)
    waited = min(1.0, line.input_secs / whole)
    hooks = min(1.0 - waited, line.hook_secs / whole)
    yield Interval(line.attempt, REDONE, redone)
    yield Interval(line.attempt, INPUT, (secs - redone) * waited)
    yield Interval(line.attempt, HOOKS, (secs - redone) * hooks)
    yield Interval(line.attempt, STEPS, (secs - redone) * (1.0 - waited - hooks))
