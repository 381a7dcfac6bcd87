# SPDX-License-Identifier: Apache-2.0
"""The record of how a training ended, in model_dir and in the log."""

import contextlib
import signal
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from ..checkpoint import files
from ..cluster import lost_tasks
from ..contract.hooks import RunContext
from ..contract.run_config import RunConfig
from ..errors import PreemptedError
from ..model_dir import records
from .checkpointing import Checkpointing
from .history import History
from .parts import Part, Start
from .schedule import END_OF_INPUT, PREEMPTED


class EndRecord(Part):
    """Removes the record of an earlier end at the start, and writes a new one at the end."""

    def __init__(self, config: RunConfig, checkpoints: Checkpointing, history: History) -> None:
        """Takes the checkpoints, the last of which has to be on disk before, and the history."""
        self._config, self._model_dir = config, config.model_dir
        self._checkpoints, self._history = checkpoints, history
        self._run: RunContext | None = None  # Since the last start.
        self._last: records.Ended | None = None

    def restore(self, run: RunContext, start: Start) -> None:
        """Removes the record of an earlier end."""
        self._run = run
        if self._checkpoints.writes:
            self._last = records.read_end(self._model_dir)
            records.remove_end(self._model_dir)

    def log_continued(self, run: RunContext) -> None:
        """Logs that a training continues that hooks had stopped."""
        last = self._last
        if last is not None and last.reason == records.STOPPED and not run.stop_reasons:
            logging.info("train | continues after a stop: %s", "; ".join(last.details))

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Waits for the last save at the end of the block, and records how training ended."""
        try:
            with lost_tasks.named(self._config.cluster):
                yield
                self._checkpoints.wait()
        except PreemptedError:  # The same command continues later: not an end.
            self._checkpoints.wait()
            self._history.end(PREEMPTED)
            raise
        except BaseException as error:
            with contextlib.suppress(Exception):  # The first error counts.
                self._checkpoints.wait(alone=True)
            self._write(records.FAILED, [f"{type(error).__name__}: {error}"])
            raise
        stops = [reason for reason in self._run.stop_reasons if reason != END_OF_INPUT]
        self._write(records.STOPPED if stops else records.FINISHED, stops)

    def _write(self, reason: str, details: list[str]) -> None:
        self._history.end(reason, details)
        if not self._checkpoints.writes or self._run is None:
            return
        newest = files.latest(self._model_dir)
        step = files.step_of(newest) if newest else None
        ended = records.Ended(
            step=self._run.step, reason=reason, details=details, checkpoint_step=step
        )
        try:
            records.write_end(self._model_dir, ended)
        except (tf.errors.OpError, OSError) as error:
            logging.error("%s was not written: %s", records.ENDED, error)


def preempted(config: RunConfig, step: int, number: int | None) -> PreemptedError:
    """Returns the error to raise after a signal, and logs its message.

    Args:
      config: how to run.
      step: global step.
      number: the signal; None if another process received it.
    """
    sender = "a signal to another process" if number is None else signal.Signals(number).name
    after = "Nothing was saved; start the same command again to start from scratch."
    if config.save_checkpoints_steps != 0:
        path = files.path_of(config.model_dir, step)
        after = f"The checkpoint is {path}; start the same command again to continue."
    message = f"Training was stopped by {sender} at step {step}. {after}"
    logging.warning(message)  # A SystemExit prints nothing.
    return PreemptedError(message, is_of_cluster=len(config.cluster.tasks) > 1)
