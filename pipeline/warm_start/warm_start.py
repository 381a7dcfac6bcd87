# SPDX-License-Identifier: Apache-2.0
"""Sets the initial values of a run from another run, or from another program's checkpoint.

plan the origin of each variable; fail with a list if any is missing
set the values, all of them or none
call init_fn, log the origins
"""

import json
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from ..checkpoint.reader import DRIVER, listed
from ..contract.checks import repr_short
from ..distribute.replicas import Replicas
from ..errors import UserTypeError, UserValueError
from .plan import SEED, Plan
from .settings import WarmStartSettings
from .sources import array_of

_MAX_LINES = 40


class WarmStart:
    """Sets the initial values of a training's variables; `loop.train_state` calls it."""

    def __init__(self, settings: WarmStartSettings, model_dir: str) -> None:
        """Takes the settings, and the directory whose schema is compared."""
        self._settings, self._model_dir = settings, model_dir
        self._names: set[str] = set()  # Of the last call.

    def __call__(
        self,
        state: Mapping[str, Any],
        modules: Mapping[str, Any],
        replicas: Replicas,
        *,
        is_complete: bool,
    ) -> bool:
        """Sets the values; see `warm_start`. All processes call it.

        Returns:
          Whether it has set a variable.

        Raises:
          UserError: the settings do not fit, or the processes set different values.
        """
        logs = self._names != set(state) and replicas.is_chief
        is_set = warm_start(self._settings, state, modules, is_complete=is_complete, logs=logs)
        self._names = set(state)
        if logs:
            warn_of_schemas(self._settings, self._model_dir)
        sums = [_checksum(state)] if replicas.num_processes > 1 else [0]
        if len({total for [total] in replicas.gather(sums)}) > 1:
            raise UserValueError(
                "warm_start_from sets different values in different processes: expected the same. "
                "Set seeds in init_fn and backup_initializer."
            )
        return is_set


def warm_start(
    settings: WarmStartSettings,
    state: Mapping[str, Any],
    modules: Mapping[str, Any],
    *,
    is_complete: bool = True,
    logs: bool = True,
) -> bool:
    """Sets the variables that the settings choose, all of them or none.

    Args:
      settings: the source and the choice.
      state: variables and lookup tables by full name.
      modules: modules by name.
      is_complete: whether all layers are built, so that settings without effect are errors.
      logs: whether to log the source of each variable.

    Returns:
      Whether it has set a variable.
    """
    own = {name: value for name, value in state.items() if not name.startswith(DRIVER)}
    sources: dict[str, str] = {}
    changed: Sequence[str] = ()
    if settings.ckpt_to_initialize_from is not None:
        plan = Plan(settings, own, modules)
        if is_complete:
            settings.check_used(list(own), plan.chosen)
        sources = plan.run()
        if logs:
            _log(sources, plan.reasons, plan.source.path)
            if plan.unused:
                logging.info("warm start | not used of the checkpoint: %s", listed(plan.unused, 5))
    if settings.init_fn is not None:
        changed = _initialize(settings.init_fn, own, modules)
        if logs:
            _log(dict.fromkeys(changed, "init_fn"), {}, "init_fn")
    return bool(sources or changed)


def _checksum(state: Mapping[str, Any]) -> int:
    """Returns a number that differs, almost surely, where a value differs; without tables."""
    crc = 0
    for name, value in state.items():
        # Each replica has its own random streams.
        if hasattr(value, "assign") and not SEED.fullmatch(name):
            crc = zlib.crc32(array_of(value).tobytes(), crc)
    return crc


def warn_of_schemas(settings: WarmStartSettings, model_dir: str) -> None:
    """Logs a warning for features that `schema.json` of the other run describes differently."""
    path = settings.ckpt_to_initialize_from
    if path is None or settings.var_name_to_vocab_info:
        return
    folder = path if tf.io.gfile.isdir(path) else os.path.dirname(path)
    there, here = _schema(folder), _schema(model_dir)
    differing = sorted(name for name in here.keys() & there if here[name] != there[name])
    if differing:
        logging.warning(
            "warm start | the features %s differ from those in %s: rows of embeddings may belong "
            "to other words, or numbers may have another scale. Use the schema.json of that run.",
            differing,
            folder,
        )


def _schema(folder: str) -> dict[str, Any]:
    """Returns declarations and statistics of the features; empty without a readable file."""
    try:
        with tf.io.gfile.GFile(os.path.join(folder, "schema.json")) as file:
            content = json.load(file)
        return {n: (f, content["statistics"].get(n)) for n, f in content["features"].items()}
    except (tf.errors.OpError, ValueError, KeyError):
        return {}


def _initialize(
    init_fn: Callable[[dict[str, Any]], None], own: Mapping[str, Any], modules: Mapping[str, Any]
) -> list[str]:
    """Calls the user's function; returns the names of the variables that it changed."""
    before = {name: _checksum({name: value}) for name, value in own.items()}
    returned = init_fn(dict(modules))
    if returned is not None:
        raise UserTypeError(
            f"WarmStartSettings.init_fn returned {repr_short(returned)}: expected None. Set values "
            "by modules['network'].set_weights(values)."
        )
    return [name for name, value in own.items() if _checksum({name: value}) != before[name]]


def _log(sources: Mapping[str, str], reasons: Mapping[str, str], path: str) -> None:
    num_all = len(sources) + len(reasons)
    logging.info("warm start | %d of %d variables from %s", len(sources), num_all, path)
    lines = [f"{name} from {source}" for name, source in sources.items()]
    lines += [f"{name} keeps its initial value: {reason}" for name, reason in reasons.items()]
    for line in lines[:_MAX_LINES]:
        logging.info("warm start | %s", line)
    if lines[_MAX_LINES:]:
        logging.info("warm start | and %d more", len(lines) - _MAX_LINES)
