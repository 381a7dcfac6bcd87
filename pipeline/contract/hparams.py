"""Hyperparameters as names and scalars, for metric writers and TensorBoard."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

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
