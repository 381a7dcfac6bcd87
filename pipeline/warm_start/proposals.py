"""Proposes names in a checkpoint for variables that it has under no name of here.

A layer fits one whose variables have its names and shapes; a variable fits one of its
shape. Only what fits once, here and there, is proposed: the user decides. A bias goes
with its kernel: alone it may be of another kind of layer, whose gates have another
order. The first kernel of a canned estimator is none, as its rows have another order.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Shapes = Mapping[str, Any]
_MOST = 4
_MOST_OPEN = 10


def proposed(wanted: Shapes, free: Shapes) -> dict[str, str]:
    """Returns names in a checkpoint by names in this model, of what fits once.

    Args:
      wanted: shapes here of the variables without a name there, by name, in order.
      free: shapes there of what stands for nothing here as yet, by name.
    """
    found: dict[str, str] = {}
    wanted, free = dict(wanted), dict(free)
    while True:
        new = _once(_layers(wanted), _layers(free))
        new = new or _once(_in_order(wanted), _in_order(free, numbered=True))
        new = new or _once(_single(wanted, _leaf), _single(free, _leaf))
        new = new or _once(_single(wanted), _single(free))
        if not new:
            return _without_canned(_with_kernels(found, free))
        found |= new
        wanted = {n: s for n, s in wanted.items() if n not in new}
        free = {n: s for n, s in free.items() if n not in new.values()}


def _with_kernels(found: dict[str, str], free: Shapes) -> dict[str, str]:
    """Returns what was found but for biases whose kernel there stands for nothing."""
    return {
        name: there
        for name, there in found.items()
        if not (there.endswith("/bias") and f"{there[:-4]}kernel" in free)
    }


def _without_canned(found: dict[str, str]) -> dict[str, str]:
    """Returns what was found but for a kernel whose rows have another order here."""
    return {name: there for name, there in found.items() if not _is_canned(there)}


def in_words(wanted: Shapes, free: Shapes, found: Mapping[str, str]) -> str:
    """Returns what was found as a line to paste, and what else would fit.

    Args:
      wanted: as in `proposed`.
      free: as in `proposed`.
      found: what it returned.
    """
    lines = [
        f"{name.rpartition('/')[0]} is a cell of tf.compat.v1, whose gates stand in "
        "another order: write an init_fn, as docs/old_values.md has it."
        for name in free
        if _is_v1_cell(name, free)
    ]
    lines += [
        f"{name} is a canned estimator's: its rows are the columns in the order of "
        "their names there, in another here: write an init_fn, as "
        "docs/old_rows.md has it."
        for name in free
        if _is_canned(name)
    ]
    if found:
        lines += ["What fits by shape, to check and to paste:"]
        lines += ["WarmStartSettings(..., var_name_to_prev_var_name={"]
        lines += [f"    {name!r}: {there!r}," for name, there in found.items()]
        lines += ["})"]
    rest = [(name, shape) for name, shape in wanted.items() if name not in found]
    for name, shape in rest[:_MOST_OPEN]:
        fitting = [n for n, s in free.items() if list(s) == list(shape)]
        fitting = [n for n in fitting if n not in found.values()]
        more = len(fitting) - _MOST
        some = ", ".join(fitting[:_MOST]) + (f" and {more} more" if more > 0 else "")
        lines.append(f"{name} {list(shape)}: {some or 'nothing of its shape'}.")
    if len(rest) > _MOST_OPEN:
        lines.append(f"And {len(rest) - _MOST_OPEN} more.")
    return "\n".join(lines)


def _is_v1_cell(name: str, free: Shapes) -> bool:
    """Whether a kernel is a cell's that has one kernel of inputs and of its state."""
    layer, _, leaf = name.rpartition("/")
    is_cell = leaf == "kernel" and re.search(r"(lstm|gru)_cell[^/]*(/gates)?$", layer)
    return bool(is_cell) and f"{layer}/recurrent_kernel" not in free


def _is_canned(name: str) -> bool:
    """Whether a kernel is the first of a canned estimator's deep part."""
    return re.fullmatch(r"(.*/)?dnn/hiddenlayer_0/kernel", name) is not None


def _once(
    here: Mapping[Any, list[list[str]]], there: Mapping[Any, list[list[str]]]
) -> dict[str, str]:
    """Returns pairs of names whose group is the only one of its key on both sides."""
    return {
        name: other
        for key, groups in here.items()
        if len(groups) == 1 and len(there.get(key, ())) == 1
        for name, other in zip(groups[0], there[key][0], strict=True)
    }


def _by_layer(shapes: Shapes) -> dict[str, list[str]]:
    layers: dict[str, list[str]] = {}
    for name in shapes:
        layers.setdefault(name.rpartition("/")[0], []).append(name)
    return layers


def _layers(shapes: Shapes) -> dict[Any, list[list[str]]]:
    """Returns layers of several variables by the names and shapes of these."""
    found: dict[Any, list[list[str]]] = {}
    for names in _by_layer(shapes).values():
        if len(names) > 1:
            names = sorted(names, key=_leaf)
            key = tuple((_leaf(n), *shapes[n]) for n in names)
            found.setdefault(key, []).append(names)
    return found


def _in_order(shapes: Shapes, *, numbered: bool = False) -> dict[Any, list[list[str]]]:
    """Returns layers by their variables' shapes in order.

    Args:
      shapes: shapes by name, in the order of the variables.
      numbered: whether to take only those whose names are numbers, as in Keras' files:
        they are in the order of the numbers.
    """
    found: dict[Any, list[list[str]]] = {}
    for names in _by_layer(shapes).values():
        if numbered and not all(_leaf(name).isdigit() for name in names):
            continue
        if numbered:
            names = sorted(names, key=lambda name: int(_leaf(name)))
        found.setdefault(tuple(tuple(shapes[n]) for n in names), []).append(names)
    return found


def _single(
    shapes: Shapes, part: Callable[[str], str] = lambda name: ""
) -> dict[Any, list[list[str]]]:
    found: dict[Any, list[list[str]]] = {}
    for name, shape in shapes.items():
        found.setdefault((part(name), *shape), []).append([name])
    return found


def _leaf(name: str) -> str:
    """Returns the last part of a name, as Keras 3 calls it where it differs."""
    leaf = name.rpartition("/")[2].removeprefix("_").removesuffix(":0")
    return {"weights": "kernel", "w": "kernel", "biases": "bias", "b": "bias"}.get(
        leaf, leaf
    )
