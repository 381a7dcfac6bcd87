"""Saves the checkpoints of a training when they are due, and tells the listeners.

`Saving` puts together what belongs to one checkpoint: the variables, the position of
the input, the states of hooks. The loop calls it at its stops.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import logging

from pipeline.checkpoints import checkpoint, hook_states
from pipeline.checkpoints.retention import KeptSteps
from pipeline.contract.hooks import Hook, Run, SavingListener
from pipeline.contract.run_config import RunConfig
from pipeline.mistakes.user_errors import call_method
from pipeline.strategy.modules import Modules

# Returns the states of hooks and open windows at the moment of the call.
States = Callable[[], Mapping[str, Any]]


class Saving:
    """Saves at the first step, at each interval, at kept steps, and at the clean end.

    The position of the training input is saved with each checkpoint, in the folder
    `input`, and the states of hooks in the folder `hooks`. Both are deleted with it, by
    the thread that writes: the loop does not wait for a look at folders.
    Every process takes part; one writes the checkpoint.

    `due_at_begin`, `due_at_step`, `due_by_clock` and `due_on_request` say whether to
    call `save`: a step is saved once. `finish` comes last.
    """

    def __init__(
        self,
        config: RunConfig,
        modules: Modules,
        saver: checkpoint.Saver,
        save_position: Callable[[str], Any],
        *,
        check_claim: Callable[[], None] = lambda: None,
        listeners: Sequence[SavingListener] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the parts; an interval in seconds begins now.

        Args:
          config: RunConfig with the interval, in steps or in seconds.
          modules: modules that are saved, with all layers built.
          saver: writer of the modules' checkpoints.
          save_position: function of a checkpoint's path prefix that writes where the
            training input stands.
          check_claim: function that raises where another training took over model_dir.
          listeners: listeners that are told of each checkpoint.
          clock: function that returns seconds.
        """
        self._steps = config.save_checkpoints_steps
        self._secs = config.save_checkpoints_secs
        self._kept_steps = KeptSteps.of(config)
        self._never = config.save_checkpoints_steps == 0
        self._modules = modules
        self._saver = saver
        self._save_position = save_position
        self._check_claim = check_claim
        self._listeners = listeners
        self._clock = clock
        self._saved_at = clock()
        self._last_path: str | None = None

    def next_step(self, step: int) -> int | None:
        """Returns the first step after `step` at which `due_at_step`."""
        kept = self._kept_steps.after(step)
        if not self._steps:
            return kept
        due = (step // self._steps + 1) * self._steps
        return due if kept is None else min(due, kept)

    def due_at_begin(self, run: Run) -> bool:
        """Whether to save the first step: model_dir has no checkpoint of it."""
        if self._never:
            return False
        path = checkpoint.latest(run.model_dir)
        if run.agree(path is None or checkpoint.step_of(path) != run.step):
            return True
        self._last_path = path
        return False

    def begin(self, run: Run) -> None:
        """Tells the listeners that a run begins.

        Args:
          run: run before its first step.
        """
        for listener in self._listeners:
            if not isinstance(listener, Hook):
                call_method("saving listener", listener, "begin", run)

    def due_at_step(self, run: Run) -> bool:
        """Whether to save a step that `next_step` gave."""
        due = bool(self._steps) and run.step % self._steps == 0
        return (due or run.step in self._kept_steps) and self._is_new(run)

    def due_by_clock(self, run: Run) -> bool:
        """Whether the interval in seconds has passed, for all processes or none."""
        if self._secs is None:
            return False
        # The first clock decides for all: saving is a collective operation.
        passed = run.agree(self._clock() - self._saved_at >= self._secs)
        return passed and self._is_new(run)

    def due_on_request(self, run: Run) -> bool:
        """Whether to save a step that is the last, or wanted by somebody."""
        return not self._never and self._is_new(run)

    def save(self, run: Run, states: States) -> None:
        """Saves this step; tells the listeners.

        Args:
          run: run at the step.
          states: function that returns the states of hooks, see `hook_states.write`.
        """
        path = checkpoint.path_of(run.model_dir, run.step)
        self._check_claim()
        for listener in self._listeners:
            call_method("saving listener", listener, "before_save", run)
        # The checkpoint comes last: once it is there, all that belongs to it is. What a
        # killed run left without a checkpoint is not read.
        self._modules.synchronize()
        self._save_position(path)
        if run.leads:
            hook_states.write(path, states())
            self._saver.save(run.step)
            logging.info("checkpoint | step %d | %s", run.step, path)
        self._last_path = path
        self._saved_at = self._clock()
        for listener in self._listeners:
            # True is tf.estimator's way of asking for a stop.
            if call_method("saving listener", listener, "after_save", run) is True:
                run.request_stop(f"{type(listener).__name__} asked for it")

    def finish(self, run: Run, states: States) -> None:
        """Saves what hooks know after `end`; returns when all is written.

        Args:
          run: run that has ended.
          states: function that returns the states of hooks.
        """
        if self._never:
            return
        if run.leads:
            hook_states.write(self._last_path, states())
        self._saver.wait()
        for listener in self._listeners:
            call_method("saving listener", listener, "end", run)

    def _is_new(self, run: Run) -> bool:
        return checkpoint.path_of(run.model_dir, run.step) != self._last_path
