# SPDX-License-Identifier: Apache-2.0
"""Applies `RunConfig.on_nan` to the losses and the variables of a training."""

import numpy as np
from absl import logging

from ..checkpoint import files
from ..checkpoint.reader import Reader, listed
from ..contract.hooks import RunContext, SkippedStep
from ..errors import NanLossDuringTrainingError
from ..train.compiled_loop import Steps
from .parts import Part, Start
from .skipped_steps import SkippedSteps
from .train_state import TrainState


class NanPolicy(Part):
    """Stops a training, skips a step or warns if a number is NaN or infinite.

    Losses are checked after each call, and variables before each save: some layers turn NaN into a
    number, and the loss stays finite. The relu of some processors does.
    """

    def __init__(self, state: TrainState, skipped: SkippedSteps) -> None:
        """Takes the variables, and the steps that may be skipped.

        Raises:
          UserValueError: the option needs checkpoints to return to, and there are none.
        """
        self._state, self._skipped = state, skipped
        self._on_nan, self._model_dir = state.config.on_nan, state.config.model_dir
        self._skips = self._on_nan in ("restore", "dump")
        if self._skips:
            problem = f"RunConfig.on_nan is {self._on_nan!r}"
            skipped.check_supported(problem, "Set on_nan='stop'.")

    def restore(self, run: RunContext, start: Start) -> None:
        """Checks the variables of a checkpoint.

        Raises:
          NanLossDuringTrainingError: they have NaN, and `on_nan` is not 'warn'.
        """
        names = self._state.nonfinite() if start.checkpoint else []
        if names:
            good = _newest_finite(self._model_dir, names)
            remedy = f"{good} has none: delete the later checkpoints" if good else "Start again"
            problem = f"{start.checkpoint} has NaN or infinity in {some_of(names)}"
            self._report(problem, f"{remedy}, or set on_nan='warn'")

    def check(self, steps: Steps) -> None:
        """Checks the losses of a call.

        Raises:
          NanLossDuringTrainingError: one is not finite, and `on_nan` is 'stop'.
        """
        step = steps.nonfinite_step
        if step is None:
            return
        if self._skips:
            self._skip(step, f"the loss or a gradient is NaN or infinite in step {step}")
        else:
            problem = f"the loss is NaN or infinite in step {step}"
            self._report(problem, "Lower the learning rate, or set on_nan='warn' or 'restore'")

    def check_variables(self, run: RunContext, good: str | None, *, may_skip: bool = True) -> None:
        """Checks the variables before they are saved; every process must call it.

        Args:
          run: the run.
          good: path prefix of the checkpoint before; None for none.
          may_skip: whether the step can be skipped if there is a checkpoint before.

        Raises:
          NanLossDuringTrainingError: they have NaN, and `on_nan` is 'stop' or cannot skip the step.
          Rewind: they have NaN, and `on_nan` skips the step.
        """
        names = self._state.nonfinite()
        if not self._state.replicas.any(bool(names)):
            return
        problem = f"{some_of(names)} became NaN or infinite up to step {run.step}, "
        problem += "while the loss was finite"
        if self._skips and may_skip and good:
            self._skip(run.step, problem)
            self._skipped.raise_requested()
        place = f"{good} is the last good checkpoint. " if good else ""
        remedy = (
            f"{place}Look for NaN in the input and in initial values, or lower the learning rate"
        )
        if not self._skips:
            remedy += ", or set on_nan='restore', which checks gradients, or 'warn'"
        self._report(problem, remedy)

    def _skip(self, step: int, reason: str) -> None:
        self._skipped.request(SkippedStep(step, reason, ends=self._on_nan == "dump"))

    def _report(self, problem: str, remedy: str) -> None:
        if self._on_nan == "warn":
            logging.warning("%s.", problem)
            return
        raise NanLossDuringTrainingError(f"{problem}. {remedy}.")


def some_of(names: list[str]) -> str:
    """Returns the first names, or that variables of another process are meant."""
    return listed(names, 3) if names else "variables of another process"


def _newest_finite(model_dir: str, names: list[str]) -> str | None:
    """Returns the newest checkpoint with finite values of these variables; None for none."""
    for path in reversed(files.committed(model_dir)):
        reader = Reader(path)
        if all(np.isfinite(reader.value(name)).all() for name in names if name in reader.shapes):
            return path
    return None
