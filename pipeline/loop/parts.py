# SPDX-License-Identifier: Apache-2.0
"""The vocabulary of the training loop: its parts, their start, and the next boundary.

A training starts, agrees on the next boundary, and works up to it. If a hook refuses a step, it
goes back: the same function starts again from the newest checkpoint.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..contract.hooks import RunContext, SkippedStep
from ..train.compiled_loop import Detail


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a training starts, or starts again.

    Attributes:
      step: global step.
      checkpoint: path prefix of the checkpoint that it continues; None for none.
      states: states of the parts in that checkpoint, by name.
    """

    step: int
    checkpoint: str | None = None
    states: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Part:
    """A part of a training: the input, the hooks, the evaluations and so on.

    By default it works at no step, and has no state.
    """

    def next_step(self, step: int) -> float:
        """Returns the next step of the part, infinite for none: the loop stops there.

        Args:
          step: global step; the result is greater.
        """
        return math.inf

    def restore(self, run: RunContext, start: Start) -> None:
        """Starts the part, with its state from `start.states` if that has one."""

    def state(self) -> Mapping[str, Any]:
        """Returns the data for `restore`, as JSON by name; only the chief calls it."""
        return {}


@dataclasses.dataclass(frozen=True)
class Boundary:
    """What all processes do next.

    Attributes:
      next_step: global step after the next call.
      detail: results of the last step of that call.
      saves: whether this step is saved first.
      evaluates: folders of the evaluations that are due at this step.
      skips: whether the next step is read and not trained on.
      stops: whether training ends at this step.
      stop_reasons: why it ends; empty for `max_step`.
      is_preempted: whether it ends because of a signal.
    """

    next_step: int
    detail: Detail
    saves: bool
    evaluates: tuple[str, ...]
    skips: bool
    stops: bool
    stop_reasons: tuple[str, ...]
    is_preempted: bool

    @property
    def is_final(self) -> bool:
        """Whether training ends at this step for good: no restart continues it."""
        return self.stops and not self.is_preempted

    @property
    def is_end(self) -> bool:
        """Whether training ends, and nothing is left to do at this step."""
        return self.stops and not self.saves and not self.evaluates


class Evaluations(Part):
    """The evaluations of one training. This class has none."""

    def flags(self, run: RunContext) -> list[bool]:
        """Returns the facts that only this process has; `Schedule.agree` sends them to the others.

        Every process returns the same number of flags.
        """
        return []

    def due(
        self, step: int, flags: Sequence[bool], *, at_checkpoint: bool, is_final: bool
    ) -> tuple[str, ...]:
        """Returns the folders of the evaluations that are due, the same in all processes.

        Args:
          step: global step.
          flags: for each flag whether any process has it.
          at_checkpoint: whether the checkpoint of this step is due.
          is_final: whether training has ended, so that all are due once more.
        """
        return ()

    def need_checkpoint(self, folders: Sequence[str]) -> bool:
        """Returns whether one of the evaluations needs the checkpoint of its step."""
        return False

    def not_made(self, step: int, now: Boundary) -> list[str]:
        """Returns the evaluations of a step that a restart has to make, for its checkpoint."""
        return []

    def make(self, run: RunContext, now: Boundary) -> None:
        """Makes the evaluations of `now.evaluates`; every process must call it."""


class Rewind(Exception):  # noqa: N818 (it is not an error)
    """Training goes back to its newest checkpoint; raised by all processes at the same step.

    Attributes:
      skipped: step to skip from now on; None for none.
    """

    def __init__(self, skipped: SkippedStep | None = None) -> None:
        super().__init__(skipped)
        self.skipped = skipped
