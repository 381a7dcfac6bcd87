"""train_and_evaluate: training with evaluations at its checkpoints, and exports.

`_by_role` is the whole of it: an evaluator, a server or worker, a task that only
trains, or one that also evaluates along the training. `train` is a training with a
marker of its end.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint, checkpoint_files
from pipeline.cluster import tf_config
from pipeline.cluster.ports import PeerLostError
from pipeline.contract import arguments
from pipeline.contract.hooks import Hook, Run, SavingListener
from pipeline.driver.along import Evaluation
from pipeline.driver.estimator import Estimator
from pipeline.hooks import preemption
from pipeline.hooks.preemption import PreemptedError
from pipeline.mistakes.checks import kind_of
from pipeline.model_dir import end_marker, storage
from pipeline.model_dir.claim import ClaimedError
from pipeline.model_dir.end_marker import EndMarker
from pipeline.process import exit_codes, run_log
from pipeline.process.refusals import RefusedTypeError
from pipeline.process.signals import EndedBySignal
from pipeline.roles import evaluation, specs, untold
from pipeline.roles.evaluation_along import EvaluationAlong, EvaluationsBeside
from pipeline.roles.evaluator import Evaluator
from pipeline.roles.rules import FedHooks
from pipeline.roles.specs import EvalSpec, Result, TrainSpec
from pipeline.strategy import parameter_server


def train_and_evaluate(
    estimator: Estimator,
    train_spec: TrainSpec,
    eval_spec: EvalSpec | Sequence[EvalSpec],
) -> Result | None:
    """Trains to `max_steps`; evaluates and exports at checkpoints and at the end.

    In one process the live weights are evaluated, and the training input goes on where
    it was. Where training has reached max_steps before, what is there is evaluated and
    exported all the same.

    In a cluster with an evaluator (see `RunConfig.evaluation`) the training tasks only
    train, and the evaluator takes their checkpoints until training has ended.

    Args:
      estimator: Estimator to train.
      train_spec: TrainSpec: on what to train, and how far.
      eval_spec: an EvalSpec, or several, each of its own name.

    Returns:
      The last evaluation's metrics, by the evaluation's name where there are several;
      and, on the chief, a list of what each exporter returned for it. None where this
      process did not evaluate.

    Raises:
      TypeError: train_spec or eval_spec is of another type.
      ValueError: several evaluations share a name, or two exporters a directory.
    """
    if not isinstance(train_spec, TrainSpec):
        raise RefusedTypeError(
            f"train_spec is {kind_of(train_spec)}, not a TrainSpec: write "
            "train_and_evaluate(estimator, TrainSpec(input_fn, max_steps=1000), "
            "EvalSpec(input_fn))."
        )
    eval_specs = specs.as_list(eval_spec)
    with run_log.shown(estimator.config.progress):
        return _by_role(estimator, train_spec, eval_specs)


def _by_role(
    estimator: Estimator, train_spec: TrainSpec, eval_specs: Sequence[EvalSpec]
) -> Result | None:
    """Evaluates, serves, trains, or trains and evaluates, by this process's task."""
    config = estimator.config
    fed = FedHooks(config, train_spec, eval_specs)
    evaluation.check_saved(config, eval_specs)
    if config.task_type == tf_config.EVALUATOR:
        last = train_spec.max_steps
        result = Evaluator(estimator, eval_specs, max_steps=last, fed=fed).run()
        untold.tell_tools(estimator, eval_specs)
        return result
    if config.cluster.serves:
        parameter_server.serve(config)
        return None
    kept = evaluation.KeepsBest(estimator, eval_specs)
    hooks = [kept, *train_spec.hooks, *fed.rules]
    train_spec = dataclasses.replace(train_spec, hooks=hooks)
    if not config.evaluates_inline:
        train(
            estimator, train_spec, [EvaluationsBeside(estimator, eval_specs, fed=fed)]
        )
        return None
    if config.is_chief:
        with storage.writing(estimator.model_dir, "the record of an export"):
            specs.keep_records(estimator.model_dir, eval_specs)
    evaluations = [
        EvaluationAlong(estimator, spec, eval_specs, fed=fed) for spec in eval_specs
    ]
    train(estimator, train_spec, evaluations)
    results = [each.finish() for each in evaluations]
    # The chief still exports: a process that ended now would look as if it had died.
    estimator.wait_for_peers()
    return specs.combined(eval_specs, results)


def train(
    estimator: Estimator,
    train_spec: TrainSpec,
    evaluations: Sequence[Evaluation] = (),
) -> None:
    """Trains, and leaves a marker in model_dir of how that ended, see `end_marker`.

    Args:
      estimator: Estimator to train.
      train_spec: TrainSpec: on what to train, and how far.
      evaluations: evaluations along the training.

    Raises:
      ValueError: this task is an evaluator.
      PreemptedError: a signal ended it; no marker is left, as it is to go on.
    """
    config = estimator.config
    arguments.check_trains(config)
    watch = _Watch(estimator)
    if config.is_chief:
        with storage.writing(estimator.model_dir, end_marker.FILE):
            checkpoint_files.make_directory(estimator.model_dir)
            end_marker.remove(estimator.model_dir)
    try:
        with estimator.along(evaluations):
            estimator.train(
                train_spec.input_fn,
                max_steps=train_spec.max_steps,
                hooks=[watch, *train_spec.hooks, *train_spec.limits()],
                saving_listeners=[*train_spec.saving_listeners, watch],
            )
    except (PeerLostError, ClaimedError, PreemptedError):
        # The training goes on: in tasks that are started again, or in its other holder.
        raise
    except BaseException as error:  # Ctrl-C ends it, too.
        again = isinstance(error, EndedBySignal) and error.code == exit_codes.AGAIN
        if config.is_chief and not again:
            _write_if_possible(estimator.model_dir, watch.failed(error))
        raise
    if watch.preempted:
        raise preemption.preempted_error(config)
    if config.is_chief:
        with storage.writing(estimator.model_dir, end_marker.FILE):
            end_marker.write(estimator.model_dir, watch.ended())


def _write_if_possible(model_dir: str, marker: EndMarker) -> None:
    """Writes the marker of an error, or warns: the error is the one to raise."""
    try:
        end_marker.write(model_dir, marker)
    except tf.errors.OpError as error:
        logging.warning("train | cannot write %s: %s", end_marker.FILE, error)


class _Watch(Hook, SavingListener):
    """Notes how far training got and why it stopped, for the marker of its end."""

    def __init__(
        self, estimator: Estimator, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._estimator = estimator
        self._clock = clock
        self._run: Run | None = None
        self._saved: int | None = None

    def begin(self, run: Run) -> None:
        # A training that went back has deleted what it saved beyond.
        self._run, self._saved = run, None

    def after_save(self, run: Run) -> None:
        self._saved = run.step

    @property
    def preempted(self) -> bool:
        """Whether a signal ended the run before `max_step`."""
        run = self._run
        stopped = run is not None and preemption.is_stopped(run)
        return stopped and run.step != run.max_step

    def failed(self, error: BaseException) -> EndMarker:
        """Returns the marker of an end by an error."""
        line = str(error).strip().partition("\n")[0]
        described = ": ".join(filter(None, [type(error).__name__, line]))
        return self._marker(end_marker.FAILED, (described,))

    def ended(self) -> EndMarker:
        """Returns the marker of an end by max_steps, by the input or by a hook."""
        run = self._run
        if run is None or run.step == run.max_step or not run.stop_reasons:
            return self._marker(end_marker.FINISHED, ())
        return self._marker(end_marker.STOPPED, tuple(run.stop_reasons))

    def _marker(self, reason: str, details: tuple[str, ...]) -> EndMarker:
        saved = self._saved
        # None was saved by this training: an earlier one's is the last.
        if saved is None and (latest := self._estimator.latest_checkpoint()):
            saved = checkpoint.step_of(latest)
        return EndMarker(
            step=self._run.step if self._run is not None else saved or 0,
            reason=reason,
            details=details,
            checkpoint_step=saved,
            time=self._clock(),
        )
