"""Hooks that end a training."""

import signal
from collections.abc import Sequence
from typing import Any

from ..contract.hooks import Hook, Run
from ..errors import UserValueError


class StopAtStepHook(Hook):
    """Ends a training at a step; a training beyond it ends after one step."""

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        """Sets the step; set one of both.

        Args:
          num_steps: number of steps from the beginning of the run; a restart after a kill keeps
            the step at which it ends.
          last_step: global step.

        Raises:
          UserValueError: not one of both is set, or it is not an int greater than 0.
        """
        given = [each for each in (num_steps, last_step) if each is not None]
        if len(given) != 1 or not isinstance(given[0], int) or given[0] < 1:
            raise UserValueError(
                f"StopAtStepHook.num_steps is {num_steps!r} and last_step is {last_step!r}: "
                "expected one int greater than 0. Set last_step=1000."
            )
        self._num_steps = num_steps
        self._last_step = last_step

    def begin(self, run: Run) -> None:
        """Counts `num_steps` from the step of the run."""
        if self._num_steps is not None:
            self._last_step = run.step + self._num_steps

    def restore(self, run: Run, state: Any) -> None:
        """Keeps the end of a run that was killed before it."""
        if self._num_steps is not None and state > run.step:
            self._last_step = state

    def state(self) -> Any:
        """Returns the last step."""
        return self._last_step

    def next_step(self, step: int) -> int:
        """Returns the last step, or the next one if that is in the past."""
        return max(self._last_step, step + 1)

    def after_step(self, run: Run) -> None:
        """Requests the stop."""
        run.request_stop(f"StopAtStepHook: step {self._last_step}")


class PreemptionHook(Hook):
    """Does nothing: every training of the main thread saves and stops at a signal.

    It keeps programs of earlier releases running.
    """

    def __init__(self, signals: Sequence[signal.Signals] = ()) -> None:
        """Takes the signals, which have no effect: SIGTERM, SIGHUP and SIGUSR1 all save."""
