# SPDX-License-Identifier: Apache-2.0
"""Hooks that end a training."""

import math
import time
from typing import Any

from ..contract.checks import check, integer
from ..contract.hooks import Hook, RunContext
from ..errors import UserValueError
from ..loop.specs import TrainSpec
from ..run.durations import seconds


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

    def begin(self, run: RunContext) -> None:
        """Counts `num_steps` from the step of the run."""
        if self._num_steps is not None:
            self._last_step = run.step + self._num_steps

    def restore(self, run: RunContext, state: Any) -> None:
        """Keeps the end of a run that was killed before it."""
        if self._num_steps is not None and state > run.step:
            self._last_step = state

    def state(self) -> Any:
        """Returns the last step."""
        return self._last_step

    def next_step(self, step: int) -> int:
        """Returns the last step, or the next one if that is in the past."""
        return max(self._last_step, step + 1)

    def after_step(self, run: RunContext) -> None:
        """Requests the stop."""
        run.request_stop(f"StopAtStepHook: step {self._last_step}")


class StopAfterSecsHook(Hook):
    """Ends a training that has taken a time, over all its restarts; `TrainSpec.max_secs` adds it.

    Steps, checkpoints and evaluations count. It looks after each compiled call, which takes a few
    seconds. Work that was lost by a kill does not count.
    """

    def __init__(self, secs: float | str) -> None:
        """Sets the limit: seconds, or text such as "3h" or "1h30m".

        Raises:
          UserValueError: it is not a duration greater than 0.
        """
        self._limit = seconds(secs, "StopAfterSecsHook.secs")
        self._began_at = 0.0

    def begin(self, run: RunContext) -> None:
        """Begins to count."""
        self._began_at = time.monotonic()

    def restore(self, run: RunContext, state: Any) -> None:
        """Adds the seconds of earlier trainings in model_dir."""
        self._began_at -= state
        self.after_loop(run)

    def after_loop(self, run: RunContext) -> None:
        """Requests the stop; a request of one process stops all at one step."""
        if self.state() >= self._limit:
            run.request_stop(f"StopAfterSecsHook: {self._limit:g} s")

    def state(self) -> float:
        """Returns the seconds of training until now."""
        return time.monotonic() - self._began_at


class StopAfterEpochsHook(Hook):
    """Ends a training after passes over its input, over all its restarts.

    `TrainSpec.max_epochs` adds it. The training asks for `num_epochs` at the end of each pass. The
    passes of an input that repeats itself count as one.

    Attributes:
      num_epochs: number of passes.
    """

    def __init__(self, num_epochs: int) -> None:
        """Sets the number of passes."""
        check("StopAfterEpochsHook.num_epochs", num_epochs, integer(1, example=10))
        self.num_epochs: float = num_epochs


class RepeatInputHook(StopAfterEpochsHook):
    """Begins another pass over an input that has ended until training ends for another reason."""

    def __init__(self) -> None:
        self.num_epochs = math.inf


def with_stops(spec: TrainSpec) -> list[Hook]:
    """Returns the hooks of a TrainSpec, with those of its `max_epochs` and `max_secs`."""
    hooks = list(spec.hooks)
    if spec.max_epochs is not None:
        hooks.append(StopAfterEpochsHook(spec.max_epochs))
    if spec.max_secs is not None:
        hooks.append(StopAfterSecsHook(spec.max_secs))
    return hooks
