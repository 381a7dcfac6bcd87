"""Sends the evaluations that an evaluator job records to the hooks of the training."""

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from ..contract.hooks import Run
from ..distribute.replicas import Replicas
from ..model_dir import evaluated, reachable, records
from .run_files import RunFiles
from .specs import EvalSpec
from .windows import Windows

_POLL_SECS = 2.0


@dataclasses.dataclass
class RecordedEvaluations:
    """Reads the records of evaluations that other processes make of this training.

    The chief reads, and all processes send the same evaluations to their hooks at the same step,
    each evaluation once.

    Attributes:
      specs: the evaluations of an evaluator job; none without one.
      model_dir: directory of the run.
      replicas: replicas that train.
      files: knows the id of the run.
      hooks: hooks of the training.
      sent: last step that was sent, by folder.
    """

    specs: Sequence[EvalSpec]
    model_dir: str
    replicas: Replicas
    files: RunFiles
    hooks: Windows
    sent: dict[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._names = {spec.folder: spec.name for spec in self.specs}
        self._offsets = dict.fromkeys(self._names, 0)
        self._new: list[tuple[str, evaluated.Evaluated]] = []
        self._read_at = 0.0
        self._reading: Future | None = None

    def begin(self, sent: Mapping[str, int]) -> None:
        """Begins after the evaluations that a checkpoint has as sent, by folder."""
        self.sent, self._reading = dict(sent), None
        self._offsets = dict.fromkeys(self._names, 0)

    def has_new(self, run: Run) -> bool:
        """Returns whether this process has found new ones; it looks every two seconds."""
        is_due = time.monotonic() - self._read_at >= _POLL_SECS
        if self.specs and self.replicas.is_chief and is_due:
            self._read_at = time.monotonic()
            self._reading = self._reading or reachable.call(self.model_dir, self._read)
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            for folder, (found, offset) in reading.result().items():
                self._offsets[folder] = offset
                last = self.sent.get(folder, -1)
                # Evaluations of later steps are of weights that were lost.
                self._new += [(folder, each) for each in found if last < each.step <= run.step]
        return bool(self._new)

    def _read(self) -> dict[str, tuple[list[evaluated.Evaluated], int]]:
        """Returns new evaluations, and the offset after them, by folder."""
        return {
            folder: records.read(
                os.path.join(self.model_dir, folder), offset, run_id=self.files.run_id
            )
            for folder, offset in self._offsets.items()
        }

    def send(self, run: Run) -> None:
        """Sends the new evaluations to the hooks, by step; every process must call it."""
        new = sorted(self._new, key=lambda pair: pair[1].step)
        lines = [f"{folder}\t{evaluated.to_json(each)}" for folder, each in new]
        self._new = []
        for line in self.replicas.broadcast("\n".join(lines)).split("\n"):
            folder, _, content = line.partition("\t")
            result = evaluated.from_json(content)
            self.sent[folder] = result.step
            self.hooks.after_evaluation(run, self._names[folder], result)
