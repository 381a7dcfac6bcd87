"""Returns a training to its best weights, as `restore_best` of a stopping rule asks.

a rule with restore_best has asked to stop
write which rule returns to which step, so that a restart ends there at once
delete the checkpoints after the best one, restore that
evaluate and export it, as at each end
"""

import json
import os
from collections.abc import Sequence
from typing import Any

from absl import logging

from ..checkpoint import files
from ..contract.hooks import Hook, Run
from ..hooks.stopping_rules import StopIfNoImprovement
from ..model_dir import best
from ..model_dir.files import read_json, write_atomic
from .run_files import RunFiles

_FILE = "restored_best.json"


class BestWeights:
    """The return of one training to its best checkpoint."""

    def __init__(self, hooks: Sequence[Hook], files: RunFiles, model_dir: str) -> None:
        """Takes the hooks of the training, and its files."""
        rules = [hook for hook in hooks if isinstance(hook, StopIfNoImprovement)]
        self._rules = [rule for rule in rules if rule.restore_best]
        self._files = files
        self._model_dir = model_dir

    def begin(self, run: Run) -> None:
        """Ends a training at once that one of the rules has ended at this step before."""
        known = read_json(self._file, dict) if self._rules and run.leads else None
        for rule in self._rules:
            if known and known == self._content(rule, run.step, known.get("reason")):
                run.request_stop(known["reason"])

    def rule(self, run: Run) -> StopIfNoImprovement | None:
        """Returns the rule that ended the training; None if none of them did."""
        ended = (rule for rule in self._rules if _reason(rule, run) in run.stop_reasons)
        return next(ended, None)

    def path(self, rule: StopIfNoImprovement) -> str:
        """Returns the path prefix of the best checkpoint; '' if all values are NaN."""
        folder = f"eval_{rule.evaluation}" if rule.evaluation else "eval"
        kept = best.Rule(folder, rule.metric, rule.higher_is_better, 1, self._files.run_id)
        names = [os.path.basename(path) for path in files.committed(self._model_dir)]
        found = best.winners(self._model_dir, kept, names)
        return os.path.join(self._model_dir, found[0].checkpoint) if found else ""

    def write(self, rule: StopIfNoImprovement, run: Run, path: str) -> None:
        """Writes that the training returns to a checkpoint.

        Args:
          rule: the rule that ended it.
          run: the run, at the step that it reached.
          path: path prefix of the checkpoint.
        """
        step = files.step_of(path)
        logging.info("train | returning from step %d to the best one, %d", run.step, step)
        content = self._content(rule, step, _reason(rule, run))
        write_atomic(self._file, json.dumps(content, indent=2))

    @property
    def _file(self) -> str:
        return os.path.join(self._model_dir, _FILE)

    def _content(self, rule: StopIfNoImprovement, step: int, reason: Any) -> dict[str, Any]:
        return {"run_id": self._files.run_id, "rule": repr(rule), "step": step, "reason": reason}


def _reason(rule: StopIfNoImprovement, run: Run) -> str:
    return f"{rule.title}: {rule.decide(rule.history(run))}"
