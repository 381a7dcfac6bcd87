# SPDX-License-Identifier: Apache-2.0
"""Records steps with TensorFlow's profiler."""

import tensorflow as tf

from ..contract.checks import check, integer
from ..contract.hooks import Hook, RunContext
from ..contract.paths import normal


class ProfilerHook(Hook):
    """Records some steps once, for the tab Profile of TensorBoard.

    The profile is below `model_dir/plugins/profile`. One process records.
    """

    def __init__(
        self, first_step: int = 100, num_steps: int = 10, logdir: str | None = None
    ) -> None:
        """Sets the steps to record.

        Args:
          first_step: global step after which recording begins. The first steps of a training
            are slower: they are traced and compiled.
          num_steps: number of steps to record.
          logdir: directory of the profile; None for model_dir.
        """
        check("ProfilerHook.first_step", first_step, integer(1, example=100))
        check("ProfilerHook.num_steps", num_steps, integer(1, example=10))
        self._bounds = (first_step, first_step + num_steps)
        self._logdir = None if logdir is None else normal(logdir, "ProfilerHook.logdir")
        self._is_recording = False

    def next_step(self, step: int) -> int | None:
        """Returns the first or the last step of the recording."""
        return next((bound for bound in self._bounds if bound > step), None)

    def after_step(self, run: RunContext) -> None:
        """Starts or stops recording, in the process that leads."""
        if self._is_recording:
            self.close()
        elif run.is_chief and run.step == self._bounds[0]:
            tf.profiler.experimental.start(self._logdir or run.model_dir)
            self._is_recording = True

    def end(self, run: RunContext) -> None:
        """Writes a recording that the end of the training cuts short."""
        self.close()

    def close(self) -> None:
        """Stops recording; called at the end of each training, also after an error."""
        if self._is_recording:
            self._is_recording = False
            tf.profiler.experimental.stop()
