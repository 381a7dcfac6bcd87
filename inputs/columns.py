"""Declares the columns of a table as its readers take them, before any preprocessing.

Every reader of tables takes the same declaration, a dict of name and column:

    {"distance": "number", "carrier": "word", "tail": {"kind": "id", "default": -1},
     "tags": Column("bag of words", separator=";")}

A number becomes float32, a word a string, an id int64, each `[batch]`; a bag becomes a
ragged tensor `[batch, (items)]` of strings or int64. A file may have more columns than
are declared: only the declared ones are read.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline import ModeKeys, RefusedTypeError, RefusedValueError
from pipeline.process.refusals import near

from .batching import of_known_rows

_DTYPES = {
    "number": tf.float32,
    "word": tf.string,
    "id": tf.int64,
    "bag of words": tf.string,
    "bag of ids": tf.int64,
}
_MOST = float(tf.float32.max)
# What stands for a missing value where no default is given; None: nothing does.
_FILLS = {"number": math.nan, "word": "", "id": None}


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
      kind: 'number', 'word', 'id', 'bag of words' or 'bag of ids'. An id is an integer
        that names something; a number may be computed with.
      default: value where the field is missing; None refuses rows without one. Left
        out, it is NaN for a number and '' for a word, and an id or a label is refused.
        A bag has none: it is empty.
      separator: the character between the items of a bag, in files that hold text.
        Items without a character are left out.
    """

    kind: str
    default: float | int | str | None = ...
    separator: str = " "

    def __post_init__(self) -> None:
        if self.kind not in _DTYPES:
            raise RefusedValueError(
                f"kind is {self.kind!r}: write one of {sorted(_DTYPES)}."
            )
        if len(self.separator) != 1 or self.separator in '"\r\n':
            raise RefusedValueError(
                f"separator is {self.separator!r}: write one character between the "
                "items of a bag, separator=';'."
            )
        if self.default not in (..., None) and not self._takes(self.default):
            raise RefusedValueError(
                f"default is {self.default!r}, which a column of kind {self.kind!r} "
                f"cannot hold: {_DEFAULT_TO_WRITE[self.kind]}."
            )

    @property
    def is_bag(self) -> bool:
        """Whether a row holds any number of items."""
        return self.kind.startswith("bag of ")

    @property
    def dtype(self) -> tf.DType:
        """The type of its values, or of a bag's items."""
        return _DTYPES[self.kind]

    @property
    def fill(self) -> Any:
        """The value of a missing field; None where it is refused. A bag's is ''."""
        if self.is_bag:
            return ""
        return _FILLS[self.kind] if self.default is ... else self.default

    def parser(self) -> Any:
        """Returns the parser of `tf.io.parse_example` for a feature of a tf.Example."""
        if self.is_bag:
            return tf.io.RaggedFeature(self.dtype, row_splits_dtype=tf.int64)
        return tf.io.FixedLenFeature([], self.dtype, self.fill)

    def _takes(self, value: Any) -> bool:
        """Returns whether a value may stand for a missing one."""
        if self.kind == "word":
            return isinstance(value, str)
        is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if self.kind == "id":
            return is_integer and tf.int64.min <= value <= tf.int64.max
        is_number = isinstance(value, float) or is_integer
        return self.kind == "number" and is_number and not abs(value) > _MOST


_DEFAULT_TO_WRITE = {
    "number": "write default=0.0",
    "word": "write default='unknown'",
    "id": "write default=-1",
    "bag of words": "leave it out, a missing bag is empty",
    "bag of ids": "leave it out, a missing bag is empty",
}


def encoding_of(
    columns: Any, config: Any, name: str
) -> Callable[[dict[str, Any]], Any]:
    """Returns what encodes the features of a batch: a schema does, a dict nothing.

    Args:
      columns: as `declared` takes them.
      config: the run's `RunConfig`; None for none, `...` where it was left out.
      name: of the input_fn, for messages.

    Raises:
      ValueError: the config was left out, and statistics in its model_dir are needed.
    """
    if isinstance(columns, Mapping) or not hasattr(columns, "prepared"):
        return _unchanged
    if config is ... and columns.needs:
        raise RefusedValueError(
            f"{name}.config is left out, whose model_dir holds what was counted for "
            f"{sorted(columns.needs)}: write def input_fn(mode, input_context, config),"
            f" and in it {name}(..., config=config); or config=None to count anew in "
            "this process."
        )
    return columns.prepared(None if config is ... else config).encode


def _unchanged(features: dict[str, Any]) -> dict[str, Any]:
    return features


@dataclasses.dataclass(frozen=True)
class Table:
    """The columns that a reader is to read, and which of them are not features.

    Attributes:
      columns: all columns by name, in the order of their declaration.
      labels: names of the label columns.
      label: the argument that named them: one name gives one tensor of labels, a list
        a dict.
      weight: name of the column of example weights, which stays a feature; or None.
    """

    columns: Mapping[str, Column]
    labels: tuple[str, ...] = ()
    label: str | Sequence[str] | None = None
    weight: str | None = None

    def divided(self, values: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """Returns features and labels; labels are None where there are none."""
        features = {k: v for k, v in values.items() if k not in self.labels}
        if not self.labels:
            return features, None
        if isinstance(self.label, str):
            return features, values[self.label]
        return features, {name: values[name] for name in self.labels}


def declared(columns: Any) -> dict[str, Column]:
    """Returns the columns by name, of a dict of columns, kinds or arguments.

    Args:
      columns: dict of name and `Column`, kind, or dict of a Column's arguments; or a
        `Schema`, which has such a dict.

    Raises:
      TypeError: it is something else.
      ValueError: it is empty, or a column is none.
    """
    # A schema stands above this file, which knows of it only that it has columns.
    if not isinstance(columns, Mapping):
        columns = getattr(columns, "columns", columns)
    if not isinstance(columns, Mapping):
        raise RefusedTypeError(
            f"columns is {columns!r}: write a dict of names and kinds, "
            "columns={'age': 'number', 'city': 'word'}."
        )
    if not columns:
        raise RefusedValueError(
            "columns is empty: write the columns to read, columns={'age': 'number'}."
        )
    return {name: column_of(name, value) for name, value in columns.items()}


def column_of(name: str, value: Any, *, is_needed: bool = False) -> Column:
    """Returns one column of a declaration.

    Args:
      name: name of the column, for messages.
      value: a `Column`, a kind, or a dict of a Column's arguments.
      is_needed: whether a missing field is refused where no default was given.

    Raises:
      ValueError: it is something else.
    """
    try:
        if isinstance(value, str):
            value = Column(value)
        elif isinstance(value, Mapping):
            value = Column(**value)
    except (TypeError, ValueError) as error:
        raise RefusedValueError(f"Column {name!r}: {error}") from error
    if not isinstance(value, Column):
        raise RefusedValueError(
            f"Column {name!r} is {value!r}: write its kind, one of {sorted(_DTYPES)}, "
            "or inputs.Column('id', default=-1)."
        )
    if is_needed and value.default is ... and not value.is_bag:
        return dataclasses.replace(value, default=None)
    return value


def table_of(
    columns: Any,
    *,
    mode: str,
    label: str | Sequence[str] | None = None,
    weight: str | None = None,
) -> Table:
    """Checks a declaration of columns, and returns what is read of it in a mode.

    PREDICT reads neither labels nor weights. Rows without a label or a weight are
    refused, unless their columns have a default.

    Args:
      columns: as `declared` takes them.
      mode: one of `ModeKeys`.
      label: name of the label column, or a list of several; None is none.
      weight: name of the column of example weights, a number; None is none.

    Raises:
      TypeError, ValueError: a column is none, or no column has the name of a label or
        the weight.
    """
    known = declared(columns)
    labels = (label,) if isinstance(label, str) else tuple(label or ())
    for argument, names in (("label", labels), ("weight", (weight,) if weight else ())):
        for name in names:
            if name not in known:
                raise RefusedValueError(
                    f"{argument} is {name!r}, which is not among the columns: write "
                    f"one of {sorted(known)}.{near(name, list(known))}"
                )
            known[name] = column_of(name, known[name], is_needed=True)
    if weight and known[weight].kind != "number":
        raise RefusedValueError(
            f"weight is {weight!r}, a column of kind {known[weight].kind!r}: write "
            f"columns={{..., {weight!r}: 'number'}}."
        )
    if weight and weight in labels:
        raise RefusedValueError(
            f"weight is {weight!r}, which is a label, too: write another column."
        )
    if mode == ModeKeys.PREDICT:
        left_out = {*labels, weight}
        known = {name: known[name] for name in known if name not in left_out}
        labels, label, weight = (), None, None
    if not set(known) - set(labels):
        raise RefusedValueError(
            f"columns has no features beside label={label!r} and weight={weight!r}: "
            "declare the columns to learn from."
        )
    return Table(known, labels, label, weight)


def split_bag(values: tf.Tensor, column: Column) -> tf.RaggedTensor:
    """Splits the text of bags into items.

    Args:
      values: strings `[batch]`.
      column: the bag's column.

    Returns:
      Ragged `[batch, (items)]` of the column's dtype.
    """
    # Adjacent separators give empty items, and so does an empty bag.
    items = tf.strings.split(values, column.separator)
    items = tf.ragged.boolean_mask(items, items != "")
    items = of_known_rows(items, values.shape[0])
    if column.dtype == tf.string:
        return items
    return items.with_values(tf.strings.to_number(items.values, column.dtype))
