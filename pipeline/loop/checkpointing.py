# SPDX-License-Identifier: Apache-2.0
"""Saves a training when a checkpoint is due, and restores it."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence

from ..checkpoint import files
from ..checkpoint.checkpoints import Checkpoints
from ..checkpoint.retention import Keep
from ..model_dir import claim, storage_watchdog
from ..model_dir.files import writing
from .engine import Engine
from .evaluation_log import best_checkpoints
from .parts import Part, Start
from .train_state import TrainState

# Seconds between checkpoints if the RunConfig sets neither steps nor seconds.
DEFAULT_SECS = 600.0


class Checkpointing(Part):
    """The checkpoints of one training: the variables, and the states of its parts.

    Every process must call the same methods.

    Attributes:
      saved_step: step of the newest checkpoint, saved or restored; None before the first.
    """

    def __init__(self, state: TrainState, engine: Engine) -> None:
        """Takes the variables and the input; reads and writes nothing yet."""
        config = state.config
        self.saved_step: int | None = None
        self._state, self._engine = state, engine
        self._model_dir = config.model_dir
        self._every_steps = config.save_checkpoints_steps
        self._every_secs = config.save_checkpoints_secs or math.inf
        if config.save_checkpoints_secs is None and config.save_checkpoints_steps is None:
            self._every_secs = DEFAULT_SECS
        self._saved_at = time.monotonic()
        self._keep = Keep(
            newest=config.keep_checkpoint_max,
            every_n_hours=config.keep_checkpoint_every_n_hours,
            every_n_steps=config.keep_checkpoint_every_n_steps,
            steps=config.keep_checkpoint_steps,
            best=lambda: best_checkpoints(config.model_dir),
        )
        self._checkpoints = Checkpoints(
            config.model_dir,
            state.variables(),
            keep=self._keep,
            asynchronous=config.async_checkpoint,
        )
        self._check_claim: Callable[[], None] = lambda: None

    @property
    def writes(self) -> bool:
        """Whether this process writes in model_dir."""
        return self._state.replicas.is_chief and self._every_steps != 0

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Holds the claim on model_dir in the block, where outages of a bucket do not count.

        Raises:
          ModelDirInUseError: another process trains in model_dir.
        """
        with contextlib.ExitStack() as stack:
            watched = storage_watchdog.watched(
                self._model_dir,
                os.path.join(self._model_dir, claim.FILE),
                max_secs=self._state.config.max_unreachable_secs,
                newest=lambda: self._checkpoints.newest,
            )
            stack.enter_context(watched)
            if self.writes:
                self._check_claim = stack.enter_context(claim.held(self._model_dir))
            yield

    def newest(self) -> Start:
        """Restores the newest checkpoint, or sets initial values; returns where training starts."""
        state, checkpoints = self._state, self._checkpoints
        if state.is_unsaved:
            return Start(state.step, states={"input": state.unsaved_position})
        path, unreadable = checkpoints.newest_readable(state.replicas.gather)
        states = {} if path is None else checkpoints.restore(path, checked=True)
        if path is None:
            state.warm_start(is_complete=True)
        state.restored(path, continues=True)
        self.saved_step = None if path is None else state.step
        if self.writes:
            checkpoints.clean(unreadable)
        state.replicas.barrier()  # No process writes a position before the chief has cleaned.
        return Start(state.step, path, states)

    def next_step(self, step: int) -> float:
        """Returns the next step with a checkpoint, infinite for none."""
        every = self._every_steps
        regular = step - step % every + every if every else math.inf
        return min(regular, self._keep.next_step(step))

    def is_due(self, step: int) -> bool:
        """Returns whether the checkpoint of `step` is due by its number."""
        return step == self.next_step(step - 1)

    def is_late(self) -> bool:
        """Returns whether a checkpoint is due by the clock of this process."""
        return time.monotonic() - self._saved_at >= self._every_secs

    def is_saved(self, step: int) -> bool:
        """Returns whether `step` needs no save: its checkpoint exists, or nothing is saved."""
        return self.saved_step == step or self._every_steps == 0

    @property
    def last_path(self) -> str | None:
        """Path prefix of the newest checkpoint, which may still be written; None for none."""
        return None if self.saved_step is None else files.path_of(self._model_dir, self.saved_step)

    def saved_path(self, step: int) -> str | None:
        """Returns the path prefix of the checkpoint of `step`; None if it is not saved."""
        return self.last_path if self.saved_step == step else None

    def save(self, step: int, parts: Sequence[Part], *, evaluations: Sequence[str] = ()) -> None:
        """Writes the checkpoint of `step`.

        Args:
          step: global step.
          parts: their states are saved.
          evaluations: folders of the evaluations that follow.

        Raises:
          ModelDirInUseError: another process took over model_dir.
          StorageError: a file cannot be written, or an asynchronous save before failed.
        """
        replicas, model_dir = self._state.replicas, self._model_dir
        path = files.path_of(model_dir, step)
        storage_watchdog.call(model_dir, self._check_claim)
        if replicas.is_chief:
            self._checkpoints.wait()  # If that save failed, nothing of this one is written.
        self._state.synchronize()
        what = f"the input position of {path}"
        with writing(model_dir, what, last_good=lambda: files.latest(model_dir)):
            self._engine.save(path)
        if replicas.num_processes > 1:
            storage_watchdog.wait(model_dir)
        replicas.barrier()  # The checkpoint counts from its index on: all positions come first.
        if replicas.is_chief:
            states = {key: value for part in parts for key, value in part.state().items()}
            self._checkpoints.save(step, {**states, "evaluations": list(evaluations)})
        self.saved_step, self._saved_at = step, time.monotonic()

    def go_back(self, path: str) -> None:
        """Makes an earlier checkpoint the newest; every process must call it."""
        self.wait()
        if self._state.replicas.is_chief:
            self._checkpoints.go_back(path)
        self._state.replicas.barrier()

    def prune(self) -> None:
        """Deletes checkpoints that need not stay after the last evaluations."""
        if self.writes:
            self._checkpoints.prune()

    def wait(self, *, alone: bool = False) -> None:
        """Waits until the last save is on disk.

        Args:
          alone: whether the other processes do not call it, after an error in this one.

        Raises:
          StorageError: it failed.
        """
        if self._state.replicas.is_chief:
            self._checkpoints.wait()
            storage_watchdog.wait(self._model_dir)
        if not alone:
            self._state.replicas.barrier()
