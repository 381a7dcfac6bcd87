"""The evaluations of a training: when each is due, and who gets its results."""

import time
from collections.abc import Callable, Sequence

from absl import logging

from ..contract.hooks import Run
from ..contract.user_errors import raise_first
from ..distribute.replicas import Replicas
from ..hooks.stock import as_text
from .evaluation import Evaluation
from .run_files import RunFiles
from .saver import Saver
from .windows import Windows

# Takes an evaluation, the path prefix of its checkpoint, and whether training has ended.
AfterEvaluation = Callable[[Evaluation, str | None, bool], None]


class Evaluations:
    """The evaluations of one training. Every process must call the same methods.

    decide:  which are due at this step, before it is saved
    (save):  the checkpoint lists them, so that a restart makes those that a kill prevented
    make:    evaluate; record, log and export the results, and send them to the hooks
    """

    def __init__(
        self,
        evaluations: Sequence[Evaluation],
        replicas: Replicas,
        saver: Saver,
        files: RunFiles,
        hooks: Windows,
        export: AfterEvaluation,
    ) -> None:
        """Takes the parts; nothing is due yet.

        Args:
          evaluations: the evaluations, in the order in which they are made.
          replicas: replicas that train.
          saver: writes the checkpoints.
          files: where results are recorded.
          hooks: hooks of the training.
          export: called by the chief after each evaluation, such as for exporters.
        """
        self._evaluations = evaluations
        self._replicas = replicas
        self._saver = saver
        self._files = files
        self._hooks = hooks
        self._export = export
        self._due: list[str] = []

    def state(self) -> list[str]:
        """Returns the folders of the evaluations that are due, for the checkpoint."""
        return self._due

    def next_step(self, step: int) -> float:
        """Returns the next step at which one is due, whether saved or not."""
        return min((each.next_step(step) for each in self._evaluations), default=float("inf"))

    def at_start(self) -> None:
        """Decides for the first step of a new training."""
        self._due = [each.spec.folder for each in self._evaluations if each.spec.at_start]

    def resume(self, run: Run, due: Sequence[str]) -> None:
        """Continues a training: what its checkpoint lists is due unless it was recorded.

        Recorded results are sent to the hooks, whose states are those of the checkpoint.

        Args:
          run: the run.
          due: `state` when the checkpoint was written.
        """
        for each in self._evaluations:
            if each.spec.folder not in due:
                continue
            found = self._files.recorded(each.spec, run.step)
            if self._replicas.any(found is None):
                self._due.append(each.spec.folder)
            else:
                each.result = found
                self._send(run, each)

    def decide(self, run: Run, *, saves: bool, finished: bool) -> bool:
        """Decides which evaluations are due.

        Args:
          run: the run.
          saves: whether a checkpoint of this step is due.
          finished: whether training has ended.

        Returns:
          Whether one of them needs the files of this step.
        """
        due = [each for each in self._evaluations if self._is_due(each, run, saves, finished)]
        self._due = [each.spec.folder for each in due]
        return any(each.spec.keep_best or each.spec.exporters for each in due)

    def make(self, run: Run, *, is_interrupted: Callable[[], bool], finished: bool = False) -> bool:
        """Makes the evaluations that are due.

        An evaluation that fails does not prevent the others, unless other processes would wait
        for this one.

        Args:
          run: the run.
          is_interrupted: returns whether to abort; the rest stays due.
          finished: whether training has ended.

        Returns:
          Whether any was due.

        Raises:
          Exception: the first error of an evaluation or an exporter.
        """
        errors: list[Exception] = []
        any_due, checkpoint = bool(self._due), self._saver.checkpoint(run.step)
        for each in self._evaluations:
            try:
                is_due = each.spec.folder in self._due
                if is_due:
                    if each(is_interrupted) is None:
                        break
                    self._due.remove(each.spec.folder)
                    self._files.add(each.spec, each.result, checkpoint)
                    self._log(each)
                    self._send(run, each)
                # An evaluation of this step was not known to be the last if a hook stopped later.
                if (is_due or finished) and self._replicas.is_chief:
                    if not all(exporter.is_stock for exporter in each.spec.exporters):
                        self._saver.wait(alone=True)  # They may read the files.
                    self._export(each, checkpoint, finished)
            except Exception as error:
                error.add_note(f"{each.title} of step {run.step} failed.")
                if self._replicas.num_processes > 1:
                    raise
                errors.append(error)
        raise_first(errors)
        return any_due

    def _is_due(self, each: Evaluation, run: Run, saves: bool, finished: bool) -> bool:
        if finished:
            return each.result is None or each.result.step != run.step
        every = each.spec.every_steps
        if not (run.step % every == 0 if every else saves):
            return False
        throttle = each.spec.throttle_secs
        if not throttle or each.result is None:
            return True
        wait = each.result.time + throttle - time.time()
        is_due = not self._replicas.any(wait > 0)
        if not is_due and self._replicas.is_chief:
            logging.info(
                "%s | step %d is skipped: throttle_secs is %g | the next is in %.0f s or later",
                each.title,
                run.step,
                throttle,
                wait,
            )
        return is_due

    def _log(self, each: Evaluation) -> None:
        if self._replicas.is_chief:
            values = as_text(each.result.metrics)
            logging.info("%s | step %d%s", each.title, each.result.step, values)

    def _send(self, run: Run, each: Evaluation) -> None:
        """Sends results to the hooks of the training."""
        for reason in each.result.stop:
            run.request_stop(f"{each.title}: {reason}")
        self._hooks.after_evaluation(run, each.spec.name, each.result.metrics)
