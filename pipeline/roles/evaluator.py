"""The evaluator: a job that evaluates the checkpoints of a training in other processes.

The evaluator and the training share nothing but model_dir: the checkpoints, the leases
that the evaluator holds on them, and the marker that training leaves at its end.
`Evaluator` decides which checkpoint is next and when to end; `CheckpointEvaluation`
evaluates and exports by one EvalSpec, and records what it did for a restart.
"""

import contextlib
import math
import time
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import logging

from pipeline.checkpoints import checkpoint, checkpoint_files, lease
from pipeline.checkpoints.checkpoint_reader import UnreadableCheckpointError
from pipeline.driver.estimator import Estimator
from pipeline.mistakes import user_errors
from pipeline.model_dir import claim, end_marker, storage
from pipeline.model_dir.end_marker import EndMarker
from pipeline.roles import specs
from pipeline.roles.evaluation import (
    CheckpointEvaluation,
    check_metrics,
    write_best,
)
from pipeline.roles.rules import FedHooks
from pipeline.roles.specs import EvalSpec, Result

_POLL_SECS = 2.0
_LOG_SECS = 60.0
# Least time for which a marker that was there before this job is doubted: a training
# that began at the same time removes it only once it has started up.
_DOUBT_SECS = 60.0
# Longest wait for a checkpoint that the marker names and that is not there: a failed
# training may never have finished it, or a shared disk does not show it yet.
_SETTLE_SECS = 60.0


class Evaluator:
    """Evaluates each checkpoint of model_dir until training has ended.

    wait start_delay_secs, or until training has ended
    while training goes on, or checkpoints are left:
        hold the next one by its step; evaluate; export
        if there is none: wait a little
    evaluate the last one, if that was not done; export it as the last

    Checkpoints that were evaluated before a restart are not evaluated again. The last
    one is, where nothing else is left: there are always metrics to return.

    A checkpoint of max_steps is the last one, with a marker or without: a plain
    `Estimator.train` leaves none. A marker that was there before this job is believed
    at once where it says that training finished at max_steps or beyond. Any other may
    be about to be removed by a training that was started again, with more steps or
    after a failure: it is believed if it is still there after start_delay_secs, and a
    minute at the least.
    """

    def __init__(
        self,
        estimator: Estimator,
        eval_specs: Sequence[EvalSpec],
        *,
        max_steps: int | None = None,
        fed: FedHooks | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Reads what was evaluated before a restart, by each EvalSpec.

        Args:
          estimator: Estimator that evaluates and exports, on the training's model_dir.
          eval_specs: EvalSpecs, each of its own name.
          max_steps: global step at which training is to end; None where its input
            decides.
          fed: hooks of the training that go by these evaluations; None for none.
          clock: function that returns seconds.
          sleep: function that waits for a number of seconds.
        """
        self._model_dir = estimator.model_dir
        self._eval_specs = eval_specs
        self._estimator = estimator
        self._folders = [estimator.eval_dir(spec.name) for spec in eval_specs]
        self._checks: list[Callable[[], None]] = []
        self._evaluations = [
            CheckpointEvaluation(estimator, spec, eval_specs) for spec in eval_specs
        ]
        self._max_steps = max_steps
        self._fed = fed
        self._clock = clock
        self._sleep = sleep
        self._delay_secs = min(spec.start_delay_secs for spec in eval_specs)
        self._doubt_secs = max(self._delay_secs, _DOUBT_SECS)
        self._started_at = clock()
        self._logged_at = -math.inf
        self._found: EndMarker | None = None
        self._ending: tuple[EndMarker, float] | None = None
        self._seen: set[int] = set()
        self._unreadable: set[tuple[str, float]] = set()
        self._done = min(evaluation.step for evaluation in self._evaluations)

    def run(self) -> Result | None:
        """Evaluates until training has ended.

        Returns:
          Metrics and exports of the last evaluation; None where training ended without
          a checkpoint.

        Raises:
          ClaimedError: another evaluator runs an evaluation of the same name.
          StorageError: model_dir cannot be written.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(
                storage.writing(
                    self._model_dir,
                    "what an evaluator leaves in model_dir",
                    only_named=True,  # Reading the data can fail, too.
                    instead="let the evaluator see it where it can be written",
                )
            )
            for folder in self._folders:
                claimed = claim.held(folder, role=claim.EVALUATION)
                self._checks.append(stack.enter_context(claimed))
            return self._run()

    def _run(self) -> Result | None:
        """Evaluates until training has ended; the claims are held."""
        # Retention looks for leases only where this folder is, see `lease.deleting`.
        lease.prepare(self._model_dir)
        specs.keep_records(self._model_dir, self._eval_specs)
        for spec in self._eval_specs:
            fed = self._fed.of(spec) if self._fed is not None else []
            check_metrics(self._estimator, spec, fed)
            spec.check_exports(self._estimator)
        write_best(self._estimator, self._eval_specs)
        self._found = end_marker.read(self._model_dir)
        logging.info("eval | watching %s", self._model_dir)
        if self._found is not None and self._end() is None:
            logging.info(
                "eval | %s; unless it begins again within %g s, this counts.",
                self._found,
                self._doubt_secs,
            )
        self._wait_to_start()
        while True:
            # The end is read first: the paths then hold all that was saved before it.
            end = self._end()
            paths = self._readable(checkpoint.committed(self._model_dir))
            new = self._new(paths)
            # At most the last one is left: it is evaluated as the last, not as others.
            if end and len(new) <= 1 and self._is_settled(end, paths):
                if not paths:
                    logging.warning("eval | %s, and there is no checkpoint.", end)
                    return None
                if self._evaluate(paths[-1], is_final=True):
                    return self._finish(end, paths[-1])
                self._wait("the last checkpoint, which is being deleted,")
            elif new:
                self._evaluate(new[0], is_final=False)
            else:
                after = (
                    f"after step {self._done}" if self._done >= 0 else "to begin with"
                )
                reached = f"step {self._max_steps} or " if self._max_steps else ""
                self._wait(
                    f"a checkpoint {after}, or the end of training ({reached}"
                    f"{end_marker.FILE}),"
                )

    def _wait_to_start(self) -> None:
        delay = self._delay_secs
        while (left := self._started_at + delay - self._clock()) > 0:
            if self._end() is not None:
                return
            self._wait(f"start_delay_secs={delay:g}, then for checkpoints", most=left)

    def _end(self) -> EndMarker | None:
        """Returns how training ended; None where it goes on, or may begin again."""
        marker = end_marker.read(self._model_dir)
        if marker is None:
            return self._reached()
        if marker != self._found:
            return marker
        reached = self._max_steps is not None and marker.step >= self._max_steps
        if marker.reason == end_marker.FINISHED and reached:
            return marker
        doubted = self._clock() - self._started_at < self._doubt_secs
        return None if doubted else marker

    def _reached(self) -> EndMarker | None:
        """Returns the end that a checkpoint of max_steps tells; None without one."""
        paths = checkpoint.committed(self._model_dir)
        step = checkpoint.step_of(paths[-1]) if paths else -1
        if self._max_steps is None or step < self._max_steps:
            return None
        return EndMarker(
            step=step, reason=end_marker.FINISHED, checkpoint_step=step, time=0.0
        )

    def _is_settled(self, end: EndMarker, paths: Sequence[str]) -> bool:
        """Returns whether the marker's checkpoint is there, or the wait was enough."""
        last = checkpoint.step_of(paths[-1]) if paths else -1
        if end.checkpoint_step is None or last >= end.checkpoint_step:
            return True
        if self._ending is None or self._ending[0] != end:
            self._ending = end, self._clock()
        return self._clock() - self._ending[1] >= _SETTLE_SECS

    def _readable(self, paths: Sequence[str]) -> list[str]:
        """Returns the checkpoints without the damaged ones.

        A checkpoint that was written again at the step of a damaged one is returned.
        """
        if not self._unreadable:
            return list(paths)
        return [path for path in paths if _identity(path) not in self._unreadable]

    def _new(self, paths: Sequence[str]) -> list[str]:
        """Returns the checkpoints that are to be considered; logs which were deleted.

        Goes back to the first one where all steps are below what was evaluated: the
        training began anew.
        """
        by_step = {checkpoint.step_of(path): path for path in paths}
        last = max(self._done, *(evaluation.step for evaluation in self._evaluations))
        if by_step and max(by_step) < last:
            logging.info(
                "eval | step %d was evaluated, and training is at %d: beginning anew.",
                last,
                max(by_step),
            )
            self._forget()
        self._seen.update(by_step)
        self._seen = {step for step in self._seen if step > self._done}
        for step in sorted(self._seen - set(by_step)):
            self._say_gone(step)
        self._seen &= set(by_step)
        return [by_step[step] for step in sorted(self._seen)]

    def _forget(self) -> None:
        self._done = -1
        self._seen = set()
        for evaluation in self._evaluations:
            evaluation.forget()

    def _evaluate(self, path: str, *, is_final: bool) -> bool:
        """Evaluates and exports by every spec; returns whether the checkpoint was read.

        It was not where retention deleted it meanwhile, or where it is damaged.
        """
        step = checkpoint.step_of(path)
        identity = _identity(path)
        for check in self._checks:
            check()
        try:
            with lease.reading(path):
                self._evaluate_by_all(path, is_final=is_final)
        except lease.CheckpointGoneError:
            if step > self._done:
                self._say_gone(step)
                self._done = step
            return False
        except UnreadableCheckpointError as error:
            logging.warning("eval | step %d is skipped: %s", step, error)
            self._unreadable.add(identity)
            self._seen.discard(step)
            return False
        self._done = max(self._done, step)
        self._logged_at = self._clock()
        return True

    def _evaluate_by_all(self, path: str, *, is_final: bool) -> None:
        """Evaluates by every spec; then raises the error of the first that failed."""
        failures: list[Exception] = []
        for evaluation in self._evaluations:
            try:
                evaluation(path, is_final=is_final)
            except UnreadableCheckpointError:
                raise
            except Exception as error:
                failures.append(error)
        user_errors.raise_first(failures)

    def _say_gone(self, step: int) -> None:
        logging.warning(
            "eval | step %d is skipped: its checkpoint was deleted before it could be "
            "evaluated. Keep more by RunConfig(keep_checkpoint_max=...), or save less "
            "often.",
            step,
        )

    def _finish(self, end: EndMarker, path: str) -> Result:
        logging.info(
            "eval | %s. The last checkpoint, of step %d, was evaluated.",
            end,
            checkpoint.step_of(path),
        )
        return specs.combined(
            self._eval_specs, [evaluation.result for evaluation in self._evaluations]
        )

    def _wait(self, what: str, *, most: float = math.inf) -> None:
        now = self._clock()
        if now - self._logged_at >= _LOG_SECS:
            logging.info("eval | waiting for %s in %s", what, self._model_dir)
            self._logged_at = now
        self._sleep(min(_POLL_SECS, most))


def _identity(path: str) -> tuple[str, float]:
    """Returns what tells a checkpoint from one written later at the same step."""
    try:
        return path, checkpoint_files.written_at(path)
    except tf.errors.NotFoundError:
        return path, -math.inf
