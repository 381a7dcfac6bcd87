# SPDX-License-Identifier: Apache-2.0
"""Logs tensors of model_fn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from ..contract.hooks import Hook, RunContext

_MOST_VALUES = 6  # Of which all are written.


class TensorHook(Hook):
    """Logs arrays of `EstimatorSpec.tensors`: of a large one the shape, the mean, the range."""

    def __init__(self, every_steps: int, tensors: Sequence[str] | None = None) -> None:
        """Sets what to log.

        Args:
          every_steps: steps between two log lines.
          tensors: names of the tensors; None for all.
        """
        self.every_steps = every_steps
        self.wants_tensors = True if tensors is None else tuple(tensors)

    def after_step(self, run: RunContext) -> None:
        """Logs the arrays of this step, in the process that leads."""
        if run.is_chief:
            tensors = run.report.tensors.items()
            values = "".join(f" | {name} = {_text(array)}" for name, array in tensors)
            logging.info("train | step %d%s", run.step, values)


def _text(array: Any) -> str:
    """Returns a text of one line: few values themselves, many numbers by their mean and range."""
    if np.size(array) <= _MOST_VALUES:
        return str(np.asarray(array)).replace("\n", "")
    shape, kind = list(np.shape(array)), array.dtype.kind
    if kind not in "biufV":  # bfloat16 is of the kind V.
        return f"{shape}: {', '.join(map(str, array.flat[:3]))}, ..."
    array = np.asarray(array, np.float64)
    return f"{shape}, mean {np.mean(array):.4g}, from {np.min(array):.4g} to {np.max(array):.4g}"
