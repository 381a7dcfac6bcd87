"""What a run's modules hold: initial values, a checkpoint's, or what was trained since.

Each call of the Estimator goes by it: a checkpoint that the modules hold already is not
loaded again, values that came from elsewhere are nobody's beginning, and what is in no
checkpoint is not lost: a copy is kept in memory while the modules hold others. A copy
is handed to other modules, too: those of a prediction that goes on during a training,
or of `eval_distribute`.
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
from pipeline.contract.spec import SpecError
from pipeline.model_dir import paths
from pipeline.strategy import variables
from pipeline.strategy.modules import Modules
from pipeline.strategy.sharding import shards_of

_STEP = f"{checkpoint.DRIVER}/global_step"


class Reader(Protocol):
    """Who goes on with the values that modules hold now, whatever they hold later."""

    def keep(self) -> None:
        """The values are about to change."""


class Snapshot:
    """A copy of the values of all variables and tables, of the moment it is made.

    Attributes:
      step: global step at that moment.
    """

    def __init__(self, modules: Modules) -> None:
        """Copies the values of the first local replica.

        Args:
          modules: replicas of these hold equal values, see `Modules.synchronize`.
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
          modules: made by the same factories, maybe on another strategy, with no more
            layers built than those that were copied.

        Raises:
          SpecError: they hold a variable or table that this copy lacks.
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
            first = 0
            for shard in shards_of(variable):
                rows = shard.shape[0] if shard is not variable else None
                value = self._values[name]
                shard.assign(value if rows is None else value[first : first + rows])
                first += rows or 0
        for name, table in tables.items():
            # Keys that the copy lacks would stay after `insert` alone.
            table.remove(table.export()[0])
            table.insert(*self._tables[name])
        modules.spread_seeds()
        variables.finalize(modules.by_name.values())


class Holding(SavingListener):
    """Knows what modules hold; told by everybody who changes it, before and after.

    A checkpoint is known by what is in it, not by its path: a model_dir may be deleted
    and written again, or be a link that leads elsewhere now.

    Attributes:
      path: prefix of the checkpoint that the modules equal; None where they hold
        initial values, or were trained since.
      initial: whether nothing was loaded or trained yet, but for a warm start.
    """

    def __init__(self, modules: Modules) -> None:
        """
        Args:
          modules: that hold it.
        """
        self.path: str | None = None
        self.initial = True
        self._modules = modules
        self._identity: str | None = None
        self._is_being_written = False
        self._unsaved: _Unsaved | None = None
        self._is_live = False
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Lets what the modules hold be where the run stands: the block trains them."""
        self._is_live = True
        try:
            yield
        finally:
            self._is_live = False

    @property
    def is_live(self) -> bool:
        """Whether a training is under way, which would lose what another call loads."""
        return self._is_live

    def equals(self, path: str) -> bool:
        """Whether the modules hold what is in a checkpoint.

        Args:
          path: its path prefix.
        """
        if self.path is None:
            return False
        if self._is_being_written:
            return paths.same(path, self.path)
        found = checkpoint_files.identity(path)
        return found is not None and found == self._identity

    def add_reader(self, reader: Reader) -> None:
        """Tells a prediction before the values change that it began with."""
        self._readers.add(reader)

    def before_change(self) -> None:
        """The modules are about to be trained, or set to other values."""
        for reader in list(self._readers):
            reader.keep()
        self._readers.clear()

    def before_load(self) -> None:
        """They are about to be set to a checkpoint, for others to look at, maybe."""
        self.before_change()
        if self._unsaved is not None and self._unsaved.snapshot is None:
            self._unsaved.snapshot = Snapshot(self._modules)

    def after_load(self, path: str) -> None:
        """The modules were set to a checkpoint."""
        self.path, self.initial = path, False
        self._identity = checkpoint_files.identity(path)
        self._is_being_written = False

    def after_change(self) -> None:
        """The modules were trained, or set to what is in no checkpoint."""
        self.path, self.initial = None, False

    def after_build(self) -> None:
        """Variables were added, which hold initial values."""
        self.path = None

    def after_writing(self) -> None:
        """What was being saved is on disk now, or never will be."""
        if self._is_being_written and self.path is not None:
            self._identity = checkpoint_files.identity(self.path)
            if self._identity is None:
                self.path = None
        self._is_being_written = False

    def take(self, snapshot: Snapshot) -> None:
        """Sets the modules to values that are in no checkpoint."""
        self.before_change()
        snapshot.put(self._modules)
        self.after_change()

    def begin_unsaved(self, newest: str | None) -> None:
        """What is trained from now on is in no checkpoint, and so there only once.

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
        """Whether the run stands at what was trained here and is in no checkpoint.

        Args:
          newest: as above; where it is another one now, that one counts.
        """
        unsaved = self._unsaved
        return unsaved is not None and unsaved.based_on == _identity_of(newest)

    @property
    def unsaved_step(self) -> int:
        """The global step of what is in no checkpoint."""
        put_aside = self._unsaved.snapshot
        return put_aside.step if put_aside is not None else self._modules.step

    def bring_back(self) -> None:
        """Sets the modules to what is in no checkpoint, if they hold another now."""
        put_aside = self._unsaved.snapshot
        if put_aside is not None:
            self.take(put_aside)
            self._unsaved.snapshot = None

    def after_save(self, run: Run) -> None:
        self.path = checkpoint.path_of(run.model_dir, run.step)
        self._is_being_written = True


class _Unsaved:
    """What a run that saves no checkpoints has trained.

    Attributes:
      based_on: identity of the newest checkpoint in model_dir when it began; None where
        there was none.
      snapshot: a copy, where the modules hold a checkpoint's values meanwhile.
    """

    def __init__(self, based_on: str | None) -> None:
        self.based_on = based_on
        self.snapshot: Snapshot | None = None


def _identity_of(path: str | None) -> str | None:
    return None if path is None else checkpoint_files.identity(path)


def _joined(parts: Sequence[Any]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
