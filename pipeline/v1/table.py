# SPDX-License-Identifier: Apache-2.0
"""The table of names for docs/names.md: `python -m gin_estimator.v1 --names > docs/names.md`."""

import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

import gin_estimator.v1 as v1

from .names import Names
from .refused import REFUSED

_HEAD = """\
# Names of TensorFlow 1

With `import gin_estimator.v1 as tf` a name is, in this order, one of this project, one of
`tensorflow.compat.v1`, or one of TensorFlow 2. `python -m gin_estimator.v1 program.py` lists the
names of a program that are missing. This page is written by `python -m gin_estimator.v1 --names`.

"As before" is a name of this project with the arguments and results of TensorFlow 1. A name of
`tensorflow.compat.v1` that is not below is TensorFlow's own. `tf.compat.v1` is `tf`, and
`tf.compat.v2.estimator` has the canned estimators of TensorFlow 2, whose loss is a mean.
"""
_REFUSED = """\
## Refused

These raise an error with the line of the program. So does each name of `tf.contrib` that is not
above: copy its few lines from TensorFlow 1.15.

| Name | Error |
|---|---|
"""
_NOTE = re.compile(r"^(?:Replaces )?`tf\.[^`]+`(?: and the like)?[,:;]?\s*(.*?)\.?$")


def markdown() -> str:
    """Returns the page."""
    spaces = dict(_namespaces(v1, "", set()))
    parts = [_HEAD]
    done: dict[str, dict[str, Any]] = {}
    for path, space in spaces.items():
        parts.append(_section(path, space, done))
        done[path] = _own(space)
    by_text: dict[str, list[str]] = {}
    for name, text in REFUSED.items():
        by_text.setdefault(text, []).append(name)
    rows = [_row(_listed(names, "tf."), text) for text, names in by_text.items()]
    return "\n".join([*parts, _REFUSED + "".join(rows)])


def _namespaces(space: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yields path and namespace of each namespace with names of this project, each once."""
    seen.add(id(space))
    if _own(space):
        yield path, space
    for name, value in sorted(vars(space).items(), key=lambda item: (item[0] == "contrib", item)):
        if isinstance(value, Names) and name[0] != "_" and id(value) not in seen | {id(v1.compat)}:
            yield from _namespaces(value, f"{path}.{name}".removeprefix("."), seen)


def _own(space: Any) -> dict[str, Any]:
    """Returns the names of this project in a namespace."""
    return {
        name: value
        for name, value in sorted(vars(space).items())
        if name[0] != "_" and not isinstance(value, types.ModuleType)
    }


def _section(path: str, space: Any, done: Mapping[str, dict[str, Any]]) -> str:
    own, lines = _own(space), [f"## `tf{path and '.'}{path}`", ""]
    base = max((p for p in done if _is_in(done[p], own)), key=lambda p: len(done[p]), default=None)
    if base is not None:
        own = {name: value for name, value in own.items() if name not in done[base]}
        lines += [f"The names of `tf.{base}`.", ""]
    notes = {name: note for name, value in own.items() if (note := _note(value))}
    if plain := [name for name in own if name not in notes]:
        lines += [f"As before: {_listed(plain)}.", ""]
    if notes:
        rows = "".join(_row(f"`{name}`", note) for name, note in notes.items())
        lines += [f"| Name | Note |\n|---|---|\n{rows}"]
    falls = getattr(space, "_falls", None)
    if path.startswith("keras"):
        lines += ["Other names are those of Keras 3.", ""]
    elif falls is not None:
        lines += [f"Other names are those of `tf.{falls}`.", ""]
    return "\n".join(lines)


def _is_in(names: dict[str, Any], own: dict[str, Any]) -> bool:
    """Returns whether a namespace has all names of another one of some size."""
    return len(names) > 2 and all(own.get(name) is value for name, value in names.items())


def _note(value: Any) -> str:
    """Returns the rest of the first line of a docstring, after the name in TensorFlow."""
    found = _NOTE.match((getattr(value, "__doc__", None) or "").partition("\n")[0])
    return found[1] if found else ""


def _listed(names: list[str], prefix: str = "") -> str:
    return ", ".join(f"`{prefix}{name}`" for name in names)


def _row(name: str, text: str) -> str:
    return f"| {name} | {text.replace('|', chr(92) + '|')} |\n"
