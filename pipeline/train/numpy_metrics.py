# SPDX-License-Identifier: Apache-2.0
"""Metrics that a Python function computes once, on all examples of an evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from ..contract.spec import EstimatorSpec, NumpyMetric
from ..distribute.replicas import Replicas
from ..errors import SpecError
from .fetches import concatenated, of_all_processes
from .metrics import as_result

_MANY_BYTES = 2**30


class NumpyMetrics:
    """The host metrics of mode EVAL."""

    def __init__(self, outline: EstimatorSpec) -> None:
        """Takes the spec of the build trace."""
        self._functions = {
            name: each.function
            for name, each in outline.metrics.items()
            if isinstance(each, NumpyMetric)
        }

    @property
    def names(self) -> list[str]:
        """The names of the metrics."""
        return list(self._functions)

    def results(self, steps: Sequence[Mapping[str, Any]], replicas: Replicas) -> dict[str, Any]:
        """Returns each function's result for all examples; every process must call it.

        `steps` has the arguments by name of the metric, for each step.

        Raises:
          SpecError: examples have different shapes, or a result is not numeric.
        """
        if not self._functions:
            return {}
        try:
            arguments = concatenated(of_all_processes(steps, replicas))
        except ValueError as error:
            raise SpecError(
                f"numpy_metric(): the examples have different shapes: {error}. Pad them to one "
                "shape by tf.pad in model_fn."
            ) from error
        num_bytes = sum(array.nbytes for array in tf.nest.flatten(arguments))
        if num_bytes > _MANY_BYTES:
            logging.warning(
                "eval | the functions of numpy_metric() get %.1f GiB at once", num_bytes / 2**30
            )
        results = {}
        for name, function in self._functions.items():
            args, kwargs = arguments[name]
            array = np.asarray(value := function(*args, **kwargs))
            if array.dtype.kind not in "biuf":
                raise SpecError(
                    f"numpy_metric {name!r} returned {value!r}: expected a number or an array of "
                    "numbers."
                )
            results[name] = as_result(array)
        return results
