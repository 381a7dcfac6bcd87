"""The evaluations of a training: when each is due, and who gets its results."""

import dataclasses
import math
from collections.abc import Callable, Sequence

from ..contract.hooks import Run
from ..contract.user_errors import collected
from ..distribute.replicas import Replicas
from .evaluation import Evaluation
from .run_files import RunFiles
from .saver import Saver
from .windows import Windows

# Takes an evaluation, the path prefix of its checkpoint, and whether training has ended.
AfterEvaluation = Callable[[Evaluation, str | None, bool], None]


@dataclasses.dataclass
class Evaluations:
    """The evaluations of one training. Every process must call the same methods.

    decide:  which are due at this step, before it is saved
    (save):  the checkpoint lists them, so that a restart makes those that a kill prevented
    make:    evaluate; record, log and export the results, and send them to the hooks

    Attributes:
      evaluations: the evaluations, in the order in which they are made.
      replicas: replicas that train.
      saver: writes the checkpoints.
      files: where results are recorded.
      hooks: hooks of the training.
      export: called after each evaluation, such as for exporters.
      due: folders of the evaluations that are due.
    """

    evaluations: Sequence[Evaluation]
    replicas: Replicas
    saver: Saver
    files: RunFiles
    hooks: Windows
    export: AfterEvaluation
    due: list[str] = dataclasses.field(default_factory=list)

    def next_step(self, step: int) -> float:
        """Returns the next step at which one is due, whether saved or not."""
        return min((each.next_step(step) for each in self.evaluations), default=math.inf)

    def at_start(self) -> None:
        """Decides for the first step of a new training."""
        self.due = [each.spec.folder for each in self.evaluations if each.spec.at_start]

    def resume(self, run: Run, due: Sequence[str]) -> None:
        """Continues a training: makes those due that its checkpoint lists and that have no record.

        Recorded results are sent to the hooks, whose states are those of the checkpoint.
        """
        for each in self.evaluations:
            if each.result is not None and each.result.step > run.step:
                each.result = None  # Training has returned to the checkpoint.
            if each.spec.folder not in due:
                continue
            found = self.files.recorded(each.spec, run.step)
            if self.replicas.any(found is None):
                self.due.append(each.spec.folder)
            else:
                each.result = found
                self.hooks.after_evaluation(run, each.spec.name, found)

    def decide(self, run: Run, *, saves: bool, finished: bool) -> bool:
        """Decides which evaluations are due; returns whether one of them needs a checkpoint."""
        due = [each for each in self.evaluations if self._is_due(each, run, saves, finished)]
        self.due = [each.spec.folder for each in due]
        return any(each.spec.keep_best or each.spec.exporters for each in due)

    def make(self, run: Run, *, is_interrupted: Callable[[], bool], finished: bool = False) -> bool:
        """Makes the evaluations that are due; returns whether any was."""
        # One that fails does not prevent the others, unless other processes would wait for it.
        any_due, checkpoint = bool(self.due), self.saver.checkpoint(run.step)
        with collected(at_once=self.replicas.num_processes > 1) as attempt:
            for each in self.evaluations:
                with attempt(f"{each.title} of step {run.step} failed."):
                    is_due = each.spec.folder in self.due
                    if is_due:
                        if each(is_interrupted) is None:
                            break
                        self.due.remove(each.spec.folder)
                        self.files.add(each.spec, each.result, checkpoint)
                        run.summaries[each.spec.name] = each.summaries
                        self.hooks.after_evaluation(run, each.spec.name, each.result)
                    # That it was the last one was not known before, if a hook stopped later.
                    if is_due or finished:
                        is_stock = all(exporter.is_stock for exporter in each.spec.exporters)
                        if self.replicas.is_chief and not is_stock:
                            self.saver.wait(alone=True)  # They may read the files.
                        self.export(each, checkpoint, finished)
        return any_due

    def _is_due(self, each: Evaluation, run: Run, saves: bool, finished: bool) -> bool:
        if finished:
            return each.result is None or each.result.step != run.step
        every = each.spec.every_steps
        is_due = run.step % every == 0 if every else saves
        return is_due and not each.is_throttled(run.step, each.result)
