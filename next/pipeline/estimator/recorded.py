"""Sends the evaluations that an evaluator job records to the hooks of the training."""

import os
import time
from collections.abc import Mapping, Sequence

from ..contract.hooks import Run
from ..distribute.replicas import Replicas
from ..model_dir import records
from .run_files import RunFiles
from .specs import EvalSpec
from .windows import Windows

_POLL_SECS = 2.0


class RecordedEvaluations:
    """Reads the records of evaluations that other processes make of this training.

    The chief reads, and all processes send the same evaluations to their hooks at the same step,
    each evaluation once.
    """

    def __init__(
        self,
        specs: Sequence[EvalSpec],
        model_dir: str,
        replicas: Replicas,
        files: RunFiles,
        hooks: Windows,
    ) -> None:
        """Takes the parts.

        Args:
          specs: the evaluations of an evaluator job; none without one.
          model_dir: directory of the run.
          replicas: replicas that train.
          files: knows the id of the run.
          hooks: hooks of the training.
        """
        self._specs = {spec.folder: spec for spec in specs}
        self._model_dir = model_dir
        self._replicas = replicas
        self._files = files
        self._hooks = hooks
        self._offsets = dict.fromkeys(self._specs, 0)
        self._sent: dict[str, int] = {}  # Last step by folder.
        self._new: list[tuple[str, records.Evaluated]] = []
        self._read_at = 0.0

    def state(self) -> dict[str, int]:
        """Returns the last step that was sent by folder, for the checkpoint."""
        return self._sent

    def resume(self, sent: Mapping[str, int]) -> None:
        """Continues after the evaluations of `state`."""
        self._sent = dict(sent)

    def has_new(self, run: Run) -> bool:
        """Returns whether this process has found new ones; it looks every two seconds."""
        is_due = time.monotonic() - self._read_at >= _POLL_SECS
        if self._specs and self._replicas.is_chief and is_due:
            self._read_at = time.monotonic()
            for folder in self._specs:
                path = os.path.join(self._model_dir, folder)
                found, self._offsets[folder] = records.read(
                    path, self._offsets[folder], run_id=self._files.run_id
                )
                last = self._sent.get(folder, -1)
                # Evaluations of later steps are of weights that were lost.
                self._new += [(folder, each) for each in found if last < each.step <= run.step]
        return bool(self._new)

    def send(self, run: Run) -> None:
        """Sends the new evaluations to the hooks, by step; every process must call it."""
        new = sorted(self._new, key=lambda pair: pair[1].step)
        lines = [f"{folder}\t{records.to_json(each)}" for folder, each in new]
        text = self._replicas.broadcast("\n".join(lines))
        self._new = []
        for line in text.split("\n"):
            folder, _, content = line.partition("\t")
            evaluated, name = records.from_json(content), self._specs[folder].name
            self._sent[folder] = evaluated.step
            for reason in evaluated.stop:
                run.request_stop(f"evaluation {name}: {reason}".replace(" :", ":"))
            self._hooks.after_evaluation(run, name, evaluated.metrics)
