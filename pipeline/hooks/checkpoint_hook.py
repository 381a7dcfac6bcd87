"""When a checkpoint is saved, and who is told."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from pipeline.checkpoints import checkpoint, hook_states
from pipeline.contract.hooks import Hook, Run, SavingListener
from pipeline.contract.run_config import RunConfig
from pipeline.contract.user_errors import call_method
from pipeline.feed import position
from pipeline.strategy.modules import Modules


class CheckpointHook(Hook):
    """Saves at the first step, at each interval, and at the clean end.

    The position of the training input is saved with each checkpoint, in the folder
    `input`, and what hooks hold in the folder `hooks`; both go with it. Every process
    takes part, one writes the checkpoint.
    """

    def __init__(
        self,
        config: RunConfig,
        modules: Modules,
        saver: checkpoint.Saver,
        save_position: Callable[[str], Any],
        *,
        states: Callable[[Run], Mapping[str, Any]] = lambda run: {"hooks": {}},
        listeners: Sequence[SavingListener] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
          config: interval.
          modules: what is saved; complete by now.
          saver: writes the modules' checkpoints.
          save_position: writes where the training input stands, of a checkpoint path.
          states: what hooks hold, see `hook_states.write`.
          listeners: told of each checkpoint.
          clock: seconds, for intervals in seconds.
        """
        self.every_steps = config.save_checkpoints_steps
        self._secs = config.save_checkpoints_secs
        self._modules = modules
        self._save_position = save_position
        self._states = states
        self._listeners = listeners
        self._clock = clock
        self._saved_at = clock()
        self._last_path: str | None = None
        self._saver = saver

    def begin(self, run: Run) -> None:
        path = checkpoint.latest(run.model_dir)
        if run.agree(path is None or checkpoint.step_of(path) != run.step):
            self._save(run)
        else:
            self._last_path = path

    def after_step(self, run: Run) -> None:
        self._save(run)

    def after_hooks(self, run: Run) -> None:
        """By the clock, and after the other hooks: they are not called again there."""
        if self._secs is None:
            return
        if run.agree(self._clock() - self._saved_at >= self._secs):
            self._save(run)

    def end(self, run: Run) -> None:
        if not self._save(run) and run.leads:
            # They know now that the run has ended.
            hook_states.write(self._last_path, self._states(run))
        self._saver.wait()
        # An asynchronous save removes old checkpoints only once it is done.
        self._remove_old(run)
        for listener in self._listeners:
            call_method("saving listener", listener, "end", run)

    def _remove_old(self, run: Run) -> None:
        if run.leads:
            position.remove_old_positions(run.model_dir, keep=self._last_path)
            hook_states.remove_old(run.model_dir, keep=self._last_path)

    def _save(self, run: Run) -> bool:
        """Saves, unless that was done at this step; whether it did."""
        path = checkpoint.path_of(run.model_dir, run.step)
        if path == self._last_path:
            return False
        for listener in self._listeners:
            call_method("saving listener", listener, "before_save", run)
        self._modules.synchronize()
        self._save_position(path)
        if run.leads:
            # Before the checkpoint, without which it counts for nothing.
            hook_states.write(path, self._states(run))
            self._saver.save(run.step)
            logging.info("checkpoint | step %d | %s", run.step, path)
        self._last_path = path
        self._saved_at = self._clock()
        self._remove_old(run)
        for listener in self._listeners:
            # tf.estimator's way of asking for a stop.
            if call_method("saving listener", listener, "after_save", run) is True:
                run.request_stop(f"{type(listener).__name__} asked for it")
        return True
