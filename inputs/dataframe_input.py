# SPDX-License-Identifier: Apache-2.0
"""DataFrames of pandas as input.

Each declared column is checked and becomes one tensor when the input is made; the batches are
gathered by row number, as those of arrays. Nothing here imports pandas.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from gin_estimator import errors

from .arrays import array_dataset
from .batching import is_integer, make_batching
from .columns import Column, did_you_mean, make_table

_EXACT = 2**53  # Up to here float64 holds every integer.


@gin.configurable
def dataframe_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    columns: Any,
    label: str | Sequence[str] | None = None,
    weight: str | None = None,
    train_frame: Any = None,
    eval_frame: Any = None,
    preprocess_batch: Callable[..., Any] | None = None,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    shuffle: bool = True,
    seed: int | None = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Returns batches of rows of a pandas.DataFrame; features are a dict of columns.

    Args:
      mode: one of `ModeKeys`. TRAIN reads `train_frame`, EVAL and PREDICT `eval_frame`; PREDICT
        yields features only, and its frame needs neither labels nor weights.
      input_context: this pipeline; None for one pipeline of one replica.
      columns: columns to read: dict of name and kind ('number', 'word', 'id', 'bag of words',
        'bag of ids'), `Column`, or dict of its arguments. A bag is a list, or text with the
        column's separator. Or a `Schema`, which encodes the features.
      label: name of the label column, names of several, whose labels are a dict, or None.
      weight: name of the column of example weights, numbers of 0 or more, which stays a
        feature; None for none.
      train_frame: the DataFrame, or a function without arguments that returns it.
      eval_frame: the same, for EVAL and PREDICT.
      preprocess_batch: function `preprocess_batch(features, labels)` of a batch that returns
        `(features, labels)`; labels are None in PREDICT. None changes nothing.
      batch_size: examples in a global batch. Set exactly one of the two batch sizes.
      batch_size_per_replica: examples in a batch of one replica.
      shuffle: whether TRAIN has another order in each epoch.
      seed: seed of the order; None for another order in each run, and after
        a restart.
      num_epochs: passes in TRAIN; None without end.
      drop_remainder: whether an incomplete last batch is dropped, as a TPU needs.
      first_batch: number of this pipeline's batches to leave out at the start.

    Raises:
      UserTypeError: the frame is not a DataFrame.
      UserValueError: a column is missing, a value is not of its column's kind, or an argument
        is wrong.
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
    table = make_table(columns, mode=mode, label=label, weight=weight)
    argument = "train_frame" if batching.is_training else "eval_frame"
    frame = _frame(train_frame if batching.is_training else eval_frame, argument)
    with tf.device("/CPU:0"):
        tensors = {}
        for name, column in table.columns.items():
            series = _series(frame, name, argument)
            tensors[name] = _tensor(series, column, is_weight=name == weight)
        # Encoded once instead of in each epoch.
        features, labels = table.divide(tensors)
    return array_dataset(
        features,
        labels,
        batching=batching,
        shuffle=shuffle,
        seed=seed,
        preprocess_batch=preprocess_batch,
    )


def _frame(frame: Any, argument: str) -> Any:
    frame = frame() if callable(frame) else frame
    if not all(hasattr(frame, name) for name in ("columns", "index", "iloc")):
        raise errors.UserTypeError(
            f"dataframe_input_fn.{argument} is {frame!r}: expected a pandas.DataFrame, or a "
            "function that returns one."
        )
    if not len(frame.index):
        raise errors.UserValueError(
            f"dataframe_input_fn.{argument} has no rows: expected at least one."
        )
    return frame


def _series(frame: Any, name: str, argument: str) -> Any:
    found = list(map(str, frame.columns))
    if found.count(name) != 1:
        raise errors.UserValueError(
            f"column {name!r} is in {argument} {found.count(name)} times: expected once. It has "
            f"{found}.{did_you_mean(name, found)}"
        )
    return frame.iloc[:, found.index(name)]


def _tensor(series: Any, column: Column, *, is_weight: bool) -> Any:
    missing = series.isna().to_numpy(bool)
    if column.fill is None:
        _refuse_first(series, missing, "a value, or a column with a default")
    if column.is_bag:
        return _bags(series, missing, column)
    if column.kind == "word":
        return _words(series, missing, column.fill or "")
    if column.kind == "id":
        return tf.constant(_ids(series, missing, column.fill or 0))
    return tf.constant(_numbers(series, missing, column.fill, is_weight=is_weight))


def _numbers(series: Any, missing: np.ndarray, fill: Any, *, is_weight: bool) -> np.ndarray:
    if series.dtype.kind in "biuf":
        values = series.to_numpy(np.float64, na_value=math.nan, copy=True)
    else:
        objects = _objects(series, missing, math.nan)
        bad = [not isinstance(each, int | float | np.number) for each in objects]
        _refuse_first(series, np.array(bad), "a number")
        values = objects.astype(np.float64)
    bad = np.abs(values) > tf.float32.max
    _refuse_first(series, bad | (values < 0) if is_weight else bad, "a number that float32 holds")
    if fill is not None:
        values[missing] = fill
    return values.astype(np.float32)


def _ids(series: Any, missing: np.ndarray, fill: int) -> np.ndarray:
    if series.dtype.kind in "bi" and not missing.any():
        return series.to_numpy(np.int64)
    objects = _objects(series, missing, fill)
    bad = np.array([not _is_id(each) for each in objects])
    _refuse_first(series, bad, "an integer that int64 holds. Convert it by astype('int64')")
    return objects.astype(np.int64)


def _is_id(value: Any) -> bool:
    if isinstance(value, float):
        # pandas makes floats of integers if some are missing.
        return value.is_integer() and abs(value) <= _EXACT
    return is_integer(value) and tf.int64.min <= value <= tf.int64.max


def _words(series: Any, missing: np.ndarray, fill: str) -> tf.Tensor:
    objects = _objects(series, missing, fill)
    bad = [not (isinstance(each, str | bytes) or is_integer(each)) for each in objects]
    _refuse_first(series, np.array(bad), "text. Convert it by astype(str)")
    return tf.constant([str(each) if is_integer(each) else each for each in objects], tf.string)


def _bags(series: Any, missing: np.ndarray, column: Column) -> tf.RaggedTensor:
    bags = [_items(each, column) for each in _objects(series, missing, "")]
    is_item = _is_id if column.dtype == tf.int64 else lambda each: isinstance(each, str | bytes)
    bad = [bag is None or not all(map(is_item, bag)) for bag in bags]
    _refuse_first(
        series, np.array(bad), f"a list of items, or text with {column.separator!r} between them"
    )
    items = [item for bag in bags for item in bag]
    return tf.RaggedTensor.from_row_lengths(
        tf.constant(items, column.dtype, [len(items)]),
        tf.constant([len(bag) for bag in bags], tf.int64),
    )


def _items(value: Any, column: Column) -> list[Any] | None:
    """Returns the items of a bag; None if it is something else."""
    if isinstance(value, str):
        items = [item for item in value.split(column.separator) if item]
        if column.dtype == tf.string:
            return items
        # int() alone would read 1_000 as well.
        are_ids = all(re.fullmatch(" *[+-]?[0-9]+ *", item) for item in items)
        return [int(item) for item in items] if are_ids else None
    return list(value) if isinstance(value, list | tuple | np.ndarray) else None


def _objects(series: Any, missing: np.ndarray, fill: Any) -> np.ndarray:
    """Returns the values as objects of Python, `fill` if they are missing."""
    objects = np.full(len(missing), None, object)
    # Not through floats, which pandas makes of integers with gaps.
    objects[:] = series.astype(object).tolist()
    objects[missing] = fill
    return objects


def _refuse_first(series: Any, bad: np.ndarray, expected: str) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise errors.UserValueError(
            f"column {series.name!r} is {series.iloc[row]!r} in row {row} (index "
            f"{series.index[row]!r}): expected {expected}."
        )
