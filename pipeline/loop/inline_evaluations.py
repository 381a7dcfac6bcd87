# SPDX-License-Identifier: Apache-2.0
"""The evaluations that a training makes itself, between two compiled calls."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from ..contract.hooks import RunContext
from ..contract.user_errors import collected
from ..distribute.replicas import Replicas
from ..model_dir.evaluation_results import Evaluated
from ..run import signals
from .checkpointing import Checkpointing
from .evaluation import Evaluation
from .evaluation_log import EvaluationLog
from .hook_list import HookList
from .parts import Boundary, Evaluations, Start
from .specs import EvalSpec

# Takes an evaluation, its result, its checkpoint's path prefix, and whether training has ended.
Export = Callable[[EvalSpec, Evaluated, str | None, bool], None]


@dataclasses.dataclass
class InlineEvaluations(Evaluations):
    """Decides when each evaluation is due, and sends its results to the log and the hooks.

    A checkpoint lists the evaluations that are due at its step: they are made after it, so that its
    hook states do not have them. A restart sends the recorded ones to the hooks, and makes the
    others.

    Attributes:
      evaluations: the evaluations, in the order of their calls.
      replicas: replicas that train.
      checkpoints: has the step that is saved.
      log: gets the results.
      hooks: get the results.
      export: called after each evaluation, such as for exporters.
    """

    evaluations: Sequence[Evaluation]
    replicas: Replicas
    checkpoints: Checkpointing
    log: EvaluationLog
    hooks: HookList
    export: Export

    def __post_init__(self) -> None:
        self._start_step = 0
        self._owed: set[str] = set()  # Folders of evaluations due at the start.
        self._finished: set[str] = set()  # Folders of evaluations made as the last ones.

    def restore(self, run: RunContext, start: Start) -> None:
        """Takes the evaluations that were due when the checkpoint was saved."""
        self._start_step = start.step
        owed = start.states.get("evaluations", ())
        if start.checkpoint is None and not start.step:
            owed = [each.spec.folder for each in self.evaluations if each.spec.at_start]
        self._owed = set() if run.is_at_end else set(owed)
        self._finished.clear()

    def next_step(self, step: int) -> float:
        """Returns the next multiple of any `every_steps`, whether saved or not."""
        return min((each.next_step(step) for each in self.evaluations), default=math.inf)

    def flags(self, run: RunContext) -> list[bool]:
        """Returns for each evaluation whether the clock of this process forbids it."""
        return [each.wait_secs(self.log.made(each.spec)) > 0 for each in self.evaluations]

    def due(
        self, step: int, is_throttled: Sequence[bool], *, at_checkpoint: bool, is_final: bool
    ) -> tuple[str, ...]:
        """Returns the folders of the evaluations that are due."""
        if is_final:
            folders = [each.spec.folder for each in self.evaluations]
            return tuple(folder for folder in folders if folder not in self._finished)
        due = [self._is_due(each, step, at_checkpoint) for each in self.evaluations]
        found = []
        for each, is_due, throttled in zip(self.evaluations, due, is_throttled, strict=True):
            if is_due and throttled:
                each.log_throttled(step, self.log.made(each.spec))
            elif is_due:
                found.append(each.spec.folder)
        return tuple(found)

    def need_checkpoint(self, folders: Sequence[str]) -> bool:
        """Returns whether one of the evaluations needs the checkpoint of its step."""
        specs = [each.spec for each in self.evaluations if each.spec.folder in folders]
        return any(spec.keep_best or spec.exporters for spec in specs)

    def not_made(self, step: int, now: Boundary) -> list[str]:
        """Returns the evaluations of a step that hooks did not get before their states are saved.

        After a signal these are the ones that an earlier checkpoint, or a new run, had to make.
        """
        folders = {*now.evaluates, *(self._owed if step == self._start_step else ())}
        due = [each for each in self.evaluations if each.spec.folder in folders]
        return [each.spec.folder for each in due if self._made(each, step) is None]

    def make(self, run: RunContext, now: Boundary) -> None:
        """Makes the evaluations that are due: records, sends to the hooks, exports."""
        checkpoint = self.checkpoints.saved_path(run.step)
        # One that fails does not prevent the others, unless other processes would wait for it.
        with collected(at_once=self.replicas.num_processes > 1) as attempt:
            for each in self.evaluations:
                if each.spec.folder not in now.evaluates:
                    continue
                with attempt(f"{each.title} of step {run.step} failed."):
                    result = self._known(each, run.step)
                    if is_new := result is None:
                        result = each(signals.is_pending)
                    if result is None:
                        break  # A signal has arrived.
                    if is_new:
                        self.log.write(each.spec, result, checkpoint)
                        run.summaries[each.spec.name] = each.summaries
                    self._send(each, run, result)
                    if is_new or now.is_final:
                        self._call_exporters(each, result, checkpoint, is_final=now.is_final)

    def _is_due(self, each: Evaluation, step: int, at_checkpoint: bool) -> bool:
        every = each.spec.every_steps
        is_boundary = step % every == 0 if every else at_checkpoint
        if step == self._start_step:
            is_boundary = each.spec.folder in self._owed
        return is_boundary and each.is_due(step, self.log.made(each.spec))

    def _made(self, each: Evaluation, step: int) -> Evaluated | None:
        """Returns the result of a step if hooks have got it since the start."""
        made = self.log.made(each.spec)
        return made if made is not None and made.step == step else None

    def _known(self, each: Evaluation, step: int) -> Evaluated | None:
        """Returns the result of a step if it does not have to be evaluated."""
        is_owed = step == self._start_step and each.spec.folder in self._owed
        recorded = self.log.recorded(each.spec, step) if is_owed else None
        return self._made(each, step) or recorded

    def _send(self, each: Evaluation, run: RunContext, result: Evaluated) -> None:
        """Sends a result to the hooks, unless they have it."""
        if self._made(each, run.step) is None:
            self.log.add(each.spec, result)
            self.hooks.after_evaluation(run, each.spec.name, result)

    def _call_exporters(
        self, each: Evaluation, result: Evaluated, checkpoint: str | None, *, is_final: bool
    ) -> None:
        is_stock = all(exporter.is_stock for exporter in each.spec.exporters)
        if self.replicas.is_chief and not is_stock:
            self.checkpoints.wait(alone=True)  # They may read the files.
        self.export(each.spec, result, checkpoint, is_final)
        if is_final:
            self._finished.add(each.spec.folder)
