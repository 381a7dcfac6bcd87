# SPDX-License-Identifier: Apache-2.0
"""Returns a training to its best weights, as `EarlyStopping.restore_best` asks.

a rule with restore_best asks to stop
record the rule and the step, so that a start from that step ends at once
delete the checkpoints after the best one, and start again from it
evaluate and export it, as at each end
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from ..checkpoint import files
from ..contract.hooks import Hook, RunContext
from ..model_dir import best_record
from ..model_dir.files import read_json, write_atomic
from .checkpointing import Checkpointing
from .early_stopping import EarlyStopping
from .evaluation_log import EvaluationLog
from .parts import Part, Rewind, Start
from .train_state import TrainState

_FILE = "restored_best.json"


class BestWeights(Part):
    """The return of one training to its best checkpoint."""

    def __init__(
        self,
        hooks: Sequence[Hook],
        state: TrainState,
        checkpoints: Checkpointing,
        log: EvaluationLog,
    ) -> None:
        """Takes the hooks of the training, its checkpoints and its evaluations."""
        self._rules = [h for h in hooks if isinstance(h, EarlyStopping) and h.restore_best]
        self._model_dir, self._replicas = state.config.model_dir, state.replicas
        self._checkpoints = checkpoints
        self._log = log

    def restore(self, run: RunContext, start: Start) -> None:
        """Ends a training at once that one of the rules has ended at this step before."""
        if not self._rules:
            return
        reason = self._replicas.broadcast(self._known_reason(run) if run.is_chief else "")
        if reason:  # The same in all processes.
            run.request_stop(reason)

    def go_back(self, run: RunContext) -> None:
        """Makes the best checkpoint the newest if a rule has ended the training.

        Raises:
          Rewind: training starts again at that checkpoint.
        """
        rules = {rule.reason(rule.history(run)): rule for rule in self._rules}
        reason = next((each for each in run.stop_reasons if each in rules), None)
        if reason is None:
            return
        rule = rules[reason]
        self._checkpoints.wait()
        path = self._replicas.broadcast(self._best_path(rule) if run.is_chief else "")
        if not path or path == self._checkpoints.saved_path(run.step):
            return
        if run.is_chief:
            step = files.step_of(path)
            logging.info("train | returning from step %d to the best one, %d", run.step, step)
            record = self._record(rule, step, reason)
            write_atomic(self._file, json.dumps(record, indent=2))
        self._checkpoints.go_back(path)
        raise Rewind

    def _known_reason(self, run: RunContext) -> str:
        """Returns why a rule has ended a training at this step; '' if none has."""
        known = read_json(self._file, dict) or {}
        reason = known.get("reason", "")
        records = [self._record(rule, run.step, reason) for rule in self._rules]
        return reason if known in records else ""

    def _best_path(self, rule: EarlyStopping) -> str:
        """Returns the path prefix of the best checkpoint; '' if all values are NaN."""
        folder = f"eval_{rule.evaluation}" if rule.evaluation else "eval"
        kept = best_record.Rule(folder, rule.metric, rule.mode == "max", 1, self._log.run_id)
        found = best_record.winners(self._model_dir, kept, files.committed_names(self._model_dir))
        return os.path.join(self._model_dir, found[0].checkpoint) if found else ""

    @property
    def _file(self) -> str:
        return os.path.join(self._model_dir, _FILE)

    def _record(self, rule: EarlyStopping, step: int, reason: Any) -> Mapping[str, Any]:
        return {"run_id": self._log.run_id, "rule": repr(rule), "step": step, "reason": reason}
