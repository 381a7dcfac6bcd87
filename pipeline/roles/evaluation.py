"""One EvalSpec at work: evaluates, records, exports; wherever it is evaluated."""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import logging

from pipeline.checkpoints import checkpoint, checkpoint_files
from pipeline.contract.hooks import Hook, Run
from pipeline.contract.run_config import RunConfig
from pipeline.driver.estimator import Estimator
from pipeline.hooks.metric_hook import MetricHook
from pipeline.model_dir import atomic_file, best, evaluation_record
from pipeline.model_dir.evaluation_record import Evaluated
from pipeline.process.refusals import RefusedTypeError, RefusedValueError
from pipeline.process.signals import PreemptedError
from pipeline.roles import keep_best, specs
from pipeline.roles.specs import EvalSpec, Result

_RECORD = "evaluated.json"
# Least seconds between evaluations in an evaluator job, unless throttle_secs says.
THROTTLE_SECS = 600


def check_saved(config: RunConfig, eval_specs: Sequence[EvalSpec]) -> None:
    """Checks that checkpoints are saved, if some of them are to stay.

    Raises:
      ValueError: nothing is saved.
    """
    for spec in eval_specs:
        if spec.keep_best and config.save_checkpoints_steps == 0:
            raise RefusedValueError(
                f"EvalSpec.keep_best is {spec.keep_best[0]}, and RunConfig."
                "save_checkpoints_steps=0 saves no checkpoint to keep: write "
                "save_checkpoints_steps=1000."
            )


class KeepsBest(Hook):
    """Writes at the beginning of a training which checkpoints are to stay."""

    def __init__(self, estimator: Estimator, eval_specs: Sequence[EvalSpec]) -> None:
        """Takes all evaluations along the training; writes nothing yet."""
        self._estimator = estimator
        self._eval_specs = eval_specs

    def begin(self, run: Run) -> None:
        """Writes it, once model_dir is this training's and before it deletes any."""
        if run.leads:
            write_best(self._estimator, self._eval_specs, all_of_them=True)


def write_best(
    estimator: Estimator, eval_specs: Sequence[EvalSpec], *, all_of_them: bool = False
) -> None:
    """Writes which checkpoints are best, and by what, see `model_dir.best`.

    Args:
      estimator: Estimator that is trained or evaluated.
      eval_specs: EvalSpecs, of which some may keep the best checkpoints.
      all_of_them: whether there are no others, whose rules would stay.
    """
    model_dir = estimator.model_dir
    folders = {
        spec.name: estimator.eval_dir(spec.name).removeprefix(f"{model_dir}/")
        for spec in eval_specs
    }
    rules = [
        best.Rule(folders[spec.name], each.metric, each.higher_is_better, each.k)
        for spec in eval_specs
        for each in spec.keep_best
    ]
    replaced = None if all_of_them else folders.values()
    is_there = checkpoint_files.there(model_dir)
    best.write(model_dir, rules, is_there, replaced=replaced)


def check_metrics(
    estimator: Estimator, spec: EvalSpec, hooks: Sequence[MetricHook]
) -> None:
    """Traces an evaluation whose metrics decide anything, and checks their names.

    Every evaluation has its loss.

    Args:
      estimator: Estimator whose model is evaluated.
      spec: EvalSpec of the evaluation.
      hooks: hooks of the training that go by it.

    Raises:
      KeyError: there is no metric that `keep_best` or an exporter names.
      ValueError: there is none that a hook names.
      TypeError: a hook's metric is no scalar.
    """
    exporters = [e for e in spec.exporters if e.goes_by not in (None, "loss")]
    asking = [hook.title for hook in hooks] + [str(each) for each in spec.keep_best]
    asking += [f"the exporter {each.name!r}" for each in exporters]
    if not asking:
        return
    try:
        metrics = estimator.eval_metrics(spec.data_fn)
    except Exception as error:
        error.add_note(
            f"This was found before training: the evaluation that {asking[0]} goes by "
            "would fail."
        )
        raise
    keep_best.check(spec.keep_best, metrics)
    for exporter in exporters:
        exporter.check_metrics(metrics)
    for hook in hooks:
        hook.check_metric(metrics)


class Evaluation:
    """The evaluations by one EvalSpec, and what came of the last one.

    Attributes:
      metrics: metrics of the last evaluation in this process, or None.
      stop: reasons for which its hooks asked training to stop.
      exported: what each exporter returned after it.
    """

    def __init__(
        self,
        estimator: Estimator,
        spec: EvalSpec,
        all_specs: Sequence[EvalSpec],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Takes the Estimator and the spec.

        Args:
          estimator: Estimator that evaluates and exports.
          spec: EvalSpec of this evaluation.
          all_specs: EvalSpecs of all evaluations along the training.
          clock: function that returns seconds since 1970.
        """
        self._estimator = estimator
        self._spec = spec
        self._export_folder = specs.export_folder(estimator.model_dir, spec, all_specs)
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Forgets the last evaluation."""
        self.metrics: dict[str, Any] | None = None
        self.stop: list[str] = []
        self.exported: list[Any] = []

    @property
    def step(self) -> int:
        """Global step of the last evaluation in this process; -1 for none."""
        return -1 if self.metrics is None else self.metrics["global_step"]

    @property
    def result(self) -> Result | None:
        """Metrics and exports of the last evaluation in this process, or None."""
        return None if self.metrics is None else (self.metrics, self.exported)

    def evaluate(self, path: str | None = None, *, hooks: Sequence[Hook] = ()) -> None:
        """Evaluates once.

        Args:
          path: path prefix of the checkpoint; None as in `Estimator.evaluate`.
          hooks: hooks that are called after the spec's own.
        """
        asked = _Asked()
        hooks = [*hooks, asked]
        self.metrics = self._spec.evaluate(self._estimator, path, hooks=hooks)
        self.stop, self.exported = asked.reasons, []

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Names the evaluation in an error that the block raises, if it has a name."""
        try:
            yield
        except Exception as error:
            if self._spec.name and not isinstance(error, PreemptedError):
                error.add_note(f"This was the evaluation {self._spec.name!r}.")
            raise

    def record(self, path: str | None) -> None:
        """Appends the last evaluation to the record, see `model_dir.evaluation_record`.

        Args:
          path: path prefix of the checkpoint that holds what was evaluated, or None.

        Raises:
          KeyError: the evaluation lacks a metric that `EvalSpec.keep_best` goes by.
        """
        spec, estimator = self._spec, self._estimator
        keep_best.check(spec.keep_best, self.metrics)
        evaluation_record.append(
            estimator.eval_dir(spec.name),
            Evaluated(
                step=self.step,
                time=self._clock(),
                metrics=self.metrics,
                checkpoint=path and os.path.basename(path),
                identity=path and checkpoint_files.identity(path),
                stop=self.stop,
            ),
        )
        write_best(estimator, [spec])

    def export(self, path: str | None, *, is_final: bool) -> None:
        """Calls the exporters after the last evaluation.

        Args:
          path: path prefix of the checkpoint that was evaluated; None for live weights.
          is_final: whether it was the training's last evaluation.
        """
        self.exported = self._spec.export(
            self._estimator, self._export_folder, path, self.metrics, is_final=is_final
        )


class CheckpointEvaluation:
    """One EvalSpec along the checkpoints.

    Attributes:
      step: global step of the last checkpoint that was evaluated, by an earlier process
        too; -1 for none.
    """

    def __init__(
        self, estimator: Estimator, spec: EvalSpec, all_specs: Sequence[EvalSpec]
    ) -> None:
        self._evaluation = Evaluation(estimator, spec, all_specs)
        self._spec = spec
        self._record = os.path.join(estimator.eval_dir(spec.name), _RECORD)
        record = atomic_file.read_json(
            self._record,
            _parsed,
            instead="what was evaluated is not known, and is evaluated again",
        )
        self.step, self._written_at = record or (-1, -math.inf)

    @property
    def result(self) -> Result | None:
        """Metrics and exports of the last evaluation in this process, or None."""
        return self._evaluation.result

    def __call__(self, path: str, *, is_final: bool) -> None:
        """Evaluates and exports a checkpoint, unless it was done or comes too soon.

        Args:
          path: path prefix of the checkpoint.
          is_final: whether it is the training's last: evaluated whenever it comes.
        """
        step = checkpoint.step_of(path)
        written_at = checkpoint_files.written_at(path)
        if not is_final and not self._is_due(step, written_at):
            return
        # The last checkpoint may have been evaluated before it was known as the last;
        # its exporters are called once more, with is_final.
        with self._evaluation.named():
            if self.result is None or step != self.step:
                self._evaluation.evaluate(path)
                # Training may act on it from now on; the lease keeps the checkpoint.
                self._evaluation.record(path)
            self._evaluation.export(path, is_final=is_final)
        self.step, self._written_at = step, written_at
        # Last: a process that is killed before evaluates and exports again.
        record = {"step": step, "written_at": written_at}
        atomic_file.write(self._record, json.dumps(record))

    def forget(self) -> None:
        """Forgets what was evaluated: training began anew."""
        self.step, self._written_at = -1, -math.inf
        self._evaluation.forget()

    def _is_due(self, step: int, written_at: float) -> bool:
        if step <= self.step:
            return False
        every = self._spec.every_steps or 1
        # The first checkpoint from each multiple on.
        passed = step // every > self.step // every
        return passed and not self._comes_too_soon(step, written_at)

    def _comes_too_soon(self, step: int, written_at: float) -> bool:
        """Returns whether throttle_secs have not passed since the last evaluation.

        The times are those at which the checkpoints were written, so that an evaluator
        that lags behind chooses the same ones.
        """
        later = written_at - self._written_at
        secs = self._spec.throttle_secs
        secs = THROTTLE_SECS if secs is None else secs
        wait = secs - later
        # A later step that was written earlier: a clock was set, and times say nothing.
        if later < 0 or wait <= 0:
            return False
        logging.info(
            "eval | step %d is passed over; the next evaluation is that of the first "
            "checkpoint written %.0f s or more after it (throttle_secs=%g)",
            step,
            wait,
            secs,
        )
        return True


def _parsed(record: Any) -> tuple[int, float]:
    step, written_at = record["step"], record["written_at"]
    if not isinstance(step, int):
        raise RefusedTypeError(f"step {step!r}")
    return step, float(written_at)


def reason(name: str | None, asked: str) -> str:
    """Returns the reason of a training's stop that an evaluation's hook asked for.

    Args:
      name: name of the evaluation, or None.
      asked: reason that the hook gave.
    """
    return f"evaluation {name}: {asked}" if name else f"evaluation: {asked}"


class _Asked(Hook):
    """Keeps the stops that the hooks of an evaluation ask for."""

    def __init__(self) -> None:
        self._run: Run | None = None

    def begin(self, run: Run) -> None:
        self._run = run

    @property
    def reasons(self) -> list[str]:
        """Reasons of the stops, in their order."""
        return list(self._run.stop_reasons) if self._run else []
