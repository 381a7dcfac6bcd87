"""Encodes the columns of a table into what a model sees: numbers and rows of tables.

By pure operations, without tables or other resources: so the encoding is part of a
dataset's graph on every strategy, its position can be saved, and a SavedModel has it.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipeline import RefusedTypeError, RefusedValueError, ServingInputReceiver

from ..batching import of_known_rows
from ..columns import Column, split_bag
from .features import Bag, Category, Cross, Feature, Number
from .fields import Field, boundaries_of, fields_of, indicator_name, is_bag, rows_of
from .numbers import bucket_of, scaled
from .rows import missing, refused
from .statistics import FeatureStatistics

# That of tf.feature_column's crossed_column.
_CROSS_KEY = 0xDECAFCAFFE


class Encoder:
    """Encodes batches by a schema and the statistics that it needs.

    Attributes:
      schema: the `Schema`.
      statistics: what was counted of each feature that needs it, by name.
      fields: what a model sees, in the order of the declaration.
    """

    def __init__(
        self, schema: Any, statistics: Mapping[str, FeatureStatistics]
    ) -> None:
        """Makes the constants of the encoding.

        Args:
          schema: the `Schema`.
          statistics: what was counted, by name of the feature.

        Raises:
          ValueError: statistics lack something; names the feature.
        """
        for name, needs in schema.needs.items():
            counted = statistics.get(name, FeatureStatistics())
            lacks = sorted(need for need in needs if getattr(counted, need) is None)
            if lacks:
                raise RefusedValueError(
                    f"Feature {name!r} needs {', '.join(lacks)} of the training data, "
                    "and the statistics have none: count them anew with this schema."
                )
        self.schema = schema
        self.statistics = dict(statistics)
        self._features: dict[str, Feature] = schema.features
        self._rows = rows_of(self._features, statistics)
        self.fields: tuple[Field, ...] = fields_of(self._features, self._rows)

    def encode(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Encodes a batch.

        Args:
          features: the columns by name, as a reader of `schema.columns` gives them:
            float32, strings and int64 `[batch]`, ragged strings and int64
            `[batch, (items)]`. Of `schema.other_columns` any may be absent.

        Returns:
          The tensors of `fields` by name, and `schema.other_columns` as they came.

        Raises:
          TypeError, ValueError: a column is absent, or of another type or shape.
        """
        raw = {name: self._column(name, features) for name in self._features}
        items = {
            name: self._items(name, feature, raw[name])
            for name, feature in self._features.items()
            if feature.is_category and not isinstance(feature, Cross)
        }
        found: dict[str, Any] = {}
        for name, feature in self._features.items():
            if isinstance(feature, Cross):
                found[name] = self._crossed(feature, items)
            elif isinstance(feature, Number) and feature.is_category:
                found[name] = items[name]
            elif isinstance(feature, Number):
                found |= self._numbers(name, feature, raw[name])
            else:
                found[name] = self._row_of_items(name, items[name])
        others = [name for name in self.schema.other_columns if name in features]
        return found | {name: features[name] for name in others}

    def serving_input_receiver_fn(self) -> ServingInputReceiver:
        """Describes a server that is sent the columns as a file has them, by name.

        A bag is sent as text with its separator between the items.
        """
        columns = {
            name: self.schema.columns[name]
            for name in dict.fromkeys(self._column_names())
        }

        def to_features(received: Mapping[str, tf.Tensor]) -> dict[str, Any]:
            raw = {
                name: split_bag(received[name], column) if column.is_bag else value
                for (name, column), value in zip(
                    columns.items(), map(received.get, columns), strict=True
                )
            }
            return self.encode(raw)

        specs = {name: _sent_spec(name, column) for name, column in columns.items()}
        return ServingInputReceiver(specs, to_features)

    def _column_names(self) -> list[str]:
        """Returns the name of each feature's column, but of crosses."""
        return [
            feature.column or name
            for name, feature in self._features.items()
            if not isinstance(feature, Cross)
        ]

    def _column(self, name: str, features: Mapping[str, Any]) -> Any:
        """Returns the column of a feature, checked; None of a cross."""
        feature = self._features[name]
        if feature.raw_column is None:
            return None
        column = feature.column or name
        if column not in features:
            raise RefusedValueError(
                f"Feature {name!r} is made of column {column!r}, and the batch has "
                f"{sorted(features)}: read it, columns=schema.columns, and name no "
                "feature's column as label."
            )
        return checked(features[column], column, feature.raw_column)

    def _items(self, name: str, feature: Feature, raw: Any) -> Any:
        """Returns words, ids or buckets, with the default of what is missing."""
        if isinstance(feature, Bag):
            keep = raw.with_values(~missing(raw.values))
            items = tf.ragged.boolean_mask(raw, keep)
            return of_known_rows(items, raw.shape[0])
        if isinstance(feature, Number):
            boundaries = boundaries_of(feature, self.statistics.get(name))
            return bucket_of(raw, feature, boundaries)
        return _filled(name, feature, raw)

    def _numbers(
        self, name: str, feature: Number, raw: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Returns a number, and its indicator."""
        statistics = self.statistics.get(name, FeatureStatistics())
        found = {name: scaled(raw, feature, statistics)}
        if feature.indicator:
            is_missing = tf.math.is_nan(raw)
            found[indicator_name(name)] = tf.cast(is_missing, tf.float32)
        return found

    def _row_of_items(self, name: str, items: Any) -> Any:
        """Returns the rows of words or ids, ragged of bags."""
        where = f"feature {name}"
        if isinstance(items, tf.RaggedTensor):
            return items.with_values(self._rows[name].of(items.values, where))
        return self._rows[name].of(items, where)

    def _crossed(self, feature: Cross, items: Mapping[str, Any]) -> Any:
        """Returns the rows of combinations."""
        parts = [items[part] for part in feature.of]
        inputs = [
            part if isinstance(part, tf.RaggedTensor) else part[:, None]
            for part in map(_as_words_or_int64, parts)
        ]
        crossed = tf.ragged.cross_hashed(inputs, feature.hash_buckets, _CROSS_KEY)
        rows = tf.cast(crossed, tf.int32)
        size = parts[0].shape[0]
        if is_bag(feature, self._features):
            return of_known_rows(rows, size)
        return tf.ensure_shape(rows.values, [size])


def _as_words_or_int64(items: Any) -> Any:
    return items if items.dtype == tf.string else tf.cast(items, tf.int64)


def _filled(name: str, feature: Category, raw: tf.Tensor) -> tf.Tensor:
    """Returns words or ids, with the default in place of missing ones."""
    if feature.default is ...:
        return raw
    if feature.default is not None:
        return tf.where(missing(raw), feature.default, raw)
    what = "and missing values are refused by default=None: mend the data"
    return refused(raw, missing(raw), raw, f"feature {name} is", what)


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
    is_ragged = isinstance(value, tf.RaggedTensor)
    if not is_ragged:
        value = tf.convert_to_tensor(value)
    rank = 2 if column.is_bag else 1
    if is_ragged != column.is_bag or value.shape.rank != rank:
        shape = "ragged, [batch, (items)]" if column.is_bag else "[batch]"
        raise RefusedValueError(
            f"Column {name!r}, a {column.kind}, is {'ragged, ' if is_ragged else ''}of "
            f"shape {value.shape}: read it {shape}, by columns=schema.columns."
        )
    fits = value.dtype == column.dtype
    if not fits and column.dtype != tf.string:
        is_integer = value.dtype.is_integer
        if is_integer or (column.kind == "number" and value.dtype.is_floating):
            return tf.cast(value, column.dtype)
    if not fits:
        raise RefusedTypeError(
            f"Column {name!r}, a {column.kind}, is of type {value.dtype.name}, not "
            f"{column.dtype.name}: declare it as what it is, or read it by "
            "columns=schema.columns."
        )
    return value


def _sent_spec(name: str, column: Column) -> tf.TensorSpec:
    dtype = tf.string if column.is_bag else column.dtype
    return tf.TensorSpec([None], dtype, name)
