# SPDX-License-Identifier: Apache-2.0
"""The hook that logs the progress of a training."""

import math
import time

from absl import logging

from ..contract.hooks import Hook, Report, RunContext, as_text
from ..run import log
from ..run.durations import clock

_TERMINAL_SECS = 1.0  # Between two lines on a terminal, where the bar shows the rest.


class LoggingHook(Hook):
    """Logs speed, loss, metrics and the time that is left."""

    def __init__(self, every_steps: int) -> None:
        """Sets the steps between two lines."""
        self.every_steps = every_steps
        self._logged_at = -math.inf

    def after_step(self, run: RunContext) -> None:
        """Logs the report, in the process that leads; on a terminal at most once a second."""
        now = time.monotonic()
        if run.is_chief and not (log.is_terminal() and now - self._logged_at < _TERMINAL_SECS):
            self._logged_at = now
            logging.info("%s", _line(run.report, run.max_step))

    def end(self, run: RunContext) -> None:
        """Logs the rest of the steps."""
        report = run.report
        if run.is_chief and report.num_steps:
            logging.info("%s", _line(report, None))


def _line(report: Report, max_step: int | None) -> str:
    """Returns `train | step 1200 | 83.1 steps/s | 5318 examples/s | loss 0.312 | ETA ...`.

    On a terminal without examples/s and the last step, so that it fits.
    """
    is_short = log.is_terminal()
    speed = report.steps_per_sec
    wait = "" if report.input_wait is None else f" | input {report.input_wait:.0%}"
    eta = ""
    if max_step is not None and max_step > report.step and speed:
        eta = f" | ETA {clock((max_step - report.step) / speed)}"
        eta += "" if is_short else f" to step {max_step}"
    examples = "" if is_short else f" | {report.examples_per_sec:.0f} examples/s"
    values = as_text({"loss": report.loss, **report.metrics})
    return f"train | step {report.step} | {speed:.1f} steps/s{examples}{wait}{values}{eta}"
