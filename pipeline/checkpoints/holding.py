"""Knows what a run's modules hold: initial, a checkpoint's, or newly trained values.

Each call of the Estimator asks here. A checkpoint that the modules hold already is not
loaded again. A training does not begin with values that were only looked at. Values
that are in no checkpoint are not lost: a `Snapshot` keeps them in memory while the
modules hold others. A snapshot also sets other modules: the own ones of a prediction
that goes on during a training, or the ones on `eval_distribute`.
"""

import contextlib
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from absl import logging

from pipeline.checkpoints import checkpoint, checkpoint_files
from pipeline.contract.hooks import Run, SavingListener
from pipeline.contract.train_op import SpecError
from pipeline.model_dir import paths
from pipeline.strategy import sharding, variables
from pipeline.strategy.modules import Modules
from pipeline.strategy.sharding import shards_of

_STEP = f"{checkpoint.DRIVER}/global_step"


class Reader(Protocol):
    """An object that computes with the values of now, also once the modules change."""

    def keep(self) -> None:
        """Copies the values; called before they change."""


class Snapshot:
    """A copy, in memory, of the values of all variables and tables.

    Attributes:
      step: global step of the values.
    """

    def __init__(self, modules: Modules) -> None:
        """Copies the values of the first local replica.

        Args:
          modules: modules whose replicas hold equal values, see `Modules.synchronize`.
        """
        state = modules.named_state()
        local = modules.strategy.experimental_local_results
        self._values = {
            name: _joined([local(shard)[0].numpy() for shard in shards_of(variable)])
            for name, variable in variables.variables_of(state).items()
        }
        self._tables = {
            name: table.export() for name, table in variables.tables_of(state).items()
        }
        self.step = int(self._values[_STEP])

    def put(self, modules: Modules) -> None:
        """Sets modules to these values, all of them or none.

        Args:
          modules: modules of the same factories, maybe on another strategy, with no
            more layers built than the ones that were copied.

        Raises:
          SpecError: the modules hold a variable or table that this copy lacks.
        """
        state = modules.named_state()
        by_name, tables = variables.variables_of(state), variables.tables_of(state)
        lacking = sorted({*by_name, *tables} - {*self._values, *self._tables})
        if lacking:
            raise SpecError(
                f"model_fn uses {lacking} in this mode and not in the one whose values "
                "it is to take: call those layers in each mode, or build them in their "
                "factory."
            )
        for name, variable in by_name.items():
            # The copy is whole; each parameter server holds some of its rows.
            sharding.assign(variable, self._values[name])
        for name, table in tables.items():
            # Keys that the copy lacks would stay after `insert` alone.
            table.remove(table.export()[0])
            table.insert(*self._tables[name])
        modules.spread_seeds()
        variables.finalize(modules.by_name.values())


class Holding(SavingListener):
    """The knowledge of what modules hold.

    Whoever changes values calls it, before and after. It tells a checkpoint by its
    contents, not by its path: a model_dir may be deleted and written again, or be a
    link that leads elsewhere now.

    Attributes:
      path: path prefix of the checkpoint that the modules equal; None where they hold
        initial values, or were trained since.
      initial: whether nothing was loaded or trained yet, except by a warm start.
    """

    def __init__(self, modules: Modules) -> None:
        """Begins with initial values.

        Args:
          modules: modules whose values it knows.
        """
        self.path: str | None = None
        self.initial = True
        self._modules = modules
        self._identity: str | None = None
        self._is_being_written = False
        self._unsaved: _Unsaved | None = None
        self._is_live = False
        # Weak: a prediction that its caller dropped needs no copy.
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Makes the modules' values the ones where the run stands: the block trains."""
        self._is_live = True
        try:
            yield
        finally:
            self._is_live = False

    @property
    def is_live(self) -> bool:
        """Whether a training is under way, whose values no other call may replace."""
        return self._is_live

    def equals(self, path: str) -> bool:
        """Returns whether the modules hold what is in a checkpoint.

        Args:
          path: path prefix of the checkpoint.
        """
        if self.path is None:
            return False
        # Its files are not all there yet, and tell nothing.
        if self._is_being_written:
            return paths.same(path, self.path)
        found = checkpoint_files.identity(path)
        return found is not None and found == self._identity

    def add_reader(self, reader: Reader) -> None:
        """Adds a prediction, which is told before the next change of values.

        Args:
          reader: prediction that begins with the values of now.
        """
        self._readers.add(reader)

    def before_change(self) -> None:
        """Has readers copy the values: they will be trained, or replaced."""
        for reader in list(self._readers):
            reader.keep()
        self._readers.clear()

    def changing(self) -> None:
        """Notes that the values change from now on, and are in no checkpoint.

        Called before the change: one that fails leaves other values all the same.
        """
        self.before_change()
        self.after_change()

    def before_load(self) -> None:
        """Keeps values that are in no checkpoint: a checkpoint's will replace them."""
        self.before_change()
        if self._unsaved is not None and self._unsaved.snapshot is None:
            self._unsaved.snapshot = Snapshot(self._modules)

    @contextlib.contextmanager
    def loading(self) -> Iterator[bool]:
        """Has a checkpoint loaded in the block, see `before_load`.

        Yields:
          Whether the values of now may be lost where that fails: initial ones can be
          made again.
        """
        self.before_load()
        try:
            yield self.initial
        except checkpoint.CheckpointMismatchError:  # Nothing was changed.
            raise
        except BaseException:
            if self.initial:
                self.after_change()
            raise

    def after_load(self, path: str) -> None:
        """Notes that the modules were set to a checkpoint."""
        self.path, self.initial = path, False
        self._identity = checkpoint_files.identity(path)
        self._is_being_written = False

    def after_change(self) -> None:
        """Notes that the modules hold values that are in no checkpoint."""
        self.path, self.initial = None, False

    def after_build(self) -> None:
        """Notes that variables were added: the modules equal no checkpoint now."""
        self.path = None

    def after_writing(self) -> None:
        """Notes that the last save has ended, with a checkpoint on disk or without."""
        if self._is_being_written and self.path is not None:
            self._identity = checkpoint_files.identity(self.path)
            if self._identity is None:
                self.path = None
        self._is_being_written = False

    def take(self, snapshot: Snapshot) -> None:
        """Sets the modules to values that are in no checkpoint."""
        self.changing()
        snapshot.put(self._modules)

    def begin_unsaved(self, newest: str | None) -> None:
        """Begins a training that saves nothing: its values are in the modules alone.

        Args:
          newest: path prefix of the newest checkpoint in model_dir, or None.
        """
        if self._unsaved is not None:
            logging.warning(
                "train | step %d was trained without saving, and is given up: %s has "
                "another checkpoint since.",
                self.unsaved_step,
                os.path.dirname(newest) if newest else "model_dir",
            )
        self._unsaved = _Unsaved(_identity_of(newest))

    def is_unsaved(self, newest: str | None) -> bool:
        """Returns whether the run stands at values that were trained without saving.

        Args:
          newest: path prefix of the newest checkpoint in model_dir, or None. The run
            stands at it where it is another one than when that training began.
        """
        unsaved = self._unsaved
        return unsaved is not None and unsaved.based_on == _identity_of(newest)

    @property
    def unsaved_step(self) -> int:
        """The global step of the values that were trained without saving."""
        put_aside = self._unsaved.snapshot
        return put_aside.step if put_aside is not None else self._modules.step

    def bring_back(self) -> None:
        """Puts back values trained without saving, where the modules hold others."""
        put_aside = self._unsaved.snapshot
        if put_aside is not None:
            self.take(put_aside)
            self._unsaved.snapshot = None

    def after_save(self, run: Run) -> None:
        # A checkpoint's files may be written in the background: it counts all the same.
        self.path = checkpoint.path_of(run.model_dir, run.step)
        self._is_being_written = True


class _Unsaved:
    """The values that a training without checkpoints has left.

    Attributes:
      based_on: identity of the newest checkpoint in model_dir when it began; None where
        there was none.
      snapshot: copy of the values, while the modules hold a checkpoint's; else None.
    """

    def __init__(self, based_on: str | None) -> None:
        self.based_on = based_on
        self.snapshot: Snapshot | None = None


def _identity_of(path: str | None) -> str | None:
    return None if path is None else checkpoint_files.identity(path)


def _joined(parts: Sequence[Any]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
