# SPDX-License-Identifier: Apache-2.0
"""Trains on the input: the compiled loop, the position in the data, and their passes."""

from collections.abc import Mapping
from typing import Any

from absl import logging

from ..contract.hooks import RunContext
from ..contract.spec import ModeKeys
from ..contract.user_errors import step_errors
from ..data.open_input import OpenInput
from ..train.compiled_loop import Detail, Steps
from ..train.steps_per_call import StepsPerCall
from .parts import Part, Start
from .skipped_steps import SkippedSteps
from .train_program import TrainProgram


class Engine(Part):
    """Runs steps of one training, up to a boundary or to the end of the data.

    Attributes:
      has_ended: whether the data have ended, and no other pass begins.
    """

    def __init__(self, program: TrainProgram, skipped: SkippedSteps, *, after_rest: bool) -> None:
        """Takes the parts; `restore` opens the input.

        Args:
          program: the input and the compiled loop.
          skipped: steps to read and not to train on.
          after_rest: whether another pass may begin after the rest of an earlier one.
        """
        self.has_ended = False
        self._program, self._state = program, program.state
        self._skipped = skipped
        self._passes = {"after_rest": after_rest, "num_passes": program.num_passes}
        self._steps_per_call = StepsPerCall(
            program.max_steps_per_call, program.state.config.max_loop_secs
        )
        self._data: OpenInput | None = None
        self._position: Mapping[str, Any] = {}

    def restore(self, run: RunContext, start: Start) -> None:
        """Opens the input at its position."""
        position = start.states.get("input")
        self._data = self._program.runner.open(start.step, start.checkpoint, position)
        self.has_ended = False
        if run.max_step is None and self._program.runner.endless and run.is_chief:
            logging.warning("train | no max_steps, and an input without end: stop it yourself")
        if start.checkpoint is None:
            return
        if run.is_chief:
            where = f"step {start.step} of {start.checkpoint} | input at {self._data.place}"
            logging.info("train | resumed from %s", where)
        if self._data.has_ended(start.step, self._program.num_passes):
            self._end_pass(start.step)

    def next_step(self, step: int) -> float:
        """Returns the last step of the next call: by its duration, the data, or a skipped step."""
        ends = self._data.end_step, self._skipped.next_step(step)
        return min(step + self._steps_per_call.num_steps, *ends)

    def run(self, step: int, stop: int, detail: Detail) -> Steps:
        """Trains from `step` to `stop` in one compiled call, or to the end of the data.

        Args:
          step: global step.
          stop: global step after the last one.
          detail: results of the last step.

        Returns:
          The results.
        """
        with step_errors(ModeKeys.TRAIN, step, stop, self._program.input_fn):
            steps = self._program.run_steps(self._data.iterator, step, stop, detail=detail)
        self._state.step = steps.step
        self._state.is_unsaved = self._state.config.save_checkpoints_steps == 0
        self._steps_per_call.record(steps)
        self._data.add(steps.num_steps, steps.examples)
        if steps.input_ended or steps.step == self._data.end_step:
            self._end_pass(steps.step)
        return steps

    def skips(self, step: int) -> bool:
        """Returns whether the batches of the next step are skipped."""
        return self._skipped.is_due(step)

    def skip(self, step: int) -> None:
        """Reads and writes the batches of the next step, without training on them."""
        elements = self._data.skip(step)
        if elements is not None:
            self._skipped.write(elements, self._data.num_batches)
        if elements is None or step == self._data.end_step:
            self._end_pass(step)

    def save(self, checkpoint: str | None) -> Mapping[str, Any]:
        """Writes the iterator of a checkpoint, if one is given; every process must call it.

        Returns:
          The position in the data.
        """
        self._position = self._data.save(checkpoint)
        return self._position

    def state(self) -> Mapping[str, Any]:
        """Returns the position that was saved last."""
        return {"input": self._position}

    def close(self) -> None:
        """Closes the input."""
        if self._data is not None:
            self._data.close()

    def _end_pass(self, step: int) -> None:
        """Begins another pass over the data if there is one."""
        self.has_ended = not self._data.next_pass(step, **self._passes)
