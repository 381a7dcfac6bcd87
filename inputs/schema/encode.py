# SPDX-License-Identifier: Apache-2.0
"""Encodes columns of tables: numbers as they enter a model, and rows of tables for the rest.

Only by stateless operations: so the encoding is a part of any dataset and any SavedModel,
without lookup tables, which parameter servers' workers could not reach.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import gin_estimator as ge
from gin_estimator import errors

from ..arrays import with_known_rows
from ..columns import Column

MISSING_ID = tf.int64.min  # int64 has no NaN.
_CROSS_KEY = 0xDECAFCAFFE  # That of tf.feature_column.crossed_column.
_NUM_HASHES = 2**63 - 1
_MAX_DIMENSION = 50


@dataclasses.dataclass(frozen=True)
class Field:
    """One tensor of an encoded batch.

    Attributes:
      name: its name.
      kind: 'number', float32 `[batch]`; 'category', int32 rows `[batch]`; or 'bag', ragged int32
        rows `[batch, (items)]`.
      size: rows of the table; 1 for a number.
      wide: whether it enters the wide part.
      embedding: size of the vector, 'one_hot', or None; None for a number.
      combiner: 'mean', 'sum' or 'sqrtn' of a bag; else None.
      table: name of the table, which features can share.
    """

    name: str
    kind: str
    size: int
    wide: bool
    embedding: int | str | None
    combiner: str | None
    table: str


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows of a table: known ones, unknown ones, and one for missing values."""

    known: int
    unknown: int = 0
    has_missing: bool = False

    @property
    def size(self) -> int:
        return self.known + self.unknown + self.has_missing


class Encoder:
    """Encodes batches of columns.

    Attributes:
      fields: the encoded tensors, in the order of the features.
    """

    def __init__(
        self,
        features: Mapping[str, Any],
        columns: Mapping[str, Column],
        other_columns: Mapping[str, Column],
        statistics: Mapping[str, Any],
    ) -> None:
        """Makes the constants.

        Args:
          features: features of a Schema, by name.
          columns: all columns to read.
          other_columns: columns that are returned as they are.
          statistics: `FeatureStatistics` of features that need them.
        """
        self._features, self._columns, self._others = features, columns, other_columns
        self._statistics = statistics
        self._numbers = {k: f for k, f in features.items() if not f.is_category}
        self._tables = {k: self._rows_of(k) for k, f in features.items() if f.is_category}
        owners = {_table(k, features[k]) for k in self._tables}
        self._finders = {
            k: _Finder(features[k], self._tables[k], statistics.get(k))
            for k in owners
            if features[k].kind not in ("number", "cross")
        }
        self.fields = tuple(field for name in features for field in self._fields_of(name))

    def _rows_of(self, name: str) -> _Rows:
        """Returns the rows of the table of a feature."""
        owner = _table(name, self._features[name])
        feature, statistics = self._features[owner], self._statistics.get(owner)
        sharing = [f for k, f in self._features.items() if _table(k, f) == owner]
        has_missing = any(each.has_missing_row for each in sharing)
        if feature.kind == "number":
            return _Rows(len(_boundaries(feature, statistics)) + 1, 0, has_missing)
        if size := feature.hash_buckets or feature.size:
            return _Rows(size, 0, has_missing)
        known = len(feature.vocabulary or statistics.vocabulary)
        return _Rows(known, feature.unknown, has_missing)

    def _fields_of(self, name: str) -> list[Field]:
        feature = self._features[name]
        if not feature.is_category:
            names = [name, f"{name}_missing"] if feature.indicator else [name]
            return [Field(each, "number", 1, feature.wide, None, None, each) for each in names]
        size, owner = self._tables[name].size, _table(name, feature)
        embedding = self._features[owner].embedding
        if embedding is ...:
            default = max(1, min(_MAX_DIMENSION, round(1.6 * size**0.56)))
            embedding = None if feature.kind == "cross" else default
        is_bag = self._is_bag(name)
        combiner = feature.combiner if is_bag else None
        kind = "bag" if is_bag else "category"
        return [Field(name, kind, size, feature.wide, embedding, combiner, owner)]

    def _is_bag(self, name: str) -> bool:
        return any(self._features[part].is_bag for part in self._features[name].of or [name])

    # No branch depends on a tensor, and autograph takes seconds.
    @tf.autograph.experimental.do_not_convert
    def encode(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the tensors of `fields`, and the tensors of other columns in the batch.

        Args:
          columns: tensors by name, as a reader of `Schema.columns` returns them.

        Raises:
          UserTypeError: a column has another dtype or shape.
          UserValueError: a column is missing.
          tf.errors.InvalidArgumentError: a value is refused; the message names its feature.
        """
        checks: list[tf.Operation | None] = []
        values = {
            name: self._filled(name, columns, checks)
            for name, feature in self._features.items()
            if feature.kind != "cross"
        }
        found = self._encode_numbers(values)
        for name, feature in self._features.items():
            if feature.kind == "number" and feature.is_category:
                boundaries = _boundaries(feature, self._statistics.get(name))
                # Crosses are of buckets, but of words and ids themselves.
                found[name] = values[name] = _bucket(values[name], feature, boundaries)
            elif feature.kind not in ("number", "cross"):
                finder = self._finders[_table(name, feature)]
                found[name] = finder.rows(name, feature, values[name], checks)
        for name, feature in self._features.items():
            if feature.kind == "cross":
                found[name] = self._crossed(feature, values)
        encoded = {each.name: found[each.name] for each in self.fields}
        with tf.control_dependencies([check for check in checks if check is not None]):
            encoded = tf.nest.map_structure(tf.identity, encoded, expand_composites=True)
        return encoded | {name: columns[name] for name in self._others if name in columns}

    def serving_input_receiver_fn(self) -> ge.ServingInputReceiver:
        """Returns a server's requests: columns by name, or serialized tf.Examples.

        Bags are sent as text with their separator. Names that a signature cannot have are
        changed: `dep time` to `dep_time`, `class` to `class_`. The signature `examples` takes
        `tf.train.Example`s.
        """
        read = {f.column or name for name, f in self._features.items() if f.kind != "cross"}
        columns = {name: self._columns[name] for name in self._columns if name in read}
        specs = {
            name: tf.TensorSpec([None], tf.string if column.is_bag else column.dtype)
            for name, column in columns.items()
        }
        receiver = ge.build_raw_serving_input_receiver_fn(specs)()

        def of_columns(sent: Mapping[str, tf.Tensor]) -> dict[str, Any]:
            received = receiver.to_features(sent)
            for name, column in columns.items():
                if column.is_bag:
                    received[name] = column.split(received[name])
            return self.encode(received)

        def of_examples(sent: Mapping[str, tf.Tensor]) -> dict[str, Any]:
            parsers = {name: column.parser() for name, column in columns.items()}
            return self.encode(tf.io.parse_example(sent["examples"], parsers))

        examples = {"examples": tf.TensorSpec([None], tf.string, "examples")}
        return ge.ServingInputReceiver(
            receiver.receiver_specs,
            of_columns,
            alternatives={"examples": ge.ServingInputReceiver(examples, of_examples)},
        )

    def _filled(self, name: str, columns: Mapping[str, Any], checks: list[Any]) -> Any:
        """Returns the column of a feature, where missing values have its default."""
        feature = self._features[name]
        value = _raw(name, feature, columns)
        if isinstance(value, tf.RaggedTensor):
            return with_known_rows(tf.ragged.boolean_mask(value, ~_missing(value)), value.shape[0])
        if feature.default is None:
            expected = "a value, since default is None. Correct the data, or set default"
            checks.append(_refuse(name, _missing(value), value, expected))
        elif feature.kind in ("word", "id") and feature.default is not ...:
            return tf.where(_missing(value), tf.constant(feature.default, value.dtype), value)
        return value

    def _encode_numbers(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns numbers by name, float32 `[batch]`, computed together in float64."""
        if not self._numbers:
            return {}
        columns = [_number_constants(f, self._statistics.get(k)) for k, f in self._numbers.items()]
        fill, offset, divisor, low, high = np.array(columns, np.float64).T[..., None]
        raw = tf.cast(tf.stack([values[name] for name in self._numbers]), tf.float64)
        is_log = np.array([[feature.log] for feature in self._numbers.values()])
        found = raw
        if is_log.any():
            found = tf.where(is_log, tf.sign(raw) * tf.math.log1p(tf.abs(raw)), raw)
        found = (tf.where(tf.math.is_nan(raw), fill, found) - offset) / divisor
        found = tf.cast(tf.clip_by_value(found, low, high), tf.float32)
        encoded = dict(zip(self._numbers, tf.unstack(found, len(columns)), strict=True))
        for name, feature in self._numbers.items():
            if feature.indicator:
                missing = tf.math.is_nan(values[name])
                encoded[f"{name}_missing"] = tf.cast(missing, tf.float32)
        return encoded

    def _crossed(self, feature: Any, values: Mapping[str, Any]) -> Any:
        """Returns the rows of combinations, in the order of tf.feature_column."""
        # Sparse parts, which are bags and buckets, come first there.
        parts = sorted(feature.of, key=lambda part: self._features[part].kind in ("word", "id"))
        inputs = [_crossable(values[part]) for part in parts]
        rows = tf.cast(tf.ragged.cross_hashed(inputs, feature.hash_buckets, _CROSS_KEY), tf.int32)
        size = inputs[0].shape[0]
        if any(self._is_bag(part) for part in parts):
            return with_known_rows(rows, size)
        return tf.ensure_shape(rows.values, [size])


def _refuse(name: str, bad: tf.Tensor, values: tf.Tensor, expected: str) -> tf.Operation | None:
    """Returns an operation that ends the step if one of the values `[n]` is bad."""
    # tf.debugging.Assert would add a branch.
    return tf.raw_ops.Assert(
        condition=~tf.reduce_any(bad),
        data=[f"feature {name}: expected {expected}. It is", tf.boolean_mask(values, bad)],
    )


class _Finder:
    """Finds the rows of words or ids in one table."""

    def __init__(self, feature: Any, rows: _Rows, statistics: Any) -> None:
        self._rows, self._feature = rows, feature
        if feature.hash_buckets is None and feature.size is None:
            items = feature.vocabulary or statistics.vocabulary
            if not feature.holds_ids:
                items = [item.encode("utf-8", "surrogateescape") for item in items]
            items = np.array(items, np.int64 if feature.holds_ids else object)
            # As constants in the graph they would be copied for each iterator.
            with tf.init_scope(), tf.device("/CPU:0"):
                numbers = _numbers_of(tf.constant(items)).numpy()
                order = np.argsort(numbers, kind="stable")
                self._numbers = tf.constant(numbers[order][None])
                self._items = tf.constant(items[order])
                self._order = tf.constant(order, tf.int32)

    def rows(self, name: str, feature: Any, values: Any, checks: list[Any]) -> Any:
        """Returns int32 rows; refuses items without one."""
        is_ragged = isinstance(values, tf.RaggedTensor)
        items = values.flat_values if is_ragged else values
        found = self._known(items)
        if self._feature.size is not None and feature.default not in (..., None):
            # As the default_value of categorical_column_with_identity.
            found = tf.where(found < 0, feature.default, found)
        if self._rows.unknown:
            found = tf.where(found < 0, self._rows.known + _hash(items, self._rows.unknown), found)
        if self._rows.has_missing:
            found = tf.where(_missing(items), self._rows.size - 1, found)
        if self._feature.hash_buckets is None and not self._rows.unknown:
            expected = f"one of the {self._rows.known} known. Set unknown=1, or correct the data"
            if self._feature.size is not None:
                expected = f"an id from 0 to {self._rows.known - 1}. Set size, or default"
            checks.append(_refuse(name, found < 0, items, expected))
        return values.with_values(found) if is_ragged else found

    def _known(self, items: tf.Tensor) -> tf.Tensor:
        """Returns the rows of known items, -1 of others."""
        if self._feature.hash_buckets is not None:
            return _hash(items, self._feature.hash_buckets)
        if self._feature.size is not None:
            is_known = (items >= 0) & (items < self._rows.known)
            return tf.cast(tf.where(is_known, items, -1), tf.int32)
        numbers = _numbers_of(items)
        # tf.searchsorted adds a dozen operations.
        places = tf.raw_ops.LowerBound(sorted_inputs=self._numbers, values=numbers[None])[0]
        places = tf.minimum(places, self._rows.known - 1)
        # Another word with the same hash is not taken for it.
        is_known = tf.gather(self._items, places) == items
        return tf.where(is_known, tf.gather(self._order, places), -1)


def _numbers_of(items: tf.Tensor) -> tf.Tensor:
    """Returns ids as they are, and a hash of 63 bits for each word.

    If two known words have the same hash, the second is treated as an unknown one: this happens
    in one of a million vocabularies of four million words.
    """
    if items.dtype != tf.string:
        return items
    return tf.strings.to_hash_bucket_strong(items, _NUM_HASHES, [0, 0])


def _hash(items: tf.Tensor, buckets: int) -> tf.Tensor:
    if items.dtype != tf.string:
        items = tf.strings.as_string(items)
    return tf.cast(tf.strings.to_hash_bucket_fast(items, buckets), tf.int32)


def _missing(values: Any) -> Any:
    if values.dtype == tf.string:
        return values == ""
    return tf.math.is_nan(values) if values.dtype.is_floating else values == MISSING_ID


def _table(name: str, feature: Any) -> str:
    return feature.shared_with or name


def _boundaries(feature: Any, statistics: Any) -> tuple[float, ...]:
    return statistics.boundaries if isinstance(feature.buckets, int) else feature.buckets


def _bucket(raw: tf.Tensor, feature: Any, boundaries: Sequence[float]) -> tf.Tensor:
    missing = tf.math.is_nan(raw)
    fill = 0.0 if feature.default in (..., None) else float(feature.default)
    values = tf.where(missing, fill, raw)
    rows = tf.raw_ops.Bucketize(input=values, boundaries=list(boundaries))
    return tf.where(missing, len(boundaries) + 1, rows) if feature.default is ... else rows


def _number_constants(feature: Any, statistics: Any) -> tuple[float, ...]:
    """Returns the value of a missing number after log, offset, divisor, and bounds."""
    fill = statistics.mean if feature.default is ... else feature.default
    fill = math.nan if fill is None else float(fill)
    if feature.log and feature.default not in (..., None):
        fill = math.copysign(math.log1p(abs(fill)), fill)
    offset, divisor = 0.0, 1.0
    if feature.scale == "standard":
        offset, divisor = statistics.mean, statistics.std or 1.0
    elif feature.scale == "min_max":
        offset, divisor = statistics.minimum, (statistics.maximum - statistics.minimum) or 1.0
    return fill, offset, divisor, *(feature.clip or (-math.inf, math.inf))


def _crossable(values: Any) -> Any:
    if values.dtype != tf.string:
        values = tf.cast(values, tf.int64)
    return values if isinstance(values, tf.RaggedTensor) else values[:, None]


def _raw(name: str, feature: Any, columns: Mapping[str, Any]) -> Any:
    """Returns the column of a feature with the dtype of its kind."""
    column = feature.column or name
    if column not in columns:
        raise errors.UserValueError(
            f"feature {name!r} needs the column {column!r}: expected it among {sorted(columns)}. "
            "Set columns to the schema, and label to another column."
        )
    value, dtype = columns[column], feature.raw.dtype
    if isinstance(value, tf.SparseTensor):
        value = tf.RaggedTensor.from_sparse(value)
    if isinstance(value, tf.RaggedTensor):
        value = value.with_row_splits_dtype(tf.int64)
    else:
        value = tf.convert_to_tensor(value)
    is_bag = isinstance(value, tf.RaggedTensor)
    fits = is_bag == feature.raw.is_bag and value.shape.rank == 1 + is_bag
    is_real = value.dtype.is_integer or (dtype == tf.float32 and value.dtype.is_floating)
    if not fits or (value.dtype != dtype and (dtype == tf.string or not is_real)):
        shape = "ragged [batch, (items)]" if feature.raw.is_bag else "[batch]"
        raise errors.UserTypeError(
            f"column {column!r} is {value.dtype.name} {value.shape}: expected {dtype.name} "
            f"{shape}, as readers of the schema return it."
        )
    return tf.cast(value, dtype) if value.dtype != dtype else value
