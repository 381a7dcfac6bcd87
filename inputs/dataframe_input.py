"""Tables of pandas as input.

Each declared column is checked and becomes one tensor when the input is made. Then the
numbers of rows flow, as in `numpy_input`. Nothing here imports pandas: whoever has a
DataFrame has it.
"""

import math
import numbers
import re
from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from pipeline import RefusedTypeError, RefusedValueError
from pipeline.process.refusals import near

from .batching import make_batching
from .columns import Column, Table, encoding_of, table_of
from .numpy_input import array_dataset

# Up to here floats of so many bytes hold every integer.
_MOST_EXACT = {2: 2**11, 4: 2**24, 8: 2**53}


@gin.configurable(denylist=["config"])
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
    seed: int = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    first_batch: int = 0,
    config: Any = ...,
) -> tf.data.Dataset:
    """Yields batches of the rows of a pandas.DataFrame; features are a dict of columns.

    Args:
      mode: one of `ModeKeys`. TRAIN reads `train_frame`, the others `eval_frame`;
        PREDICT yields features alone, and its frame needs neither labels nor weights.
      input_context: this pipeline; None is one pipeline that feeds one replica.
      columns: the columns to read, a dict of name and kind: 'number' (float32), 'word'
        (string), 'id' (int64), 'bag of words' or 'bag of ids' (ragged); or of name and
        `Column`, or a dict of its arguments: {'kind': 'id', 'default': -1}. A bag is a
        list, or text with the column's separator. Or a `Schema`, whose features then
        come encoded.
      label: name of the label column, or a list of several, whose labels are a dict;
        None for data without labels.
      weight: name of a column of example weights, numbers of 0 or more, which stays
        among the features; None is none.
      train_frame: the DataFrame, or a function without arguments that returns it.
      eval_frame: the same, for EVAL and PREDICT.
      preprocess_batch: function `preprocess_batch(features, labels)` of a batch that
        returns `(features, labels)`; labels are None in PREDICT. None changes nothing.
      batch_size: examples in a global batch. Exactly one of the two batch sizes is
        given.
      batch_size_per_replica: examples in the batch of one replica.
      shuffle: whether TRAIN draws a new order each epoch. EVAL and PREDICT keep the
        order of the rows.
      seed: seed of the order, an integer, the same in each pipeline.
      num_epochs: passes in TRAIN; None is forever. EVAL and PREDICT make one.
      drop_remainder: whether an incomplete last batch is left out, in every mode. All
        batches then have one shape, which a TPU needs.
      first_batch: batches of this pipeline to leave out, for a run that goes on.
      config: the `RunConfig`, which the driver gives, in whose model_dir a schema keeps
        its statistics; None: they are counted for this process.

    Raises:
      TypeError: columns is no dict, or the frame no DataFrame.
      ValueError: a column is not there, a value is not of its column's kind, there are
        no rows; a declaration or an argument of `make_batching` is refused.
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
    table = table_of(columns, mode=mode, label=label, weight=weight)
    argument = "train_frame" if batching.is_training else "eval_frame"
    frame = _frame(train_frame if batching.is_training else eval_frame, argument)
    values = {
        name: _tensor(_Series(frame, name, argument), column, table)
        for name, column in table.columns.items()
    }
    features, labels = table.divided(values)
    encode = encoding_of(columns, config, "dataframe_input_fn")
    with tf.device("/CPU:0"):
        features = encode(features)
    return array_dataset(
        features,
        labels,
        batching=batching,
        shuffle=shuffle,
        seed=seed,
        preprocess_batch=preprocess_batch,
    )


class _Series:
    """One column of a DataFrame.

    Attributes:
      name: the column's name.
      kind: NumPy's letter for its type; 'O' for Python objects, texts, categories.
      itemsize: bytes of a value, where its type says it.
      missing: which rows have no value, bool `[rows]`.
    """

    def __init__(self, frame: Any, name: str, argument: str) -> None:
        """Finds the column.

        Args:
          frame: the DataFrame.
          name: name of the column.
          argument: the argument that the frame came by, for messages.

        Raises:
          ValueError: there is not exactly one column of that name.
        """
        found = list(frame.columns)
        count = found.count(name)
        if count != 1:
            texts = list(map(str, found))
            raise RefusedValueError(
                f"Column {name!r} is declared, and {argument} has {count} of that "
                f"name: write one of {texts}, each name once.{near(name, texts)}"
            )
        self.name = name
        self._series = frame[name]
        self._index = frame.index
        self.kind = getattr(self._series.dtype, "kind", "O")
        self.itemsize = getattr(self._series.dtype, "itemsize", None)
        self.missing = np.asarray(self._series.isna(), bool)
        if self.kind == "f":  # Arrow's floats know NaN beside what is missing.
            self.missing = np.isnan(self.array("float64", math.nan))

    def __iter__(self) -> Any:
        """Yields the values as Python has them; what is missing as None."""
        values = self._series.astype(object)
        if hasattr(self._series.dtype, "categories"):
            # Of integers with gaps pandas would make floats.
            kinds = self._series.dtype.categories.astype(object)
            values = (kinds[code] for code in self._series.cat.codes)
        pairs = zip(values, self.missing, strict=True)
        return (None if missing else value for value, missing in pairs)

    def array(self, dtype: str, fill: Any) -> np.ndarray:
        """Returns a copy of the values as a type, with `fill` for missing ones."""
        # Types of NumPy that know no missing value take no word for it either.
        if self.missing.any():
            return self._series.to_numpy(dtype=dtype, na_value=fill, copy=True)
        return self._series.to_numpy(dtype=dtype, copy=True)

    def refuse(self, row: int, what: str) -> None:
        """Raises for the value of a row.

        Args:
          row: number of the row, from 0.
          what: what it is not, and what to write.
        """
        value = self._series.iloc[row]
        where = f"row {row} (index {self._index[row]!r})"
        raise RefusedValueError(f"Column {self.name!r} is {value!r} in {where}: {what}")

    def refuse_first(self, bad: np.ndarray, what: str) -> None:
        """Raises for the first row that is bad, if any is.

        Args:
          bad: bool `[rows]`.
          what: what its value is not, and what to write.
        """
        if bad.any():
            self.refuse(int(bad.argmax()), what)


def _frame(frame: Any, argument: str) -> Any:
    if callable(frame):
        frame = frame()
    if not all(hasattr(frame, name) for name in ("columns", "index", "iloc")):
        raise RefusedTypeError(
            f"{argument} is {frame!r}: write a pandas.DataFrame, or a function that "
            f"returns one, dataframe_input_fn.{argument} = @my_frame (pandas comes by "
            "python -m pip install pandas)."
        )
    if not len(frame.index):
        raise RefusedValueError(
            f"{argument} has no rows: write a frame that has some, "
            f"dataframe_input_fn.{argument} = @my_frame."
        )
    return frame


def _tensor(series: _Series, column: Column, table: Table) -> Any:
    """Returns the tensor of a column, ragged of a bag."""
    if column.fill is None:
        series.refuse_first(
            series.missing,
            f"take the row out, or write a default, columns = {{..., {series.name!r}: "
            f"{{'kind': {column.kind!r}, 'default': ...}}}}.",
        )
    if column.is_bag:
        return _bags(series, column)
    read = {"number": _numbers, "word": _words, "id": _ids}[column.kind]
    values = read(series, column.fill)
    if series.name == table.weight:
        series.refuse_first(values < 0, "a weight is a number of 0 or more.")
    with tf.device("/CPU:0"):
        return tf.constant(values, column.dtype)


def _numbers(series: _Series, fill: float | None) -> np.ndarray:
    write = "is not a number that float32 holds: declare the column as what it is."
    if series.kind in "biuf":
        values = series.array("float64", math.nan)
    else:
        values = np.full(len(series.missing), math.nan)
        for row, value in enumerate(series):
            if isinstance(value, numbers.Real):
                values[row] = value
            elif value is not None:
                series.refuse(row, f"it {write}")
    # Written so that NaN passes.
    series.refuse_first(np.abs(values) > tf.float32.max, f"it {write}")
    if fill is not None:
        values[series.missing] = fill
    return values.astype(np.float32)


def _ids(series: _Series, fill: int | None) -> np.ndarray:
    write = "it is not an integer that int64 holds: declare the column as what it is."
    stand_in = 0 if fill is None else fill
    if series.kind in "bi":
        return series.array("int64", stand_in)
    if series.kind == "f":
        # A column of integers that lacks some is one of floats in pandas.
        values = series.array("float64", 0.0)
        values[series.missing] = 0.0
        most = _MOST_EXACT.get(series.itemsize, 2**53)
        whole = (values == np.floor(values)) & (np.abs(values) <= most)
        series.refuse_first(~whole, write)
        ids = values.astype(np.int64)
        ids[series.missing] = stand_in
        return ids
    ids = np.full(len(series.missing), stand_in, np.int64)
    for row, value in enumerate(series):
        if _is_id(value) or _is_whole(value):
            ids[row] = value
        elif value is not None:
            series.refuse(row, write)
    return ids


def _words(series: _Series, fill: str | None) -> np.ndarray:
    values = np.full(len(series.missing), fill or "", object)
    for row, value in enumerate(series):
        if isinstance(value, (str, bytes)):
            values[row] = value
        elif _is_id(value):
            values[row] = str(value)
        elif value is not None:
            series.refuse(
                row,
                "it is no word: write frame[...].astype(str), or declare the column "
                "as what it is.",
            )
    return values


def _bags(series: _Series, column: Column) -> tf.RaggedTensor:
    """Returns the bags of lists, or of text that is split."""
    is_item = _is_id if column.dtype == tf.int64 else _is_text
    items: list[Any] = []
    lengths = []
    for row, value in enumerate(series):
        bag = _split(value, column)
        if bag is None or not all(map(is_item, bag)):
            series.refuse(
                row,
                f"it is no {column.kind}: write a list of them, or text with "
                f"{column.separator!r} between them.",
            )
        items += bag
        lengths.append(len(bag))
    with tf.device("/CPU:0"):
        return tf.RaggedTensor.from_row_lengths(
            tf.constant(items, column.dtype, [len(items)]),
            tf.constant(lengths, tf.int64),
        )


def _split(value: Any, column: Column) -> list[Any] | None:
    """Returns the items of a bag; None where it is none."""
    if value is None:
        return []
    if isinstance(value, str):
        items = [item for item in value.split(column.separator) if item]
        if column.dtype == tf.string:
            return items
        # As in files: `int` would take 1_000, too.
        are_ids = all(re.fullmatch(" *[+-]?[0-9]+ *", item) for item in items)
        return [int(item) for item in items] if are_ids else None
    return list(value) if isinstance(value, (list, tuple, np.ndarray)) else None


def _is_id(value: Any) -> bool:
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_integer and tf.int64.min <= value <= tf.int64.max


def _is_whole(value: Any) -> bool:
    """Whether a value is an integer of which pandas has made a float."""
    return isinstance(value, float) and value.is_integer() and abs(value) <= 2**53


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, bytes))
