"""Copies a run's values in memory, apart from the variables that hold them.

Values that are in no checkpoint are so kept while the modules hold others, and are
handed to other modules: to those of a prediction that goes on during a training, or of
`eval_distribute`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.checkpoints import checkpoint
from pipeline.contract.spec import SpecError
from pipeline.strategy.modules import Modules
from pipeline.strategy.sharding import shards_of
from pipeline.strategy.variables import finalize

_STEP = f"{checkpoint.DRIVER}/global_step"


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
            for name, variable in checkpoint.flat(state).items()
        }
        self._tables = {
            name: table.export() for name, table in checkpoint.tables_of(state).items()
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
        variables, tables = checkpoint.flat(state), checkpoint.tables_of(state)
        lacking = sorted({*variables, *tables} - {*self._values, *self._tables})
        if lacking:
            raise SpecError(
                f"model_fn uses {lacking} in this mode and not in the one whose values "
                "it is to take: call those layers in each mode, or build them in their "
                "factory."
            )
        for name, variable in variables.items():
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
        finalize(modules.by_name.values())


def _joined(parts: Sequence[Any]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
