# SPDX-License-Identifier: Apache-2.0
"""The steps that a training skips, since their batches made a loss not finite or too high.

a hook refuses a step: training goes back to the newest checkpoint
train up to the step
read its batches, write them and the weights
continue with the next batches

A checkpoint has the position in the input after the batches that were skipped before it. A
training that is killed before the next checkpoint meets the same step again.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from ..checkpoint.checkpoints import Checkpoints
from ..contract.hooks import RunContext, SkippedStep
from ..contract.run_config import RunConfig
from ..data import bad_batch
from ..errors import NanLossDuringTrainingError, UserValueError
from ..model_dir.files import delete_folder, writing
from .parts import Part, Rewind, Start
from .train_state import TrainState


class SkippedSteps(Part):
    """The steps of one training that are skipped; the same in all processes.

    After a rewind, training meets future steps again, with the same batches. A bad step before
    them shifts the batches of all later steps: then the future steps are forgotten.
    """

    def __init__(self, state: TrainState) -> None:
        """Takes the state; its values before each of the steps are written."""
        self._state, self._config = state, state.config
        self._past: list[SkippedStep] = []
        self._future: list[SkippedStep] = []
        self._written: set[str] = set()
        self._requested: SkippedStep | None = None

    def restore(self, run: RunContext, start: Start) -> None:
        """Takes the steps that were skipped before the checkpoint; the later ones come again."""
        self._requested = None
        old = start.states.get("left_out", [])  # The key before 0.2.0.
        saved = [SkippedStep(*each) for each in start.states.get("skipped_steps", old)]
        steps = [*self._past, *self._future]
        self._past, self._future = saved, steps[len(saved) :]

    def state(self) -> Mapping[str, Any]:
        """Returns the steps that were skipped."""
        return {"skipped_steps": [[each.step, each.reason] for each in self._past]}

    def next_step(self, step: int) -> float:
        """Returns the next global step before a skipped one, infinite for none."""
        starts = [each.step - 1 for each in self._future]
        return min((start for start in starts if start > step), default=math.inf)

    def is_due(self, step: int) -> bool:
        """Returns whether batches are skipped at a global step."""
        return any(each.step - 1 == step for each in self._future)

    def check_supported(self, problem: str, remedy: str) -> None:
        """Refuses a training that cannot skip steps; see `RunContext.check_can_skip`."""
        if (reason := _why_unsupported(self._config, self._state)) is not None:
            raise UserValueError(
                f"{problem}, and {reason}: expected checkpoints to return to, and steps that come "
                f"again in the same order. {remedy}"
            )

    def request(self, step: SkippedStep) -> None:
        """Asks to skip a step; of several requests after one call the smallest step counts."""
        if self._requested is None or step.step < self._requested.step:
            self._requested = step

    def raise_requested(self) -> None:
        """Raises Rewind if a step of the last call is to be skipped."""
        if self._requested is not None:
            raise Rewind(self._requested)

    def add(self, bad: SkippedStep, saved_step: int) -> None:
        """Adds a step.

        Args:
          bad: the step.
          saved_step: step of the newest checkpoint.

        Raises:
          NanLossDuringTrainingError: it is one more than `RunConfig.max_skipped_steps`.
          UserValueError: the checkpoint is later than the step.
        """
        if bad.step <= saved_step:
            raise UserValueError(
                f"skip_step({bad.step}) was called after the checkpoint of step {saved_step}: "
                "expected a step of the last call. Call it in after_loop."
            )
        before = [each for each in self._past if each.step <= bad.step]
        self._past, self._future = before, [bad]
        if len(before) >= self._config.max_skipped_steps and not bad.ends:
            reasons = "".join(f"\n  {each.reason}" for each in [*before, bad])
            raise NanLossDuringTrainingError(
                f"more than max_skipped_steps={self._config.max_skipped_steps} steps went wrong:"
                f"{reasons}\nLower the learning rate, set TrainOp(clip_norm=1.0), look at the "
                f"batches in {self._config.model_dir}/bad_batches, or set a higher "
                "RunConfig.max_skipped_steps."
            )

    def write(self, elements: Sequence[Any], num_batches: int) -> None:
        """Writes and logs the batches that were read, once; every process must call it.

        Args:
          elements: elements of the input of this process.
          num_batches: number of the batches in the pass.

        Raises:
          NanLossDuringTrainingError: training was to end after this.
        """
        bad = self._future.pop(0)
        number = [each.step for each in self._past].count(bad.step)
        folder = bad_batch.folder_of(self._config.model_dir, bad.step, number)
        self._past.append(bad)
        if folder not in self._written:
            self._written.add(folder)
            with writing(self._config.model_dir, folder):
                self._write(folder, bad, elements)
            self._log(folder, bad, elements, num_batches)
        if bad.ends:
            raise NanLossDuringTrainingError(
                f"{bad.reason}. Its batches are in {folder}: set --job=replay "
                f"--bad_batch={folder}, or call replay(estimator, {folder!r})."
            )

    def _write(self, folder: str, bad: SkippedStep, elements: Sequence[Any]) -> None:
        replicas = self._state.replicas
        if replicas.is_chief and tf.io.gfile.exists(folder):  # Of a training before a kill.
            delete_folder(folder)
        replicas.barrier()
        bad_batch.write_elements(folder, replicas.process, elements)
        with self._state.synchronized():
            if replicas.is_chief:
                variables = self._state.variables()
                Checkpoints(folder, variables, asynchronous=False).save(bad.step - 1, {})
        replicas.barrier()
        if replicas.is_chief:
            bad_batch.write_record(folder, bad.step, bad.reason)

    def _log(
        self, folder: str, bad: SkippedStep, elements: Sequence[Any], num_batches: int
    ) -> None:
        if not self._state.replicas.is_chief:
            return
        places = [place for each in elements for place in bad_batch.nonfinite(each)]
        found = f"NaN or Inf in {'; '.join(places)}" if places else "all of it is finite"
        line = "train | step %d | batch %d of the pass is skipped, %s | %s | see %s"
        logging.warning(line, bad.step, num_batches, found, bad.reason, folder)


def _why_unsupported(config: RunConfig, state: TrainState) -> str | None:
    if config.save_checkpoints_steps == 0:
        return "RunConfig.save_checkpoints_steps is 0"
    if config.cluster.has_servers:
        return "training runs on parameter servers"
    return "training runs on a TPU" if state.replicas.shares_trace else None
