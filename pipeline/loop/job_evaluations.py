# SPDX-License-Identifier: Apache-2.0
"""Sends the evaluations that an evaluator job makes to the hooks of the training."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ..contract.hooks import RunContext
from ..model_dir import storage_watchdog
from ..model_dir.evaluation_results import Evaluated, from_json, to_json
from .evaluation_log import EvaluationLog
from .hook_list import HookList
from .parts import Boundary, Evaluations, Start
from .specs import EvalSpec
from .train_state import TrainState

_POLL_SECS = 2.0


class JobEvaluations(Evaluations):
    """The evaluations that another process makes of this training.

    The chief reads their records. All processes send the same evaluations to their hooks at the
    same step, each evaluation once, also over restarts.
    """

    def __init__(
        self, specs: Sequence[EvalSpec], state: TrainState, log: EvaluationLog, hooks: HookList
    ) -> None:
        """Takes the evaluations of the evaluator job.

        Args:
          specs: the evaluations.
          state: what is trained.
          log: gets the results.
          hooks: get the results.
        """
        self._specs = {spec.folder: spec for spec in specs}
        self._model_dir, self._replicas = state.config.model_dir, state.replicas
        self._log = log
        self._hooks = hooks
        self._sent: dict[str, int] = {}  # Last step that hooks got, by folder.
        self._new: list[tuple[str, Evaluated]] = []
        self._offsets: dict[str, int] = {}
        self._read_at = 0.0
        self._reading: Future | None = None

    def restore(self, run: RunContext, start: Start) -> None:
        """Continues after the evaluations that hooks had got before the checkpoint."""
        self._sent = dict(start.states.get("recorded", {}))
        self._offsets = dict.fromkeys(self._specs, 0)
        self._new, self._reading = [], None

    def state(self) -> Mapping[str, Any]:
        """Returns the last step that hooks got, by folder."""
        return {"recorded": self._sent}

    def flags(self, run: RunContext) -> list[bool]:
        """Returns whether this process has found new ones; it looks every two seconds."""
        is_due = time.monotonic() - self._read_at >= _POLL_SECS
        if self._replicas.is_chief and is_due:
            self._read_at = time.monotonic()
            self._reading = self._reading or storage_watchdog.call(self._model_dir, self._read)
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            self._take(reading.result(), run.step)
        return [bool(self._new)]

    def due(
        self, step: int, has_new: Sequence[bool], *, at_checkpoint: bool, is_final: bool
    ) -> tuple[str, ...]:
        """Returns all folders if the chief has found new ones."""
        return tuple(self._specs) if any(has_new) else ()

    def make(self, run: RunContext, now: Boundary) -> None:
        """Sends the new evaluations to the hooks, by step."""
        if not now.evaluates:
            return
        new = sorted(self._new, key=lambda pair: pair[1].step)
        lines = [f"{folder}\t{to_json(each)}" for folder, each in new]
        self._new = []
        for line in self._replicas.broadcast("\n".join(lines)).split("\n"):
            folder, _, content = line.partition("\t")
            spec, result = self._specs[folder], from_json(content)
            self._sent[folder] = result.step
            self._log.add(spec, result)
            self._hooks.after_evaluation(run, spec.name, result)

    def _read(self) -> dict[str, tuple[list[Evaluated], int]]:
        """Returns new evaluations, and the offset after them, by folder."""
        return {
            folder: self._log.read(self._specs[folder], offset)
            for folder, offset in self._offsets.items()
        }

    def _take(self, found: Mapping[str, tuple[list[Evaluated], int]], step: int) -> None:
        """Keeps the evaluations that hooks did not get."""
        for folder, (evaluations, offset) in found.items():
            self._offsets[folder] = offset
            last = self._sent.get(folder, -1)
            # Evaluations of later steps are of weights that were lost.
            self._new += [(folder, each) for each in evaluations if last < each.step <= step]
