"""Evaluations along a training, as the loop in `driver.trainer` calls them.

`EvaluationAlong` evaluates in the training's own processes. `EvaluationsBeside` reads
what an evaluator job has evaluated, so that hooks learn of it in the same way.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from pipeline.contract.hooks import Run
from pipeline.driver.estimator import Estimator
from pipeline.driver.trainer import Known
from pipeline.hooks import preemption
from pipeline.hooks.preemption import PreemptedError, PreemptionHook
from pipeline.model_dir import evaluations, storage
from pipeline.roles import evaluation
from pipeline.roles.evaluation import Evaluation
from pipeline.roles.specs import EvalSpec, Result

# Seconds between two looks at what an evaluator job has evaluated.
_LOOK_SECS = 2.0


class EvaluationAlong:
    """One EvalSpec along a training, see `trainer.Evaluation`.

    Each checkpoint keeps whether it was to be evaluated. A run that was killed before
    the end of its evaluation evaluates it when it goes on from there.
    """

    def __init__(
        self,
        estimator: Estimator,
        spec: EvalSpec,
        all_specs: Sequence[EvalSpec],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the Estimator and the spec; `throttle_secs` begin to count.

        Args:
          estimator: Estimator that is trained, and that evaluates and exports.
          spec: EvalSpec of this evaluation.
          all_specs: EvalSpecs of all evaluations along the training.
          clock: function that returns seconds.
        """
        self._estimator = estimator
        self._spec = spec
        self._evaluation = Evaluation(estimator, spec, all_specs)
        self._clock = clock
        self._signals: Sequence[PreemptionHook] = ()
        self._resumes = self._given_up = self._finished = False
        self._last_time = clock()

    def begin(self, run: Run, signals: Sequence[PreemptionHook] = ()) -> None:
        """Traces evaluation and exports: a mistake in them is to end no training later.

        All processes do, as tracing may make variables, which all make together. Not
        earlier: the train step comes first in making them.
        """
        self._signals = signals
        # A training that went back evaluates its steps anew.
        self._evaluation.forget()
        self._resumes = self._given_up = self._finished = False
        evaluation.check_metrics(self._estimator, self._spec)
        self._spec.check_exports(self._estimator)

    def state(self, run: Run) -> Any:
        """Returns JSON that says that the checkpoint is to be evaluated, else None."""
        return {"is_next": True} if self._given_up or self._is_next(run) else None

    def restore(self, run: Run, state: Any) -> None:
        """Has the checkpoint evaluated, maybe again: nothing says whether it was."""
        self._resumes = bool(state.get("is_next"))

    def at_stop(self, run: Run, *, saved: bool) -> list[Known]:
        """Evaluates what was saved, unless it comes too soon; and at the end."""
        due = self._resumes or ((saved or run.finished) and self._is_next(run))
        self._resumes = False
        if run.finished and not preemption.is_stopped(run):
            return self._evaluate_or_give_up(run)
        if not due or self._comes_too_soon(run):
            return []
        return self._evaluate_or_give_up(run)

    def finish(self) -> Result:
        """Returns the metrics and exports of the last evaluation, made if need be."""
        step = self._estimator.global_step
        if not (self._finished and self._evaluation.step == step):
            self._evaluate(is_final=True)
        return self._evaluation.result

    def _is_next(self, run: Run) -> bool:
        """Returns whether a step is one to evaluate, and is not evaluated yet.

        The first step is not. The last is evaluated when the run has finished, unless a
        signal ended it.
        """
        if run.finished:
            return not preemption.is_stopped(run) and self._evaluation.step != run.step
        return run.step not in (run.first_step, run.max_step)

    def _comes_too_soon(self, run: Run) -> bool:
        wait = self._spec.throttle_secs - (self._clock() - self._last_time)
        # Clocks of processes differ, and all have to evaluate or none.
        if run.agree(wait <= 0):
            return False
        if run.leads:
            logging.info(
                "eval | step %d is passed over; the next evaluation is that of the "
                "first checkpoint in %.0f s (throttle_secs=%g)",
                run.step,
                wait,
                self._spec.throttle_secs,
            )
        return True

    def _evaluate_or_give_up(self, run: Run) -> list[Known]:
        """Evaluates and exports; returns what the hooks do not know yet."""
        known = self._evaluation.step == run.step
        try:
            self._evaluate(self._signals, is_final=run.finished)
        except PreemptedError:
            # `state` says so in the last checkpoint: the run that goes on does it.
            self._given_up = True
            self._signals[0].stop(run)
            return []
        if known:
            return []
        for asked in self._evaluation.stop:
            run.request_stop(evaluation.reason(self._spec.name, asked))
        return [(self._spec.name, self._evaluation.metrics)]

    def _evaluate(
        self, signals: Sequence[PreemptionHook] = (), *, is_final: bool = False
    ) -> None:
        """Evaluates the live weights; on the chief, records and exports it."""
        mine, estimator = self._evaluation, self._estimator
        is_chief = estimator.config.is_chief
        # At the end the last checkpoint may be evaluated already: it is only exported.
        if mine.step != estimator.global_step:
            mine.evaluate(hooks=[each.interrupts() for each in signals])
            if is_chief:
                if self._spec.keep_best:  # Only what is on disk can stay.
                    estimator.wait_until_saved()
                with storage.writing(estimator.model_dir, evaluations.FILE):
                    mine.record(estimator.loaded_checkpoint)
        self._last_time = self._clock()
        if is_chief:
            if not all(exporter.is_stock for exporter in self._spec.exporters):
                # An exporter of the user's own may read the files of the checkpoint.
                estimator.wait_until_saved()
            mine.export(estimator.loaded_checkpoint, is_final=is_final)
        self._finished = is_final


class EvaluationsBeside:
    """The evaluations of an evaluator job, as the training beside it learns of them.

    The process that leads looks for new lines of the record from time to time, and
    tells the others what it read. Each checkpoint keeps how far the record was read, so
    that a run that goes on repeats nothing and loses nothing.
    """

    def __init__(
        self,
        estimator: Estimator,
        names: Sequence[str | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the names of the evaluations; reads nothing yet.

        Args:
          estimator: Estimator that is trained.
          names: name of each EvalSpec, or None.
          clock: function that returns seconds.
        """
        self._folders = {name: estimator.eval_dir(name) for name in names}
        self._clock = clock
        self._looked_at: float | None = None
        # By name: the place in the record, and the step of the last evaluation told.
        self._read: dict[str | None, tuple[int, int]] = {}

    def begin(self, run: Run, signals: Sequence[PreemptionHook] = ()) -> None:
        """Passes over what the record holds: it is of an earlier training."""
        self._looked_at = None
        self._read = {
            name: (evaluations.appended(folder)[1], -1)
            for name, folder in self._folders.items()
        }

    def state(self, run: Run) -> Any:
        """Returns JSON of how far each record was read."""
        return {"read": [[name, *read] for name, read in self._read.items()]}

    def restore(self, run: Run, state: Any) -> None:
        """Goes on where the training that saved the checkpoint had read to."""
        for name, place, step in state.get("read", ()):
            if name in self._folders:
                self._read[name] = place, step

    def at_stop(self, run: Run, *, saved: bool) -> list[Known]:
        """Returns the evaluations that were made since the last look, by step."""
        new: list[tuple[str | None, str]] = []
        if run.leads and self._looks(run):
            new = self._look(run)
        new = json.loads(run.from_leader(json.dumps(new)))
        known: list[Known] = []
        for name, line in new:
            (evaluated,) = evaluations.parsed(line)
            for asked in evaluated.stop:
                run.request_stop(evaluation.reason(name, asked))
            known.append((name, evaluated.metrics))
        return known

    def _looks(self, run: Run) -> bool:
        now = self._clock()
        late = self._looked_at is None or now - self._looked_at >= _LOOK_SECS
        if late or run.finished:
            self._looked_at = now
            return True
        return False

    def _look(self, run: Run) -> list[tuple[str | None, str]]:
        """Returns name and line of each new evaluation, by step.

        An evaluator that was started again may evaluate a step again: it is told once.
        One of a step that is still to come was of weights that are lost, as training
        had to go back.
        """
        new = []
        for name, folder in self._folders.items():
            place, last = self._read[name]
            text, place = evaluations.appended(folder, place)
            for evaluated in evaluations.parsed(text):
                if last < evaluated.step <= run.step:
                    last = evaluated.step
                    new.append((last, name, evaluations.as_line(evaluated)))
            self._read[name] = place, last
        new.sort(key=lambda each: each[0])
        return [(name, line) for _, name, line in new]
