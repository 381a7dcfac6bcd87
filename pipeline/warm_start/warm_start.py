"""Starts a run with the values of another one, where it has no checkpoint itself.

The choice is by names: `WarmStartSettings` says which, and by which names to look for
them. A chosen variable that the checkpoint lacks is an error, never left as it is in
silence. The log shows for each variable where it comes from, or why it was left.
"""

import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.checkpoints import checkpoint
from pipeline.foreign import sources
from pipeline.mistakes.checks import kind_of
from pipeline.process.refusals import RefusedTypeError
from pipeline.strategy import variables
from pipeline.strategy.modules import Modules
from pipeline.strategy.sharding import first_copy, shards_of
from pipeline.strategy.variables import State
from pipeline.warm_start import fitting, origins, table
from pipeline.warm_start.origins import Origin
from pipeline.warm_start.warm_start_settings import WarmStartSettings


class WarmStart:
    """Takes over each variable of a run's modules once, as they are built."""

    def __init__(self, modules: Modules) -> None:
        """Takes over nothing yet.

        Args:
          modules: hold their initial values until a call takes others over.
        """
        self._modules = modules
        # Digests of what the user's functions have set, by name; None for the others
        # that are done.
        self._done: dict[str, Any] = {}

    @property
    def initialized(self) -> int:
        """A number that tells what the user's functions have set, equal everywhere."""
        found = sorted((n, each) for n, each in self._done.items() if each)
        return zlib.crc32(repr(found).encode()) & 0x7FFFFFFF

    def __call__(self, source: "str | WarmStartSettings | None") -> None:
        """Takes over the variables that were built since the last call.

        Args:
          source: see `warm_start`; None takes nothing.
        """
        if source is None:
            return
        seen = warm_start(
            self._modules.named_state(),
            source,
            modules=self._modules.by_name,
            unbuilt=self._modules.unbuilt_prefixes(),
            done=self._done,
        )
        self._done = dict.fromkeys(seen) | self._done
        self._done |= {name: each for name, each in seen.items() if each}
        self._modules.spread_seeds()
        variables.finalize(self._modules.by_name.values())


def warm_start(
    state: State,
    source: "str | WarmStartSettings",
    *,
    modules: Mapping[str, Any] | None = None,
    unbuilt: Sequence[str] = (),
    done: Container[str] = (),
) -> dict[str, list[int] | None]:
    """Takes over values from another run, and logs a table of where they come from.

    Args:
      state: variable or table by module and name.
      source: see `WarmStartSettings`; a path alone takes over all of the model.
      modules: modules by name, which tell optimizers and Keras models.
      unbuilt: name prefixes below which more may be built, and is started warm then.
      done: names that earlier calls have returned, which this one leaves alone.

    Returns:
      The names in `state`, taken over or left out by choice: none is open any more.
      Each has numbers that tell the value that init_fn or a backup_initializer has
      set, or None.

    Raises:
      CheckpointMismatchError: a chosen variable is not in the checkpoint, or has
        another shape there.
      UnreadableCheckpointError: a file of it is missing, cut short or damaged.
      ValueError: there is no checkpoint, or the model has no variable of a given name.
    """
    settings = WarmStartSettings(source) if isinstance(source, str) else source
    own = {
        name: value
        for name, value in variables.flat(state).items()
        if not name.startswith(f"{checkpoint.DRIVER}/")
    }
    new = dict.fromkeys(name for name in own if name not in done)
    if done and not new:
        return dict.fromkeys(own)
    path, taken, spare = "init_fn", {}, {}
    left = dict.fromkeys(new, "not set by init_fn")
    if settings.ckpt_to_initialize_from is not None:
        source = sources.opened(settings.ckpt_to_initialize_from)
        fit = fitting.Fit(settings, source, own, modules or {})
        fit.check_chosen(unbuilt)
        path, taken = source.path, _take(source, fit.taken(new), own)
        left = {n: why for n, why in fit.reasons.items() if n in new}
        spare = {} if unbuilt else fit.spare()
    initialized: dict[str, list[int]] = {}
    if settings.init_fn is not None:
        initialized = _initialized(settings.init_fn, own, modules or {})
        for name in initialized:
            taken[name] = "init_fn"
            left.pop(name, None)
    if taken or not done:
        table.log(path, taken, left, spare)
    drawn = {n: _digest(own[n]) for n in settings.var_name_to_vocab_info if n in taken}
    return dict.fromkeys(own) | drawn | initialized


def _take(
    source: sources.Source, taken: Mapping[str, Origin], own: Mapping[str, Any]
) -> dict[str, str]:
    """Sets variables and tables, and returns where they come from, for the log."""
    is_table = {n: o for n, o in taken.items() if o.name in source.tables}
    valued = {n: o for n, o in taken.items() if n not in is_table}
    valued = origins.with_dtypes(valued, own, source)
    origins.assign(valued, own, source)
    for name, origin in is_table.items():
        # One at a time: a saved table may fill several of ours.
        checkpoint.read_tables(source, {origin.name: own[name]})
    return {n: str(valued.get(n, origin)) for n, origin in taken.items()}


def _initialized(
    init_fn: Callable[[dict[str, Any]], None],
    own: Mapping[str, Any],
    modules: Mapping[str, Any],
) -> dict[str, list[int]]:
    """Calls the user's function, and returns the digests of what it has changed."""
    before = {name: _digest(value) for name, value in own.items()}
    returned = init_fn(dict(modules))
    if returned is not None:
        raise RefusedTypeError(
            f"WarmStartSettings.init_fn returned {kind_of(returned)}, and is to set "
            "values: write modules['network'].set_weights(values), say."
        )
    after = {name: _digest(value) for name, value in own.items()}
    return {name: each for name, each in after.items() if each != before[name]}


def _digest(value: Any) -> list[int]:
    """Returns numbers that tell a value from others, without a copy of it all."""
    if not variables.is_variable(value):
        arrays = [np.sort(np.asarray(column).ravel()) for column in value.export()]
        return [zlib.crc32(repr(array.tolist()).encode()) for array in arrays]
    copies = (first_copy(shard).numpy() for shard in shards_of(value))
    return [zlib.crc32(np.ascontiguousarray(copy)) for copy in copies]
