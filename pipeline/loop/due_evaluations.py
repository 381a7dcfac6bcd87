# SPDX-License-Identifier: Apache-2.0
"""The evaluations of a training, as the loop sees them."""

from collections.abc import Sequence

from ..contract.hooks import RunContext
from .parts import Boundary, Part


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
