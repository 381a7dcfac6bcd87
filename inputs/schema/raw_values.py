"""Takes the columns of a batch, checks them, and fills in what is missing."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipeline import RefusedTypeError, RefusedValueError

from ..columns import Column
from .checks import a_kind
from .features import Bag, Category, Feature, Number
from .refusals import Refusals
from .rows import missing


def raw_value(name: str, feature: Feature, batch: Mapping[str, Any]) -> Any:
    """Returns the column of a feature as the type that its kind has.

    Args:
      name: the feature's name.
      feature: the feature; no cross.
      batch: columns by name.

    Raises:
      TypeError, ValueError: the column is absent, or of another type or shape.
    """
    column = feature.column or name
    if column not in batch:
        raise RefusedValueError(
            f"Feature {name!r} is made of column {column!r}, and the batch has "
            f"{sorted(batch)}: read it by columns=schema, and as no label."
        )
    return checked(batch[column], column, feature.raw_column)


def checked(value: Any, name: str, column: Column) -> Any:
    """Returns a column as the type that its kind has.

    Args:
      value: tensor of a batch.
      name: the column's name.
      column: what it is declared as.

    Raises:
      TypeError, ValueError: it is of another type or shape.
    """
    if isinstance(value, tf.SparseTensor):
        value = tf.RaggedTensor.from_sparse(value)
    if isinstance(value, tf.RaggedTensor):
        value = value.with_row_splits_dtype(tf.int64)
    else:
        value = tf.convert_to_tensor(value)
    _check_shape(value, name, column)
    return _of_type(value, name, column)


def filled(name: str, feature: Feature, raw: Any, refusals: Refusals) -> Any:
    """Returns a column with what its feature's default says of missing values.

    Args:
      name: the feature's name.
      feature: the feature; no cross.
      raw: its column. A number that is missing stays so, unless it is refused.
      refusals: gets what is refused.
    """
    if isinstance(feature, Bag):
        return _without_missing(raw)
    if feature.default is None:
        is_number = isinstance(feature, Number)
        is_missing = tf.math.is_nan(raw) if is_number else missing(raw)
        refusals.add(
            name,
            is_missing,
            raw,
            "a missing value, which default=None refuses: mend the data, or leave "
            "default out.",
        )
    elif isinstance(feature, Category) and feature.default is not ...:
        return tf.where(missing(raw), tf.constant(feature.default, raw.dtype), raw)
    return raw


def _without_missing(bag: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the items that are there; the rows stay, and their number is known."""
    is_there = ~missing(bag.values)
    ends = tf.cumsum(tf.cast(is_there, tf.int64))
    splits = tf.gather(tf.concat([[0], ends], 0), bag.row_splits)
    values = tf.boolean_mask(bag.values, is_there)
    return tf.RaggedTensor.from_row_splits(values, splits, validate=False)


def _check_shape(value: Any, name: str, column: Column) -> None:
    is_ragged = isinstance(value, tf.RaggedTensor)
    rank = 2 if column.is_bag else 1
    if is_ragged != column.is_bag or value.shape.rank != rank:
        shape = "ragged, [batch, (items)]" if column.is_bag else "[batch]"
        raise RefusedValueError(
            f"Column {name!r}, {a_kind(column.kind)}, is "
            f"{'ragged, ' if is_ragged else ''}of shape {value.shape}: give it as "
            f"{shape}, by columns=schema."
        )


def _of_type(value: Any, name: str, column: Column) -> Any:
    if value.dtype == column.dtype:
        return value
    # What a number or an id holds is not changed by it.
    is_wider = value.dtype.is_integer and value.dtype != tf.uint64
    if column.kind == "number":
        is_wider = is_wider or value.dtype.is_floating
    if column.dtype == tf.string or not is_wider:
        raise RefusedTypeError(
            f"Column {name!r}, {a_kind(column.kind)}, is of type {value.dtype.name}, "
            f"not {column.dtype.name}: declare it as what it is, or read it by "
            "columns=schema."
        )
    return tf.cast(value, column.dtype)
