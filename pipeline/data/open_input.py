# SPDX-License-Identifier: Apache-2.0
"""The open input of a training."""

from typing import Any, Protocol


class OpenInput(Protocol):
    """The data of a training, from its position on.

    Every process must call the same methods.

    Attributes:
      iterator: where the compiled loop takes batches from; None when closed.
      end_step: global step after data of known length; infinite if reading finds the end.
      place: where the input was opened, for the log.
    """

    iterator: Any
    end_step: float
    place: str

    @property
    def num_batches(self) -> int:
        """Number of steps in this pass, skipped ones included."""

    def add(self, num_steps: int, num_examples: int) -> None:
        """Counts steps that were made, and the examples that this process read for them."""

    def skip(self, step: int) -> list[Any] | None:
        """Reads the batches of one step, which is not made.

        Args:
          step: global step.

        Returns:
          The elements of this process; None if no process has data left in this pass.
        """

    def has_ended(self, step: int, num_passes: float | None) -> bool:
        """Returns whether a restart is at the end of a pass, or of the last one."""

    def next_pass(self, step: int, *, after_rest: bool, num_passes: float | None = None) -> bool:
        """Begins another pass at the end of the data, if this training may.

        A training ends with its pass. But where it continued an earlier one at the very end of
        a pass, it begins the next; with `after_rest` also if it read the rest of that pass.

        Args:
          step: global step.
          after_rest: whether a number of steps was asked for, not a step to train to.
          num_passes: number of passes of this and earlier trainings, instead of these rules.

        Returns:
          Whether it has begun.

        Raises:
          UserValueError: the data are empty.
        """

    def save(self, checkpoint: str | None) -> dict[str, Any]:
        """Writes the iterator of a checkpoint, if one is given.

        Returns:
          The position, as JSON.
        """

    def close(self) -> None:
        """Drops the iterator."""
