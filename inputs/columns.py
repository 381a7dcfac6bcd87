# SPDX-License-Identifier: Apache-2.0
"""Declares columns of tables, as all readers of tables take them.

    {"distance": "number", "carrier": "word", "tail": {"kind": "id", "default": -1},
     "tags": Column("bag of words", separator=";")}

A number becomes float32, a word a string and an id int64, each `[batch]`; a bag becomes a ragged
tensor `[batch, (items)]` of strings or int64. Columns that are not declared are not read.
"""

import dataclasses
import difflib
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from gin_estimator import ModeKeys, errors

from .arrays import with_known_rows
from .batching import is_integer

DTYPES = {
    "number": tf.float32,
    "word": tf.string,
    "id": tf.int64,
    "bag of words": tf.string,
    "bag of ids": tf.int64,
}
# Values of missing fields; None refuses them.
_FILLS = {"number": math.nan, "word": "", "id": None}
_EXAMPLE = "{'age': 'number', 'city': 'word'}"


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
      kind: 'number', 'word', 'id', 'bag of words' or 'bag of ids'. An id is an integer that
        names something.
      default: value of a missing field; None refuses rows without a value. By default NaN for a
        number, '' for a word, and None for an id. A missing bag is empty.
      separator: character between the items of a bag, in text. Empty items are left out.
    """

    kind: str
    default: float | int | str | None = ...
    separator: str = " "

    def __post_init__(self) -> None:
        if self.kind not in DTYPES:
            raise errors.UserValueError(f"kind is {self.kind!r}: expected one of {[*DTYPES]}.")
        if len(self.separator) != 1 or self.separator in '"\r\n':
            raise errors.UserValueError(
                f"separator is {self.separator!r}: expected one character, such as ';'."
            )
        if self.default not in (..., None) and not self._fits(self.default):
            raise errors.UserValueError(
                f"default is {self.default!r}: expected a value of a column of kind "
                f"{self.kind!r}. A bag has no default."
            )

    @property
    def is_bag(self) -> bool:
        """Whether a row has any number of items."""
        return self.kind.startswith("bag of ")

    @property
    def dtype(self) -> tf.DType:
        """Dtype of the values, or of the items of a bag."""
        return DTYPES[self.kind]

    @property
    def fill(self) -> Any:
        """Value of a missing field; None if it is refused. That of a bag is ''."""
        if self.is_bag:
            return ""
        return _FILLS[self.kind] if self.default is ... else self.default

    def parser(self) -> Any:
        """Returns the feature of `tf.io.parse_example`."""
        if self.is_bag:
            return tf.io.RaggedFeature(self.dtype, row_splits_dtype=tf.int64)
        return tf.io.FixedLenFeature([], self.dtype, self.fill)

    def split(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the items of bags, ragged `[batch, (items)]`, of strings `[batch]`."""
        items = tf.strings.split(texts, self.separator)
        items = with_known_rows(tf.ragged.boolean_mask(items, items != ""), texts.shape[0])
        if self.dtype == tf.string:
            return items
        return items.with_values(tf.strings.to_number(items.values, self.dtype))

    def _fits(self, value: Any) -> bool:
        if self.kind == "id":
            return is_integer(value) and tf.int64.min <= value <= tf.int64.max
        if self.kind == "number":
            real = isinstance(value, numbers.Real) and not isinstance(value, bool)
            return real and not abs(value) > tf.float32.max
        return self.kind == "word" and isinstance(value, str)


@dataclasses.dataclass(frozen=True)
class Table:
    """The columns that a reader reads in one mode.

    Attributes:
      columns: columns by name.
      label: name of the label column, or names of several, whose labels are a dict.
      weight: name of the column of example weights, which stays a feature.
      encode: function of the features of a batch, that of a schema.
    """

    columns: Mapping[str, Column]
    label: str | Sequence[str] | None = None
    weight: str | None = None
    encode: Callable[[dict[str, Any]], dict[str, Any]] = dict

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the label columns."""
        return (self.label,) if isinstance(self.label, str) else tuple(self.label or ())

    def divide(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Returns encoded features, and labels or None, of the columns of a batch."""
        features = {name: value for name, value in values.items() if name not in self.labels}
        features = self.encode(features)
        if isinstance(self.label, str):
            return features, values[self.label]
        return features, {name: values[name] for name in self.labels} or None


def column_of(name: str, value: Any) -> Column:
    """Returns one column.

    Args:
      name: its name, for messages.
      value: `Column`, kind, or dict of a Column's arguments.

    Raises:
      UserValueError: it is something else.
    """
    try:
        if isinstance(value, str):
            return Column(value)
        return value if isinstance(value, Column) else Column(**value)
    except (TypeError, ValueError) as error:
        raise errors.UserValueError(
            f"column {name!r} is {value!r}: expected its kind, one of {[*DTYPES]}, or "
            f"{{'kind': 'id', 'default': -1}} ({error})"
        ) from error


def columns_of(columns: Any, make_column: Callable[[str, Any], Any] = column_of) -> dict[str, Any]:
    """Returns columns by name.

    Args:
      columns: the argument of `make_table`.
      make_column: function of a name and a value.

    Raises:
      UserTypeError: it is not a dict.
      UserValueError: a column is wrong.
    """
    if not isinstance(columns, Mapping):
        columns = getattr(columns, "columns", columns)
    if not isinstance(columns, Mapping):
        raise errors.UserTypeError(
            f"columns is {columns!r}: expected a dict. Set columns={_EXAMPLE}."
        )
    return {name: make_column(name, value) for name, value in columns.items()}


def make_table(
    columns: Any,
    *,
    mode: str,
    label: str | Sequence[str] | None = None,
    weight: str | None = None,
    make_column: Callable[[str, Any], Any] = column_of,
) -> Table:
    """Returns the columns to read in a mode; PREDICT reads neither labels nor weights.

    Args:
      columns: dict of name and `Column`, kind, or dict of a Column's arguments; or a `Schema`,
        which encodes the features.
      mode: one of `ModeKeys`.
      label: name of the label column, names of several, or None.
      weight: name of the column of example weights, or None.
      make_column: function of a name and a value of `columns`.

    Raises:
      UserTypeError: `columns` is not a dict.
      UserValueError: a column is wrong, or no column has the name of a label or of the weight.
    """
    # A schema reads or counts its statistics here, outside of any graph.
    encode = columns.prepared().encode if hasattr(columns, "prepared") else dict
    found = columns_of(columns, make_column)
    table = Table(found, label, weight, encode)
    for argument, names in (("label", table.labels), ("weight", [weight] if weight else [])):
        for name in names:
            if name not in found:
                raise errors.UserValueError(
                    f"{argument} is {name!r}: expected one of the columns {sorted(found)}."
                    f"{did_you_mean(name, found)}"
                )
            column = found[name]
            if isinstance(column, Column) and column.default is ... and not column.is_bag:
                found[name] = dataclasses.replace(column, default=None)  # NaN is not a label.
    if weight and (found[weight].kind != "number" or weight in table.labels):
        raise errors.UserValueError(
            f"weight is {weight!r}, a column of kind {found[weight].kind!r}: expected a column of "
            "kind 'number' that is not a label."
        )
    if mode == ModeKeys.PREDICT:
        found = {k: v for k, v in found.items() if k not in (*table.labels, weight)}
        table = Table(found, encode=encode)
    if not found.keys() - {*table.labels}:
        raise errors.UserValueError(
            f"columns has no features, with label={label!r} and weight={weight!r}: expected at "
            f"least one. Set columns={_EXAMPLE}."
        )
    return dataclasses.replace(table, columns=found)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint at the name that was probably meant; '' without one."""
    near = difflib.get_close_matches(str(name), map(str, known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
