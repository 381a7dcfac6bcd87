# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters as names and scalars, for metric writers and TensorBoard."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .checks import repr_short

_SCALAR = str | bool | int | float | np.generic


def of(params: Any, config: Any) -> dict[str, Any]:
    """Returns the hyperparameters of a run: those of an Estimator and of its RunConfig."""
    return {**flattened(params), **config.hparams}


def flattened(params: Any) -> dict[str, Any]:
    """Returns nested parameters by names with dots: `{"cnn.rate": 0.1}`.

    Args:
      params: a dict, or an object with attributes, of any depth. Lists and other values become
        text.
    """
    return dict(_leaves(params, ""))


def comparable(params: Any, config: Any) -> dict[str, str]:
    """Returns texts of the hyperparameters and options of a run that two processes can compare.

    The text of an object has its address, and gin files are compared by the command.
    """
    options = {f"RunConfig.{n}": v for n, v in config.changes().items() if n != "hparams"}
    values = {**flattened(params), **options}
    texts = {name: repr_short(value) for name, value in values.items()}
    return {name: text for name, text in texts.items() if " at 0x" not in text}


def changes(before: Mapping[str, str] | None, after: Mapping[str, str]) -> list[str]:
    """Returns texts such as `rate 0.1 -> 0.2`; none if the earlier options are not known."""
    if before is None:
        return []
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [f"{n} {before.get(n, '(not set)')} -> {after.get(n, '(not set)')}" for n in names]


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping | _SCALAR) and hasattr(value, "__dict__"):
        value = {k: v for k, v in vars(value).items() if not k.startswith("_")}
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(each, f"{name}.{key}".lstrip("."))
    elif name:
        is_scalar = isinstance(value, _SCALAR)
        yield (
            name,
            value.item() if isinstance(value, np.generic) else value if is_scalar else str(value),
        )
