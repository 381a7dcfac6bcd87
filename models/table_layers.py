# SPDX-License-Identifier: Apache-2.0
"""The layers that networks of tables share: encoded features in, numbers and weighted sums out.

A field of a Schema is a number, a category (one row of a table for each example) or a bag (any
number of rows). `checked` comes first: the layers take its result.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

import gin_estimator as ge

from .features import asserted, counts

Inputs = Mapping[str, Any]
_COMBINERS = {
    "sum": tf.math.unsorted_segment_sum,
    "mean": tf.math.unsorted_segment_mean,
    "sqrtn": tf.math.unsorted_segment_sqrt_n,
}
# Standard deviation of the first vectors that are multiplied with each other: otherwise the
# products of many pairs would be larger than everything else.
_FACTOR_STDDEV = 0.05


def checked(features: Any, fields: Sequence[Any]) -> tuple[dict[str, Any], tf.Tensor]:
    """Returns the features of the fields, and whether all ids are rows of their fields.

    An id out of range ends the step, since it could be a row of another field. XLA ignores this
    check, hence the second result.

    Args:
      features: encoded features by name.
      fields: fields of the network's Schema.

    Returns:
      Numbers float32 `[batch]`, categories int64 `[batch]`, bags ragged int64 `[batch, (items)]`;
      and a bool scalar.

    Raises:
      SpecError: a feature is missing, or has another kind.
    """
    found = {field.name: _feature(features, field) for field in fields}
    tables = [field for field in fields if field.kind != "number"]
    if not tables:
        return found, tf.constant(True)
    sizes = [field.size for field in tables]
    flat = [getattr(found[f.name], "values", found[f.name]) for f in tables]
    least = tf.stack([tf.reduce_min(ids) for ids in flat])
    most = tf.stack([tf.reduce_max(ids) for ids in flat])
    fits = tf.reduce_all((least >= 0) & (most < sizes))
    names = ", ".join(field.name for field in tables)
    text = f"features {names}: expected ids of the Schema of the network, from 0 to below"
    message = [text, sizes, "The smallest and the largest are", least, most]
    return asserted(found, fits, message), fits


def _feature(features: Any, field: Any) -> Any:
    """Returns the feature of a field with its dtype."""
    if not isinstance(features, Mapping) or field.name not in features:
        names = sorted(features) if isinstance(features, Mapping) else type(features).__name__
        raise ge.errors.SpecError(
            f"features are {names}: expected {field.name!r} of the network's Schema. Set "
            "columns=schema of the input_fn to the same Schema."
        )
    value, is_bag = features[field.name], field.kind == "bag"
    is_number = field.kind == "number"
    right_dtype = value.dtype.is_floating if is_number else value.dtype.is_integer
    is_ragged = isinstance(value, tf.RaggedTensor)
    if not right_dtype or is_ragged != is_bag or value.shape.rank != 1 + is_bag:
        expected = "floats [batch]" if is_number else "integers [batch]"
        raise ge.errors.SpecError(
            f"feature {field.name!r} is {value.dtype.name} {value.shape}: expected "
            f"{'ragged integers [batch, (items)]' if is_bag else expected}, as the network's "
            "Schema encodes it. Set columns=schema of the input_fn to the same Schema."
        )
    return tf.cast(value, tf.float32 if is_number else tf.int64)


def numbers(inputs: Inputs, fields: Sequence[Any]) -> list[tf.Tensor]:
    """Returns the numbers among the fields as one tensor float32 `[batch, numbers]`, if any."""
    found = [inputs[field.name] for field in fields if field.kind == "number"]
    return [tf.stack(found, axis=1)] if found else []


class Table(keras.layers.Layer):
    """Rows of a table; its ids have been checked, and gin does not configure it."""

    def __init__(self, num_rows: int, size: int, initializer: Any, **options: Any) -> None:
        """Describes the table; `options` are those of a Keras layer."""
        super().__init__(**options, autocast=False)
        self._shape, self._initializer = (num_rows, size), initializer

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        self.rows = ge.EmbeddingTable(
            self, "embeddings", self._shape, initializer=self._initializer
        )

    def call(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns a row for each id, `[*ids.shape, size]`."""
        return self.rows.gather(ids)


class WidePart(keras.layers.Layer):
    """A linear model of the fields with `wide`: x w + b, all 0 at first, in float32.

    x are the numbers, one-hot categories, and counts of the items of bags. All rows are in one
    table, which a step reads in one gather.
    """

    def __init__(self, fields: Sequence[Any], num_outputs: int) -> None:
        """Describes the weights.

        Args:
          fields: fields of a Schema.
          num_outputs: size of the logits.

        Raises:
          SpecError: no field is wide.
        """
        super().__init__(name="wide", dtype="float32", autocast=False)
        self._fields, self._size = [field for field in fields if field.wide], num_outputs
        if not self._fields:
            names = [field.name for field in fields]
            raise ge.errors.SpecError(
                f"none of the features {names} is wide: expected one. Set wide=True."
            )
        self._tables = [field for field in self._fields if field.kind != "number"]
        num_rows = sum(field.size for field in self._tables)
        self.table = Table(num_rows, num_outputs, "zeros", name="rows") if num_rows else None

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights."""
        count = len(self._fields) - len(self._tables)
        if count:
            self.kernel = self.add_weight((count, self._size), "zeros", name="kernel")
        self.bias = self.add_weight((self._size,), "zeros", name="bias")

    def call(self, inputs: Inputs) -> tf.Tensor:
        """Returns logits, float32 `[batch, num_outputs]`."""
        logits = self.bias
        for values in numbers(inputs, self._fields):
            logits += tf.matmul(values, self.kernel)
        if self.table is not None:
            rows, examples = zip(*self._rows(inputs), strict=True)
            weights = self.table(tf.concat(rows, 0))
            ids = inputs[self._tables[0].name]
            batch = ids.nrows() if isinstance(ids, tf.RaggedTensor) else tf.size(ids, tf.int64)
            logits += tf.math.unsorted_segment_sum(weights, tf.concat(examples, 0), batch)
        return logits

    def _rows(self, inputs: Inputs) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yields the rows in the joined table that a field uses, and in which example."""
        first = 0
        for field in self._tables:
            ids = inputs[field.name]
            if field.kind == "bag":
                yield ids.values + first, ids.value_rowids()
            else:
                yield ids + first, tf.range(tf.size(ids, tf.int64))
            first += field.size


class Vectors(keras.layers.Layer):
    """Vectors of categories and bags; fields with `shared_with` have one table.

    The first values of a table are truncated normal with a standard deviation of 1 / sqrt(size),
    as those of tf.estimator's `embedding_column`.
    """

    def __init__(self, fields: Sequence[Any], size: int | None = None) -> None:
        """Describes the tables.

        Args:
          fields: fields of a Schema; those are taken whose `embedding` is a number, and with
            `size` also those that are 'one_hot'.
          size: size of all vectors, which will be multiplied with each other; None for that of
            each field.

        Raises:
          SpecError: no field is a number or has an embedding.
        """
        super().__init__(name="vectors", autocast=False)
        if all(field.kind != "number" and field.embedding is None for field in fields):
            raise ge.errors.SpecError(
                f"none of the features {[field.name for field in fields]} is a number or has an "
                "embedding: expected one. Set embedding=8."
            )
        kinds = (int, str) if size else int
        self.fields = [field for field in fields if isinstance(field.embedding, kinds)]
        sizes = [size or field.embedding for field in self.fields]
        tables: dict[str, Table] = {}
        for field, each in zip(self.fields, sizes, strict=True):
            if field.table not in tables:
                stddev = _FACTOR_STDDEV if size else 1 / math.sqrt(each)
                initializer = keras.initializers.TruncatedNormal(stddev=stddev)
                # TensorFlow refuses most other characters.
                name = re.sub(r"[^A-Za-z0-9_.-]", "_", field.table)
                options = {"name": name, "dtype": self.variable_dtype}
                tables[field.table] = Table(field.size, each, initializer, **options)
        self.tables = tables  # Keras tracks the layers that a dict has now.

    def call(self, inputs: Inputs) -> list[tf.Tensor]:
        """Returns a vector for each field, `[batch, size]`; 0 for an empty bag."""
        vectors = []
        for field in self.fields:
            ids, table = inputs[field.name], self.tables[field.table]
            if field.kind == "bag":
                combine = _COMBINERS[field.combiner]
                found = combine(table(ids.values), ids.value_rowids(), ids.nrows())
            else:
                found = table(ids)
            vectors.append(tf.cast(found, self.compute_dtype))
        return vectors


class DeepInput(keras.layers.Layer):
    """The input of dense layers: vectors, then one-hot fields, then numbers, `[batch, width]`."""

    def __init__(self, fields: Sequence[Any]) -> None:
        """Describes the input of fields of a Schema."""
        super().__init__(name="deep", autocast=False)
        self._fields = fields
        self.vectors = Vectors(fields)
        self._one_hot = [field for field in fields if field.embedding == "one_hot"]

    def call(self, inputs: Inputs) -> tf.Tensor:
        """Returns all values of an example in a row, in the compute dtype."""
        one_hot = [_counts(inputs[field.name], field) for field in self._one_hot]
        rest = [
            tf.cast(each, self.compute_dtype) for each in one_hot + numbers(inputs, self._fields)
        ]
        return tf.concat(self.vectors(inputs) + rest, axis=1)


class FactorInput(keras.layers.Layer):
    """A vector of one size for each field, `[batch, fields, size]`: for products of pairs.

    The vector of a number is the number times a trained vector; numbers come last.
    """

    def __init__(self, fields: Sequence[Any], size: int) -> None:
        """Describes vectors of `size` for fields of a Schema."""
        super().__init__(name="deep", autocast=False)
        self._fields, self._size = fields, size
        self.vectors = Vectors(fields, size)

    def build(self, input_shape: Any = None) -> None:
        """Creates the vectors of numbers."""
        count = sum(field.kind == "number" for field in self._fields)
        if count:
            initializer = keras.initializers.TruncatedNormal(stddev=_FACTOR_STDDEV)
            self.kernel = self.add_weight((count, self._size), initializer, name="kernel")

    def call(self, inputs: Inputs) -> tf.Tensor:
        """Returns the vectors, in the compute dtype."""
        vectors = self.vectors(inputs)
        stacked = [tf.stack(vectors, axis=1)] if vectors else []
        for values in numbers(inputs, self._fields):
            stacked.append(tf.cast(values[:, :, tf.newaxis] * self.kernel, self.compute_dtype))
        return tf.concat(stacked, axis=1)


def _counts(ids: Any, field: Any) -> tf.Tensor:
    """Returns how often each example has each row, float32 `[batch, field.size]`."""
    return counts(ids, field.size) if field.kind == "bag" else tf.one_hot(ids, field.size)
