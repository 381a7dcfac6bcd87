# SPDX-License-Identifier: Apache-2.0
"""Bounds on the loss of each step."""

import collections
import math
import statistics
from typing import Any

from absl import logging

from ..contract.checks import Check, check, choice, integer, is_number, number
from ..contract.hooks import Hook, RunContext
from ..errors import UserValueError


class LossGuard(Hook):
    """Acts on steps whose loss is above a bound, or far above those before.

    It reads the loss of each step after each compiled call, so before each checkpoint. Losses that
    are not finite are left to `RunConfig.on_nan`.
    """

    wants_losses = True

    def __init__(
        self,
        max_loss: float | None = None,
        spike: float | None = None,
        window: int = 100,
        on: str = "restore",
    ) -> None:
        """Sets the bounds; set one of `max_loss` and `spike`, or both.

        Args:
          max_loss: largest loss that is allowed; None for any.
          spike: largest ratio of a loss to the median of the `window` losses before; None for
            any. The first `window` losses are not compared, nor is any while the median is not
            positive.
          window: number of steps of the median.
          on: 'restore' returns to the last checkpoint and continues without the batches of the
            step, at most `RunConfig.max_skipped_steps` times; 'stop' ends training with a
            checkpoint; 'warn' logs a warning.

        Raises:
          UserValueError: no bound is set, or a value is out of range.
        """
        if max_loss is None and spike is None:
            raise UserValueError(
                "LossGuard.max_loss and LossGuard.spike are None: expected a bound. Set spike=10.0."
            )
        check("LossGuard.max_loss", max_loss, Check(is_number, "a number", "100.0", optional=True))
        check("LossGuard.spike", spike, number(1, above=True, example=10, optional=True))
        check("LossGuard.window", window, integer(1, example=100))
        check("LossGuard.on", on, choice("restore", "stop", "warn"))
        self._max_loss, self._spike, self._on = max_loss, spike, on
        self._losses: collections.deque[float] = collections.deque(maxlen=window)

    def begin(self, run: RunContext) -> None:
        """Begins an empty window; refuses a training that cannot return to a checkpoint."""
        self._losses.clear()
        if self._on == "restore":
            run.check_can_skip("LossGuard.on is 'restore'", "Set on='stop'.")

    def restore(self, run: RunContext, state: Any) -> None:
        """Continues the window of the checkpoint."""
        self._losses.extend(state)

    def state(self) -> Any:
        """Returns the window."""
        return list(self._losses)

    def after_loop(self, run: RunContext) -> None:
        """Compares the losses of the call, in order; only a warning continues after a bad one."""
        report = run.report
        for step, loss in enumerate(map(float, report.losses), run.step - report.num_steps + 1):
            problem = self._problem(loss) if math.isfinite(loss) else None
            if problem is not None:
                self._act(run, step, f"the loss is {loss:.4g} in step {step}, {problem}")
                if self._on != "warn":
                    return
            if math.isfinite(loss):
                self._losses.append(loss)

    def _problem(self, loss: float) -> str | None:
        """Returns which bound a loss exceeds, in words."""
        if self._max_loss is not None and loss > self._max_loss:
            return f"above max_loss={self._max_loss:g}"
        if self._spike is None or len(self._losses) < self._losses.maxlen:
            return None
        median = statistics.median(self._losses)
        if median <= 0 or loss <= self._spike * median:
            return None
        return f"above {self._spike:g} times {median:.4g}, the median of {len(self._losses)} steps"

    def _act(self, run: RunContext, step: int, reason: str) -> None:
        if self._on == "restore":
            run.skip_step(step, reason)
        elif self._on == "stop":
            run.request_stop(f"LossGuard: {reason}")
        elif run.is_chief:
            logging.warning("train | %s", reason)
