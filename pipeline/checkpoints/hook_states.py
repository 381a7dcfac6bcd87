"""Saves the state of hooks with each checkpoint, for the run that goes on from it.

Each checkpoint has one file of JSON, `hooks/model.ckpt-100.json` in model_dir. It is
written before the checkpoint, as a whole or not at all, and counts only once that is
committed: a checkpoint is never without its hooks' state.
"""

import json
import os
import types
from collections.abc import Mapping
from typing import Any

from pipeline.checkpoints import checkpoint_files
from pipeline.model_dir import atomic_file
from pipeline.process.refusals import (
    RefusedKeyError,
    RefusedTypeError,
    RefusedValueError,
)

# States of a run without hooks or windows.
NONE: Mapping[str, Any] = types.MappingProxyType({"hooks": {}, "windows": ()})

_END = ".json"
# The keys that `Window.restore` reads.
_IN_A_WINDOW = {"step", "num_steps", "seconds", "loss", "weight", "metrics", "scalars"}


def write(path: str, states: Mapping[str, Any]) -> None:
    """Writes the states that belong to a checkpoint; no file where there are none.

    Args:
      path: path prefix of the checkpoint.
      states: dict of "hooks", by the hook's name its "state" and the index of its
        "window", and of "windows", a list. Values are JSON, or NumPy's numbers and
        arrays.

    Raises:
      TypeError: a hook's state is no JSON; names the hook.
    """
    file = _file_of(path)
    if not states["hooks"]:
        # A run that was killed may have left a file for a checkpoint of this name.
        atomic_file.remove(file)
        return
    # Encoded one by one, so that an error names the hook.
    hooks = ",\n".join(
        f"{json.dumps(name)}: {_as_json(name, state)}"
        for name, state in states["hooks"].items()
    )
    windows = json.dumps(states["windows"])
    atomic_file.write(file, f'{{"hooks": {{\n{hooks}}},\n"windows": {windows}}}\n')


def read(path: str) -> dict[str, Any]:
    """Returns the states that belong to a checkpoint, as `write` took them.

    They are empty where there is no file, and where it is damaged, which logs a
    warning: training can go on without them.

    Args:
      path: path prefix of the checkpoint.
    """
    found = atomic_file.read_json(
        _file_of(path), _parsed, instead="what hooks knew is lost, and they begin anew"
    )
    return found or {"hooks": {}, "windows": []}


def _parsed(states: Any) -> dict[str, Any]:
    """Returns the states of decoded JSON; raises where a hook could not be restored."""
    hooks, windows = states["hooks"], states["windows"]
    if not isinstance(windows, list):
        raise RefusedTypeError(f"windows {windows!r}")
    for name, held in hooks.items():
        window = held.get("window", 0)
        if "window" in held and window not in range(len(windows)):
            raise RefusedValueError(f"window {window!r} of {name}")
    for window in windows:
        if not window.keys() >= _IN_A_WINDOW:
            raise RefusedKeyError(f"a window of {sorted(window)}")
        window["metrics"].items()
    return {"hooks": hooks, "windows": windows}


def _file_of(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, checkpoint_files.HOOKS, f"{name}{_END}")


def _as_json(name: str, state: Any) -> str:
    try:
        return json.dumps(state, default=lambda value: value.tolist())
    except (AttributeError, TypeError, ValueError) as error:
        raise RefusedTypeError(
            f"the state of hook {name} is {state!r}, which is no JSON: return numbers, "
            "strings, lists and dicts by string from state()."
        ) from error
