"""When a checkpoint is saved, and who is told."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline import checkpoint, input_fn
from pipeline.hooks import Hook, Run
from pipeline.modules import Modules
from pipeline.run_config import RunConfig


class SavingListener:
    """Told before and after each checkpoint. Override what you need."""

    def before_save(self, run: Run) -> None:
        """The checkpoint of `run.step` is about to be written."""

    def after_save(self, run: Run) -> None:
        """It was written; it may ask for a stop by `run.request_stop(reason)`."""

    def end(self, run: Run) -> None:
        """After the last checkpoint of a run that ended cleanly."""


class CheckpointHook(Hook):
    """Saves at the first step, at each interval, and at the clean end.

    The position of the training input lies beside each checkpoint, in files of its
    prefix, and goes with it.
    """

    def __init__(
        self,
        config: RunConfig,
        modules: Modules,
        iterator: Any,
        saver: checkpoint.Saver,
        *,
        nexts_per_step: int = 1,
        listeners: Sequence[SavingListener] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
          config: interval.
          modules: what is saved; complete by now.
          iterator: of the training input.
          saver: writes the modules' checkpoints.
          nexts_per_step: batches that a step takes of it.
          listeners: told of each checkpoint.
          clock: seconds, for intervals in seconds.
        """
        self.every_steps = config.save_checkpoints_steps
        self._secs = config.save_checkpoints_secs
        self._modules = modules
        self._iterator = iterator
        self._nexts_per_step = nexts_per_step
        self._listeners = listeners
        self._clock = clock
        self._saved_at = clock()
        self._last_path: str | None = None
        self._saver = saver

    def begin(self, run: Run) -> None:
        path = checkpoint.latest(run.model_dir)
        if path is None or checkpoint.step_of(path) != run.step:
            self._save(run)
        else:
            self._last_path = path

    def after_loop(self, run: Run) -> None:
        if self._secs is not None and self._clock() - self._saved_at >= self._secs:
            self._save(run)

    def after_step(self, run: Run) -> None:
        self._save(run)

    def end(self, run: Run) -> None:
        self._save(run)
        self._saver.wait()
        for listener in self._listeners:
            listener.end(run)

    def _save(self, run: Run) -> None:
        path = checkpoint.path_of(run.model_dir, run.step)
        if path == self._last_path:
            return
        for listener in self._listeners:
            listener.before_save(run)
        self._modules.synchronize()
        input_fn.save_position(
            self._iterator, position_path(path), nexts_per_step=self._nexts_per_step
        )
        self._saver.save(run.step)
        self._last_path = path
        self._saved_at = self._clock()
        _remove_old_positions(run.model_dir, keep=path)
        logging.info("checkpoint | step %d | %s", run.step, path)
        for listener in self._listeners:
            listener.after_save(run)


def position_path(path: str) -> str:
    """Path prefix of the input's position that belongs to a checkpoint."""
    return f"{path}.input-0-of-1"


def _remove_old_positions(directory: str, *, keep: str) -> None:
    """Deletes positions whose checkpoint retention has deleted."""
    for name in tf.io.gfile.listdir(directory):
        prefix, is_position, _ = name.partition(".input-")
        path = f"{directory}/{prefix}"
        if is_position and path != keep and not tf.io.gfile.exists(f"{path}.index"):
            tf.io.gfile.remove(f"{directory}/{name}")
