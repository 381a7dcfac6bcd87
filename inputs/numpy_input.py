# SPDX-License-Identifier: Apache-2.0
"""Arrays in memory as an input_fn."""

from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from gin_estimator import errors

from .arrays import array_dataset
from .batching import make_batching


@gin.configurable
def numpy_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    x: Any = None,
    y: Any = None,
    data: Callable[[], Any] | None = None,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    shuffle: bool = True,
    seed: int | None = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Returns a dataset of rows of arrays.

        functools.partial(numpy_input_fn, x=x, y=y, batch_size=32)

    Args:
      mode: one of `ModeKeys`; PREDICT yields features only.
      input_context: this pipeline; None for one pipeline of one replica.
      x: features: array, list or ragged tensor `[examples, ...]`, or dict of them.
      y: labels, the same; None for none.
      data: function that returns `(x, y)` instead, or `((x, y), (x_eval, y_eval))`, as those of
        `keras.datasets`; the second pair is for EVAL and PREDICT.
      batch_size: examples in a global batch. Set exactly one of the two batch sizes.
      batch_size_per_replica: examples in a batch of one replica.
      shuffle: whether TRAIN has another order in each epoch.
      seed: seed of the order; None for another order in each run, and after
        a restart.
      num_epochs: passes in TRAIN; None without end.
      drop_remainder: whether an incomplete last batch is dropped, as a TPU needs.
      first_batch: number of this pipeline's batches to leave out at the start.

    Raises:
      UserValueError: `x` and `data` are both given or neither, or the arrays do not fit.
    """
    batching = make_batching(
        mode,
        input_context,
        batch_size=batch_size,
        batch_size_per_replica=batch_size_per_replica,
        num_epochs=num_epochs,
        drop_remainder=drop_remainder,
        first_batch=first_batch,
    )
    if (x is None) == (data is None) or (data is not None and y is not None):
        raise errors.UserValueError(
            "numpy_input_fn needs either x, with or without y, or data, a function that returns "
            "both: set one of them."
        )
    if data is not None:
        x, y = _load(data, is_training=batching.is_training)
    return array_dataset(x, y, batching=batching, shuffle=shuffle, seed=seed)


def _load(data: Callable[[], Any], *, is_training: bool) -> tuple[Any, Any]:
    loaded = data()
    if not isinstance(loaded, tuple) or len(loaded) != 2:
        raise errors.UserValueError(
            f"data() returned {type(loaded).__name__}: expected (x, y), (x, None) or "
            "((x, y), (x_eval, y_eval))."
        )
    if all(isinstance(part, tuple) and len(part) == 2 for part in loaded):
        return loaded[0] if is_training else loaded[1]
    return loaded


@gin.configurable
def constant_arrays(
    x: Sequence[float] = (1.0,), y: Sequence[float] = (1.0,), num_examples: int = 1000
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same example many times, float32 `[num_examples, len(x)]` and of y.

    Args:
      x: features of the example.
      y: labels of the example.
      num_examples: number of rows.

    Raises:
      UserValueError: an example has no values.
    """
    for name, row in (("x", x), ("y", y)):
        if not np.size(row):
            raise errors.UserValueError(
                f"constant_arrays.{name} is {row!r}: expected numbers: (1.0,)."
            )
    return tuple(np.tile(np.float32(row), (num_examples, 1)) for row in (x, y))
