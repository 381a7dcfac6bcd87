"""Decides which checkpoints of a model_dir stay, and deletes the others.

The file `checkpoint`, which `tf.train.latest_checkpoint` reads, holds all that has to
outlive a restart: the checkpoints that may still be deleted, oldest first, with their
times, and when the last one was kept for good. Its paths are relative, so that a
model_dir can be moved. The best checkpoints stay among them as long as they are best,
see `model_dir/best.py`. tf.train.CheckpointManager keeps the same file by the same
rules, but deletes without asking whether somebody reads.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import logging
from google.protobuf import text_format

from pipeline.checkpoints import checkpoint_files, lease
from pipeline.contract.run_config import RunConfig
from pipeline.model_dir import atomic_file, best


@dataclasses.dataclass
class _Managed:
    """The content of the file `checkpoint`.

    Attributes:
      times: by name, seconds since 1970 at which each checkpoint that may still be
        deleted was committed; oldest first.
      preserved: the same of the last checkpoint that was kept for good.
    """

    times: dict[str, float]
    preserved: float


@dataclasses.dataclass(frozen=True)
class KeptSteps:
    """The global steps that are saved whatever the interval, and stay for good.

    Attributes:
      every: interval of steps; None for none. Step 0 is no multiple of it.
      listed: more steps, in order.
    """

    every: int | None = None
    listed: Sequence[int] = ()

    @classmethod
    def of(cls, config: RunConfig) -> "KeptSteps":
        """Returns the steps that a RunConfig has stay."""
        return cls(config.keep_checkpoint_every_n_steps, config.keep_checkpoint_steps)

    def __contains__(self, step: int) -> bool:
        """Whether a step is one of them."""
        is_multiple = bool(self.every) and step > 0 and step % self.every == 0
        return is_multiple or step in self.listed

    def after(self, step: int) -> int | None:
        """Returns the first of them after a step; None where there is none."""
        multiple = [(step // self.every + 1) * self.every] if self.every else []
        return min([*multiple, *(s for s in self.listed if s > step)], default=None)


NO_STEPS = KeptSteps()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """Deletes a model_dir's old checkpoints when a new one has been committed.

    Attributes:
      directory: the model_dir.
      keep_max: checkpoints that stay; None keeps all.
      keep_every_n_hours: hours after which one more checkpoint stays for good; None
        keeps none beyond `keep_max`.
      kept_steps: steps whose checkpoints stay for good.
      clock: returns seconds since 1970.
    """

    directory: str
    keep_max: int | None
    keep_every_n_hours: float | None = None
    kept_steps: KeptSteps = NO_STEPS
    clock: Callable[[], float] = time.time

    def commit(self, path: str) -> None:
        """Makes a checkpoint the latest, and deletes those that need not stay.

        Leaves a checkpoint that somebody reads to a later call.

        Args:
          path: path prefix of a checkpoint that has been written.
        """
        now = self.clock()
        managed = self._read(now)
        name = os.path.basename(path)
        managed.times.pop(name, None)
        managed.times[name] = now
        # Before anything is deleted, so that a crash in between finds the new one.
        self._write(managed)
        if self._sweep(managed):
            self._write(managed)

    def go_back(
        self, path: str, *, unreadable: Sequence[str], given_up: Sequence[str] = ()
    ) -> None:
        """Makes an earlier checkpoint the latest again.

        Args:
          path: path prefix of the one to go on from.
          unreadable: path prefixes of newer checkpoints, whose files are moved to the
            folder `unreadable`, where nothing looks for checkpoints.
          given_up: path prefixes of newer checkpoints that are deleted, also where
            somebody reads them: the training will save others of their names.
        """
        managed = self._read(self.clock())
        for newer in (*unreadable, *given_up):
            managed.times.pop(os.path.basename(newer), None)
        name = os.path.basename(path)
        managed.times[name] = managed.times.pop(name, self.clock())
        self._write(managed)
        for newer in unreadable:
            aside = checkpoint_files.set_aside(newer)
            logging.warning("checkpoint | what is left of %s is at %s", newer, aside)
        for newer in given_up:
            with lease.deleting(newer):  # Nobody begins to read what is half deleted.
                checkpoint_files.delete(newer)
                logging.info("checkpoint | %s is given up: deleted", newer)

    def _sweep(self, managed: _Managed) -> bool:
        """Deletes or keeps for good what is too old; returns whether anything was."""
        excess = list(managed.times)[: -self.keep_max] if self.keep_max else []
        is_there = checkpoint_files.there(self.directory)
        best_ones = best.kept(self.directory, is_there) if excess else ()
        for name in excess:
            if self._is_kept(name):
                del managed.times[name]
            elif self._is_due(managed, name):
                managed.preserved = managed.times.pop(name)
            elif name not in best_ones and self._delete(name):
                del managed.times[name]
        return bool(excess)

    def _is_kept(self, name: str) -> bool:
        """Whether a checkpoint is to stay for good for its step."""
        step = name.rpartition("-")[2]
        return step.isdigit() and int(step) in self.kept_steps

    def _is_due(self, managed: _Managed, name: str) -> bool:
        """Whether a checkpoint is to stay for good: the last such is old enough."""
        if self.keep_every_n_hours is None:
            return False
        age = managed.times[name] - managed.preserved
        return age >= self.keep_every_n_hours * 3600

    def _delete(self, name: str) -> bool:
        """Deletes a checkpoint unless somebody reads it; returns whether it did."""
        path = os.path.join(self.directory, name)
        with lease.deleting(path) as allowed:
            if allowed:
                checkpoint_files.delete(path)
            else:
                logging.info("checkpoint | %s stays while it is read", path)
        return allowed

    def _read(self, now: float) -> _Managed:
        """Returns the file's content, less the checkpoints that are gone.

        Args:
          now: seconds since 1970, by `clock`.
        """
        state = checkpoint_files.state(self.directory)
        if state is None:
            return _Managed({}, now)
        present = checkpoint_files.complete(self.directory)
        names = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
        # Where the clock was set back, a time may lie ahead: nothing is to look newer
        # than the checkpoint of now. Where the file has no times, another program or
        # hand wrote it: `zip` then leaves nothing that is known to be ours to delete.
        times = state.all_model_checkpoint_timestamps
        known = {
            name: min(written, now)
            for name, written in zip(names, times, strict=False)
            if name in present
        }
        return _Managed(known, min(state.last_preserved_timestamp or now, now))

    def _write(self, managed: _Managed) -> None:
        names = list(managed.times)
        # Given an absolute directory, TensorFlow leaves relative paths as they are.
        state = tf.compat.v1.train.generate_checkpoint_state_proto(
            "/", names[-1], names, list(managed.times.values()), managed.preserved
        )
        text = text_format.MessageToString(state)
        atomic_file.write(os.path.join(self.directory, "checkpoint"), text)
