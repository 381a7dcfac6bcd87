# SPDX-License-Identifier: Apache-2.0
"""Shows the progress bar of a training."""

from ..contract.hooks import Hook, RunContext, as_text
from ..run.progress import Progress


class ProgressHook(Hook):
    """Shows a bar with the loss and the metrics of the last call, in a terminal or notebook."""

    def __init__(self) -> None:
        """Shows nothing before `begin`."""
        self._progress: Progress | None = None

    def begin(self, run: RunContext) -> None:
        """Shows the bar."""
        self._progress = Progress("train", total=run.max_step, start=run.step)

    def after_loop(self, run: RunContext) -> None:
        """Moves the bar."""

        def values() -> str:
            report = run.report
            if not report.num_steps:  # Another hook has just had all.
                return ""
            return as_text({"loss": report.loss, **report.metrics})

        self._progress.update(run.step, values)

    def close(self) -> None:
        """Removes the bar; called at the end of each training, also after an error."""
        if self._progress is not None:
            self._progress.close()
