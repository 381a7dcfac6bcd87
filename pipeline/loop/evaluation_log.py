# SPDX-License-Identifier: Apache-2.0
"""The evaluations of a run: in memory for hooks, and in the records of model_dir."""

import dataclasses
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from ..checkpoint import files
from ..contract.hooks import RunContext
from ..contract.run_config import RunConfig
from ..distribute.replicas import Replicas
from ..model_dir import best_record, records, storage_watchdog
from ..model_dir.evaluation_results import Evaluated, from_json, to_json
from ..model_dir.files import writing
from .parts import Part, Start
from .specs import EvalSpec


class EvaluationLog(Part):
    """Keeps which evaluations of a run were made.

    Attributes:
      history: evaluations of the run up to its step, by name of the EvalSpec; the same list that
        hooks read.
      run_id: id of the run, in its checkpoints and in each record; None if unknown.
    """

    def __init__(
        self, config: RunConfig, specs: Sequence[EvalSpec] = (), replicas: Replicas | None = None
    ) -> None:
        """Reads and writes nothing yet.

        Args:
          config: how to run.
          specs: the evaluations of a training; `restore` reads their records.
          replicas: replicas that train; None for one process that only evaluates.
        """
        self.history: dict[str, list[Evaluated]] = {}
        self.run_id: str | None = uuid.uuid4().hex
        self._model_dir = config.model_dir
        self._specs = specs
        self._replicas = replicas
        is_chief = replicas is None or replicas.is_chief
        self._writes = is_chief and config.save_checkpoints_steps != 0
        self._made: dict[str, Evaluated] = {}  # Since the start, by name.

    def restore(self, run: RunContext, start: Start) -> None:
        """Reads the records up to the step of the run; writes the rules of the best ones."""
        self.run_id = start.states.get("run_id", self.run_id)
        self._made.clear()
        for spec in self._specs:
            self.history[spec.name] = self._read_for_all(spec, run.step)
        rules = [rule for spec in self._specs for rule in spec.rules(self.run_id)]
        if self._writes and (rules or best_record.rules(self._model_dir)):
            best_record.write(self._model_dir, rules, files.committed_names(self._model_dir))

    def state(self) -> Mapping[str, Any]:
        """Returns the id of the run."""
        return {"run_id": self.run_id}

    def made(self, spec: EvalSpec) -> Evaluated | None:
        """Returns the last evaluation that hooks of this process got; None before the first."""
        return self._made.get(spec.name)

    def recorded(self, spec: EvalSpec, step: int) -> Evaluated | None:
        """Returns the evaluation of a step, of this or an earlier process; None for none."""
        return next((each for each in self.history[spec.name] if each.step == step), None)

    def add(self, spec: EvalSpec, result: Evaluated) -> None:
        """Adds an evaluation that was made or received, before hooks get it."""
        earlier = [each for each in self.history.get(spec.name, ()) if each.step < result.step]
        self.history[spec.name] = [*earlier, result]
        self._made[spec.name] = result

    def write(self, spec: EvalSpec, result: Evaluated, path: str | None) -> None:
        """Records an evaluation in model_dir; `path` is its checkpoint, None for none."""
        if self._writes:
            checkpoint = os.path.basename(path) if path else None
            result = dataclasses.replace(result, checkpoint=checkpoint, run_id=self.run_id)
            storage_watchdog.call(self._model_dir, self._write, spec, result)

    def read(self, spec: EvalSpec, offset: int = 0) -> tuple[list[Evaluated], int]:
        """Returns the records of the run after an offset, and the offset after them."""
        folder = os.path.join(self._model_dir, spec.folder)
        return records.read(folder, offset, run_id=self.run_id)

    def _read_for_all(self, spec: EvalSpec, step: int) -> list[Evaluated]:
        """Returns the records up to a step as the chief reads them; all processes call it."""
        found = self.read(spec)[0] if self._writes else []
        lines = "\n".join(to_json(each) for each in found if each.step <= step)
        if self._replicas is not None:
            lines = self._replicas.broadcast(lines)
        return [from_json(line) for line in lines.split("\n") if line]

    def _write(self, spec: EvalSpec, result: Evaluated) -> None:
        with writing(self._model_dir, f"the evaluation of step {result.step}"):
            records.append(os.path.join(self._model_dir, spec.folder), result)
            if spec.keep_best:  # The checkpoint may still be written.
                existing = {*files.committed_names(self._model_dir), result.checkpoint}
                best_record.write(self._model_dir, best_record.rules(self._model_dir), existing)


def best_checkpoints(model_dir: str) -> list[str]:
    """Returns the path prefixes of the checkpoints that stay for their metrics."""
    existing = files.committed_names(model_dir)
    return [
        os.path.join(model_dir, each.checkpoint)
        for rule in best_record.rules(model_dir)
        for each in best_record.winners(model_dir, rule, existing)
    ]
