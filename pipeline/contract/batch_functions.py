# SPDX-License-Identifier: Apache-2.0
"""Finds functions of a batch whose mean over replicas is not their value of the whole batch."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

_ROWS = 8


def warn_of_joined(
    what: str, function: Callable[[Any, Any], Any], labels: Any, outputs: Any
) -> None:
    """Warns once, on several replicas, if a function joins the examples of a batch.

    A root of a mean and a loss of pairs do so. The function is called with random numbers, on
    eight examples and on both halves of them.

    Args:
      what: name of the function in the warning.
      function: function of labels and outputs, whose mean is taken.
      labels: tensor `[batch, ...]`; only its dtype and shape are used.
      outputs: tensor `[batch, ...]`.
    """
    number = tf.distribute.get_strategy().num_replicas_in_sync
    if number > 1:
        specs = [(tuple(each.shape[1:]), each.dtype) for each in (labels, outputs)]
        with contextlib.suppress(TypeError):  # A function that is not hashable.
            _warn_once(what, function, *specs, number)


@functools.lru_cache(maxsize=64)
def _warn_once(what: str, function: Any, labels: Any, outputs: Any, number: int) -> None:
    random = np.random.default_rng(0)
    classes = outputs[0][-1] if outputs[0] else 2
    y, p = (random_numbers(random, *each, max(classes or 2, 2)) for each in (labels, outputs))
    _pad(y)
    with contextlib.suppress(Exception), tf.init_scope():  # It may need other labels.

        def mean(part: slice) -> float:
            return float(np.mean(function(tf.constant(y[part]), tf.constant(p[part]))))

        half = _ROWS // 2
        whole, again, parts = (
            mean(slice(None)),
            mean(slice(None)),
            (mean(slice(half)) + mean(slice(half, None))) / 2,
        )
        if np.isclose(whole, again, 1e-6) and not np.isclose(whole, parts, 1e-3, 1e-6):
            logging.warning(
                "%s joins the examples of a batch (%.4g for %d examples, %.4g as the mean of both "
                "halves), so that its value depends on the %d replicas: write a mean over "
                "examples, a keras.metrics.Metric whose state adds up, or train on one device.",
                what,
                whole,
                _ROWS,
                parts,
                number,
            )


def random_numbers(
    random: np.random.Generator, shape: Any, dtype: Any, classes: int = 2
) -> np.ndarray:
    """Returns eight examples of a shape without its batch, of which the halves differ."""
    shape = [_ROWS, *(3 if size is None else size for size in shape)]
    if dtype.is_floating:
        values = random.uniform(0.1, 0.9, shape)
        values[_ROWS // 2 :] **= 3  # So that the halves differ.
        return values.astype(dtype.as_numpy_dtype)
    return _pad(random.integers(0, classes, shape).astype(dtype.as_numpy_dtype))


def _pad(values: np.ndarray) -> np.ndarray:
    """Sets numbers of the first half to 0, which losses of words take for padding."""
    half = values[: _ROWS // 2]
    padding = half[:, 1:] if values.size > _ROWS else half[1:]
    padding[...] = 0
    return values
