# SPDX-License-Identifier: Apache-2.0
"""What a summary of a step or of an evaluation is: fetched tensors, and how to draw them."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Summary:
    """A summary: of one batch as tensors, or of several as arrays.

    Attributes:
      tensors: `[rows, ...]` by name.
      draw: function of the name and of the arrays that returns the values of an event,
        `Summary.Value` protocol buffers.
      max_rows: number of rows to keep, those with the highest `score`, or the first; None adds up
        all rows. They are counts then, the last one of the values that are left out.
    """

    tensors: Mapping[str, Any]
    draw: Callable[[str, Mapping[str, Any]], Iterable[Any]]
    max_rows: int | None = None

    def of(self, *batches: Mapping[str, np.ndarray]) -> "Summary":
        """Returns the same summary of the arrays of several batches."""
        arrays = {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}
        if self.max_rows is None:
            kept = {name: array.sum(axis=0, keepdims=True) for name, array in arrays.items()}
        else:
            order: Any = slice(None)
            if "score" in arrays:
                order = np.argsort(-arrays["score"], kind="stable")
            kept = {name: array[order][: self.max_rows] for name, array in arrays.items()}
        return dataclasses.replace(self, tensors=kept)
