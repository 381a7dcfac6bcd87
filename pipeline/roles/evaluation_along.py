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
from pipeline.driver.along import Known
from pipeline.driver.estimator import Estimator
from pipeline.hooks import preemption
from pipeline.hooks.preemption import PreemptedError, PreemptionHook
from pipeline.model_dir import evaluation_record, storage
from pipeline.process.refusals import Refusal
from pipeline.roles import evaluation
from pipeline.roles.evaluation import Evaluation
from pipeline.roles.rules import FedHooks
from pipeline.roles.specs import EvalSpec, Result

# Seconds between two looks at what an evaluator job has evaluated.
_LOOK_SECS = 2.0


class EvaluationAlong:
    """One EvalSpec along a training, see `driver.along`.

    It evaluates what was saved, or every so many steps, saved or not; and the last
    step. Each checkpoint keeps whether its step is to be evaluated. A run that was
    killed before the end of its evaluation evaluates it when it goes on from there.
    """

    def __init__(
        self,
        estimator: Estimator,
        spec: EvalSpec,
        all_specs: Sequence[EvalSpec],
        *,
        fed: FedHooks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the Estimator and the spec; `throttle_secs` begin to count.

        Args:
          estimator: Estimator that is trained, and that evaluates and exports.
          spec: EvalSpec of this evaluation.
          all_specs: EvalSpecs of all evaluations along the training.
          fed: hooks of the training that go by its evaluations; None for none.
          clock: function that returns seconds.
        """
        self._estimator = estimator
        self._spec = spec
        self._evaluation = Evaluation(estimator, spec, all_specs)
        self._fed = fed.of(spec) if fed is not None else []
        self._clock = clock
        self._signals: Sequence[PreemptionHook] = ()
        # Whether it was decided to evaluate this step, and not done yet.
        self._is_next = False
        self._decided: int | None = None
        self._finished = False
        self._last_time = clock()

    def check(self) -> None:
        """Traces evaluation and exports, in all processes, as they may make variables.

        Raises:
          Exception: the error that an evaluation or an export would raise.
        """
        evaluation.check_metrics(self._estimator, self._spec, self._fed)
        self._spec.check_exports(self._estimator)

    def begin(self, run: Run, signals: Sequence[PreemptionHook] = ()) -> None:
        """Begins; what was decided and evaluated before does not count."""
        self._signals = signals
        # A training that went back evaluates its steps anew.
        self._evaluation.forget()
        self._is_next, self._decided, self._finished = False, None, False

    def restore(self, run: Run, state: Any) -> None:
        """Has the checkpoint evaluated, maybe again: nothing says whether it was."""
        self._is_next = bool(state.get("is_next"))

    def state(self, run: Run) -> Any:
        """Returns JSON that says that this step is to be evaluated, else None."""
        return {"is_next": True} if self._is_next else None

    def next_step(self, step: int) -> int | None:
        """Returns the next step to evaluate; None where checkpoints decide."""
        every = self._spec.every_steps
        return (step // every + 1) * every if every else None

    def decide(self, run: Run, *, saved: bool) -> bool:
        """Decides whether to evaluate this step; returns whether it needs its files."""
        if run.finished:
            # A run that a signal ended goes on, and would not have evaluated here.
            if not preemption.is_stopped(run):
                self._is_next = True
        elif self._decided != run.step and self._is_due(run, saved=saved):
            self._decided = run.step
            self._is_next = run.step == run.first_step or not self._is_too_soon(run)
        return self._is_next and self._spec.needs_checkpoint

    def at_stop(self, run: Run) -> list[Known]:
        """Evaluates and exports, if that was decided; returns it for the hooks."""
        # A signal is not to wait for it: the run that goes on makes it.
        if not self._is_next or preemption.is_stopped(run):
            return []
        known = self._evaluation.step == run.step
        try:
            with self._evaluation.named():
                self._evaluate(self._signals, is_final=run.finished)
        except PreemptedError:
            # It stays the next one: the run that goes on makes it.
            self._signals[0].stop(run)
            return []
        self._is_next = False
        if known:
            return []
        for asked in self._evaluation.stop:
            run.request_stop(evaluation.reason(self._spec.name, asked))
        return [(self._spec.name, self._evaluation.metrics)]

    def finish(self) -> Result:
        """Returns the metrics and exports of the last evaluation, made if need be."""
        step = self._estimator.global_step
        if not (self._finished and self._evaluation.step == step):
            self._evaluate(is_final=True)
        return self._evaluation.result

    def _is_due(self, run: Run, *, saved: bool) -> bool:
        """Returns whether a step is one to evaluate, before throttle_secs is asked.

        The last one is evaluated when the run has finished.
        """
        if run.step == run.first_step:
            return self._spec.at_start and run.step == 0
        if run.step == run.max_step:
            return False
        every = self._spec.every_steps
        return run.step % every == 0 if every else saved

    def _is_too_soon(self, run: Run) -> bool:
        secs = self._spec.throttle_secs or 0
        wait = secs - (self._clock() - self._last_time)
        # Clocks of processes differ, and all have to evaluate or none.
        if run.agree(wait <= 0):
            return False
        if run.leads:
            logging.info(
                "eval | step %d is passed over; the next evaluation is the first one "
                "in %.0f s (throttle_secs=%g)",
                run.step,
                wait,
                secs,
            )
        return True

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
                with storage.writing(estimator.model_dir, evaluation_record.FILE):
                    mine.record(estimator.loaded_checkpoint)
        self._last_time = self._clock()
        if is_chief:
            if self._spec.needs_checkpoint:
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
        eval_specs: Sequence[EvalSpec],
        *,
        fed: FedHooks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the evaluations; reads nothing yet.

        Args:
          estimator: Estimator that is trained.
          eval_specs: EvalSpecs of the evaluator job.
          fed: hooks of the training that go by its evaluations; None for none.
          clock: function that returns seconds.
        """
        self._estimator = estimator
        self._eval_specs = eval_specs
        self._folders = {s.name: estimator.eval_dir(s.name) for s in eval_specs}
        self._fed = fed
        self._clock = clock
        self._looked_at: float | None = None
        # By name: the place in the record, and the step of the last evaluation told.
        self._read = {name: (0, -1) for name in self._folders}

    def check(self) -> None:
        """Looks for the metrics that hooks go by, as far as they can be traced here.

        The data of an evaluation may be out of reach for the training. The evaluator
        traces them at its own start, in any case.
        """
        if self._estimator.config.num_ps_replicas:
            return  # It would take modules of its own.
        for spec in self._eval_specs if self._fed is not None else ():
            hooks = self._fed.of(spec)
            try:
                if hooks:
                    evaluation.check_metrics(self._estimator, spec, hooks)
            except Refusal:
                raise
            except Exception as error:
                logging.warning(
                    "train | the metrics that %s goes by cannot be checked here: %s",
                    ", ".join(hook.title for hook in hooks),
                    error,
                )

    def begin(self, run: Run, signals: Sequence[PreemptionHook] = ()) -> None:
        """Passes over what the record holds: it is of an earlier training."""
        self._looked_at = None
        self._read = {
            name: (evaluation_record.appended(folder)[1], -1)
            for name, folder in self._folders.items()
        }

    def next_step(self, step: int) -> None:
        """Asks for no stop: the evaluator has its own time."""

    def decide(self, run: Run, *, saved: bool) -> bool:
        """Decides nothing, and needs no checkpoint but those that there are."""
        return False

    def state(self, run: Run) -> Any:
        """Returns JSON of how far each record was read."""
        return {"read": [[name, *read] for name, read in self._read.items()]}

    def restore(self, run: Run, state: Any) -> None:
        """Goes on where the training that saved the checkpoint had read to."""
        for name, place, step in state.get("read", ()):
            if name in self._folders:
                self._read[name] = place, step

    def at_stop(self, run: Run) -> list[Known]:
        """Returns the evaluations that were made since the last look, by step."""
        new: list[tuple[str | None, str]] = []
        if run.leads and self._looks(run):
            new = self._look(run)
        new = json.loads(run.from_leader(json.dumps(new)))
        known: list[Known] = []
        for name, line in new:
            (evaluated,) = evaluation_record.parsed(line)
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
            text, place = evaluation_record.appended(folder, place)
            for evaluated in evaluation_record.parsed(text):
                if last < evaluated.step <= run.step:
                    last = evaluated.step
                    new.append((last, name, evaluation_record.as_line(evaluated)))
            self._read[name] = place, last
        new.sort(key=lambda each: each[0])
        return [(name, line) for _, name, line in new]
