# SPDX-License-Identifier: Apache-2.0
"""The evaluator job: evaluates the checkpoints that a training in other processes writes.

It shares only model_dir with the training: checkpoints, records of evaluations, and the record
of how training ended.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from ..checkpoint import files, retention
from ..checkpoint.checkpoints import Checkpoints
from ..contract.hooks import RunContext
from ..contract.user_errors import collected
from ..errors import CorruptCheckpointError
from ..hooks.events import EventWriter
from ..hooks.metric_writers_hook import MetricWritersHook
from ..hooks.summary_hook import write_evaluation
from ..loop.evaluation import Evaluation
from ..loop.evaluation_log import EvaluationLog
from ..loop.inline_evaluations import Export
from ..loop.train_state import TrainState
from ..model_dir import claim, records
from ..model_dir.evaluation_results import Evaluated

_POLL_SECS = 2.0
_LOG_SECS = 60.0
# A training that starts at the same time removes the record of an earlier end within this time.
_DOUBT_SECS = 60.0
_THROTTLE_SECS = 600.0
_CLAIM = "evaluation.claim"


class Evaluator:
    """Evaluates each checkpoint of model_dir by its step, until training has ended.

        wait start_delay_secs, or until training has ended
        until training has ended and its last checkpoint was evaluated:
            restore the next checkpoint; make the evaluations that are due: record, export
            if there is none: wait
        export the last one as final

    The records of evaluations are its only state, so that it can be killed and started again. It
    then makes the last evaluation again, if training has ended since.

    Training has ended if its record or a checkpoint of `max_steps` shows it. A record that was
    there before this job may belong to a training that is about to continue: it counts after a
    minute, or at once if training finished at `max_steps`.
    """

    def __init__(
        self,
        state: TrainState,
        evaluations: Sequence[Evaluation],
        log: EvaluationLog,
        *,
        max_steps: int | None,
        export: Export,
        hparams: Mapping[str, Any],
    ) -> None:
        """Takes the parts; training ends at `max_steps`, or at the end of its input."""
        self._state, self._evaluations, self._log = state, evaluations, log
        self._model_dir = state.config.model_dir
        self._max_steps, self._export = max_steps, export
        self._delay_secs = min(each.spec.start_delay_secs for each in evaluations)
        self._started_at = time.monotonic()
        self._logged_at = -_LOG_SECS
        self._found_end: records.Ended | None = None
        self._found: dict[Evaluation, Evaluated] = {}  # Made before this job was started.
        self._made: dict[Evaluation, Evaluated] = {}
        self._unreadable: set[tuple[str, int]] = set()
        self._last_step = -1  # Checkpoints up to this step were taken.
        self._claims: list[Callable[[], None]] = []
        self._metric_writers = MetricWritersHook(state.config, state.config.metric_writers, hparams)
        self._run: RunContext | None = None  # For metric writers.
        self._writers = {each: EventWriter(self._folder(each)) for each in evaluations}

    def run(self) -> None:
        """Evaluates until training has ended; results are in the evaluations.

        Raises:
          ModelDirInUseError: another evaluator makes an evaluation of the same name.
          StorageError: model_dir cannot be written.
        """
        with contextlib.ExitStack() as stack:
            for each in self._evaluations:
                held = claim.held(self._folder(each), file=_CLAIM)
                self._claims.append(stack.enter_context(held))
            self._begin()
            stack.callback(self._metric_writers.close)
            while not self._step():
                pass

    def _begin(self) -> None:
        for each in self._evaluations:
            found, _ = records.read(self._folder(each))
            self._found.update({each: found[-1]} if found else {})
        self._last_step = min(map(self._step_of, self._evaluations))
        logging.info("eval | watching %s from step %d on", self._model_dir, self._last_step + 1)
        self._found_end = records.read_end(self._model_dir)
        while self._ended() is None and self._running_secs() < self._delay_secs:
            self._wait(f"start_delay_secs, {self._delay_secs:g}")

    def _step(self) -> bool:
        """Takes the next checkpoint, or waits; returns whether the last one was taken."""
        ended = self._ended()  # First, so that the list has all checkpoints before the end.
        paths = [path for path in files.committed(self._model_dir) if self._is_readable(path)]
        if paths and files.step_of(paths[-1]) < self._last_step:
            logging.info("eval | training was started again: evaluating from its first step")
            self._last_step = -1
            self._found.clear()
            self._made.clear()
        new = [path for path in paths if files.step_of(path) > self._last_step]
        if ended is not None and len(new) <= 1:
            details = "".join(f" | {detail}" for detail in ended.details)
            if not paths:
                logging.warning("eval | training %s without a checkpoint%s", ended.reason, details)
                return True
            if self._take(paths[-1], is_newest=True, finished=True):
                logging.info("eval | training %s at step %d%s", ended.reason, ended.step, details)
                return True
        elif new:
            self._take(new[0], is_newest=len(new) == 1, finished=False)
        else:
            after = f" after step {self._last_step}" if self._last_step >= 0 else ""
            self._wait(f"a checkpoint{after}, or the end of training")
        return False

    def _take(self, path: str, *, is_newest: bool, finished: bool) -> bool:
        """Makes the evaluations of a checkpoint that are due; returns whether it was readable."""
        step = files.step_of(path)
        due = [each for each in self._evaluations if self._is_due(each, step, finished)]
        throttled = [] if finished else [each for each in due if self._wait_secs(each) > 0]
        due = [each for each in due if each not in throttled]
        if (due or finished) and not self._restore_and_evaluate(path, due, finished):
            return False
        if throttled and is_newest:  # Until they are over, or there is a newer one.
            self._wait("throttle_secs")
            return True
        for each in throttled:
            each.log_throttled(step, self._last(each), default_secs=_THROTTLE_SECS)
        self._last_step = step
        return True

    def _restore_and_evaluate(self, path: str, due: Sequence[Evaluation], finished: bool) -> bool:
        """Evaluates a checkpoint; returns whether it was readable."""
        step, state = files.step_of(path), self._state
        for check in self._claims:
            check()
        try:
            with retention.leased(path):
                checkpoints = Checkpoints(self._model_dir, state.variables(optimizers=False))
                run_state = checkpoints.restore(path, partial=True)
                state.restored(path)
                self._log.run_id = run_state.get("run_id")
                self._evaluate(path, due, finished)
        except CorruptCheckpointError as error:
            reason: object = error
            if files.path_of(self._model_dir, step) in files.committed(self._model_dir):
                self._unreadable.add(_identity(path))
            else:
                reason = (
                    "its checkpoint was deleted before it could be evaluated. Set a larger "
                    "RunConfig.keep_checkpoint_max."
                )
            logging.warning("eval | step %d is skipped: %s", step, reason)
            return False
        return True

    def _evaluate(self, path: str, due: Sequence[Evaluation], finished: bool) -> None:
        with collected() as attempt:
            for each in self._evaluations:
                with attempt(f"{each.title} of step {files.step_of(path)} failed."):
                    if each in due:
                        result = self._made[each] = each()
                        self._log.write(each.spec, result, path)
                        write_evaluation(self._writers[each], result.metrics, each.summaries)
                        self._write_metrics(each, result)
                        self._logged_at = time.monotonic()
                    if each in due or finished:
                        self._export(each.spec, self._made[each], path, finished)

    def _write_metrics(self, each: Evaluation, result: Evaluated) -> None:
        """Calls the metric writers; they begin after the training has begun its own."""
        if self._run is None:
            self._run = RunContext(self._model_dir, result.step, self._max_steps, is_evaluator=True)
            self._metric_writers.begin(self._run)
        self._metric_writers.after_evaluation(self._run, each.spec.name, result.metrics)

    def _is_due(self, each: Evaluation, step: int, finished: bool) -> bool:
        if finished:  # The last step is evaluated again after a restart.
            made = self._made.get(each)
            return made is None or made.step != step
        return each.is_due(step, self._last(each))

    def _wait_secs(self, each: Evaluation) -> float:
        return each.wait_secs(self._last(each), default_secs=_THROTTLE_SECS)

    def _last(self, each: Evaluation) -> Evaluated | None:
        return self._made.get(each) or self._found.get(each)

    def _step_of(self, each: Evaluation) -> int:
        last = self._last(each)
        return last.step if last else -1

    def _ended(self) -> records.Ended | None:
        """Returns how training ended; None while it runs, or may be about to continue."""
        ended, limit = records.read_end(self._model_dir), self._max_steps
        if ended is None:
            newest = files.latest(self._model_dir)
            step = files.step_of(newest) if newest else -1
            if limit is None or step < limit:
                return None
            return records.Ended(step=step, reason=records.FINISHED, checkpoint_step=step)
        is_at_limit = limit is not None and ended.step >= limit
        if ended != self._found_end or (is_at_limit and ended.reason == records.FINISHED):
            return ended
        doubt_secs = max(_DOUBT_SECS, self._delay_secs)
        return ended if self._running_secs() >= doubt_secs else None

    def _folder(self, evaluation: Evaluation) -> str:
        return os.path.join(self._model_dir, evaluation.spec.folder)

    def _is_readable(self, path: str) -> bool:
        return not self._unreadable or _identity(path) not in self._unreadable

    def _running_secs(self) -> float:
        return time.monotonic() - self._started_at

    def _wait(self, reason: str) -> None:
        if time.monotonic() - self._logged_at >= _LOG_SECS:
            logging.info("eval | waiting for %s", reason)
            self._logged_at = time.monotonic()
        time.sleep(_POLL_SECS)


def _identity(path: str) -> tuple[str, int]:
    """Returns the path and the time of writing: training may write the same step again."""
    try:
        return path, tf.io.gfile.stat(f"{path}.index").mtime_nsec
    except tf.errors.NotFoundError:
        return path, 0
