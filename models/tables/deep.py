"""What the deep part of a model is given: vectors of categories, and numbers."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline import RefusedValueError, SpecError

from .columns import Joined, bag, category, multi_hot, numbers, table

# Standard deviation of what vectors that are multiplied with each other begin with.
_OF_FACTORS = 0.05


class Vectors(keras.layers.Layer):
    """Looks up the vector of each field that is embedded, `[batch, dim]`.

    The vector of a bag is the sum, the mean, or the sum over the root of the number, of
    its items' vectors; 0 where it is empty. Fields that share a table are one gather.
    Tables begin as tf.estimator's `embedding_column`: truncated normal, with a standard
    deviation of 1 / sqrt(dim). Vectors of one size, which are multiplied with each
    other, begin with one of 0.05: else the products of many pairs would drown the rest.

    Attributes:
      fields: the fields that are embedded, in the schema's order.
      tables: an `Embedding` for each table that they have.
    """

    def __init__(
        self, fields: Sequence[Any], dim: int | None = None, name: str = "vectors"
    ) -> None:
        """Describes the tables, which `build()` makes.

        Args:
          fields: fields of the schema. Those are taken whose `embedding` is a number;
            with `dim` all but those where it is None.
          dim: size of all vectors; None for what each field says.
          name: name of the layer.

        Raises:
          SpecError: fields of one table want vectors of different sizes.
        """
        super().__init__(name=name, autocast=False)
        kinds = (int, str) if dim else int
        self.fields = tuple(f for f in fields if isinstance(f.embedding, kinds))
        self._dims = {f.name: dim or f.embedding for f in self.fields}
        self._stddev = _OF_FACTORS if dim else None
        self._sharing: dict[str, list[Any]] = {}
        for field in self.fields:
            self._sharing.setdefault(field.table, []).append(field)
        self._names: list[str] = []
        self.tables = [self._table(*each) for each in self._sharing.items()]

    def _table(self, name: str, fields: Sequence[Any]) -> keras.layers.Layer:
        dims = {self._dims[field.name] for field in fields}
        if len(dims) > 1:
            raise SpecError(
                f"features {[field.name for field in fields]} share a table, and have "
                f"embedding={sorted(dims)}: write one number for all of them."
            )
        (dim,) = dims
        return table(
            max(field.size for field in fields),
            dim,
            _around_0(self._stddev or 1 / math.sqrt(dim)),
            combiner="sum" if any(f.kind == "bag" for f in fields) else None,
            name=self._named(name),
        )

    def _named(self, table: str) -> str:
        """Returns a name that TensorFlow takes, and that no other table has."""
        plain = name = re.sub(r"[^A-Za-z0-9_.-]", "_", table)
        number = 0
        while name in self._names:
            number += 1
            name = f"{plain}_{number}"
        self._names.append(name)
        return name

    @property
    def width(self) -> int:
        """Numbers in all vectors together."""
        return sum(self._dims.values())

    def build(self, input_shape: Any = None) -> None:
        """Makes the tables.

        Args:
          input_shape: not looked at: the fields say it all.
        """
        for each in self.tables:
            each.build()

    def call(self, features: Mapping[str, Any]) -> list[tf.Tensor]:
        """Returns a vector for each field, `[batch, dim]`, in order of the fields.

        Args:
          features: encoded features by name.
        """
        found = {}
        for lookup, fields in zip(self.tables, self._sharing.values(), strict=True):
            ids = [
                (bag if field.kind == "bag" else category)(features, field)
                for field in fields
            ]
            for field, of_field, vectors in zip(fields, ids, lookup(ids), strict=True):
                found[field.name] = _combined(field, of_field, vectors)
        return [found[field.name] for field in self.fields]


def _combined(field: Any, ids: Any, vectors: tf.Tensor) -> tf.Tensor:
    """Divides the sum of a bag's vectors as its combiner says."""
    if field.kind != "bag" or field.combiner == "sum":
        return vectors
    count = tf.cast(ids.row_lengths(), vectors.dtype)
    if field.combiner == "sqrtn":
        count = tf.sqrt(count)
    return tf.math.divide_no_nan(vectors, count[:, None])


class FieldVectors(keras.layers.Layer):
    """Stacks a vector of each field: those of categories and bags, then of numbers.

    That of a number is the number times a vector of its own.

    Attributes:
      count: number of vectors of an example.
    """

    def __init__(self, fields: Sequence[Any], dim: int, name: str = "deep") -> None:
        """Describes the vectors.

        Args:
          fields: fields of the schema.
          dim: size of all vectors.
          name: name of the layer.

        Raises:
          SpecError: no field has a vector.
        """
        super().__init__(name=name, autocast=False)
        self.vectors = Vectors(fields, dim)
        self._numbers = [field for field in fields if field.kind == "number"]
        self._dim = dim
        self.count = len(self.vectors.fields) + len(self._numbers)
        if not self.count:
            raise _nothing_deep(fields)

    def build(self, input_shape: Any = None) -> None:
        """Makes the tables, and the vectors of numbers.

        Args:
          input_shape: not looked at: the fields say it all.
        """
        self.vectors.build()
        if self._numbers:
            self.kernel = self.add_weight(
                name="kernel",
                shape=(len(self._numbers), self._dim),
                initializer=_around_0(_OF_FACTORS),
            )

    def call(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Returns all vectors, `[batch, count, dim]`, of the layer's compute dtype.

        Args:
          features: encoded features by name.
        """
        parts = []
        if self.vectors.fields:
            parts.append(tf.stack(self.vectors(features), axis=1))
        if self._numbers:
            given = numbers(features, self._numbers)[:, :, None] * self.kernel
            parts.append(tf.cast(given, self.compute_dtype))
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)


class DeepInput(keras.layers.Layer):
    """Puts side by side all that enters the deep part, `[batch, width]`.

    These are the vectors of fields with an embedding, in the schema's order; then those
    that are 'one_hot', a bag as the counts of its items; then the numbers.
    """

    def __init__(self, fields: Sequence[Any], name: str = "deep") -> None:
        """Describes what enters.

        Args:
          fields: fields of the schema.
          name: name of the layer.

        Raises:
          SpecError: nothing enters.
        """
        super().__init__(name=name, autocast=False)
        self.vectors = Vectors(fields)
        self._one_hot = Joined([f for f in fields if f.embedding == "one_hot"])
        self._numbers = [field for field in fields if field.kind == "number"]
        if not self.width:
            raise _nothing_deep(fields)

    @property
    def width(self) -> int:
        """Numbers of one example."""
        return self.vectors.width + self._one_hot.num_rows + len(self._numbers)

    def build(self, input_shape: Any = None) -> None:
        """Makes the tables.

        Args:
          input_shape: not looked at: the fields say it all.
        """
        self.vectors.build()

    def call(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Returns what enters, `[batch, width]`, of the layer's compute dtype.

        Args:
          features: encoded features by name.
        """
        parts = self.vectors(features) if self.vectors.fields else []
        if self._one_hot.fields:
            parts = [*parts, multi_hot(features, self._one_hot, self.compute_dtype)]
        if self._numbers:
            given = numbers(features, self._numbers)
            parts = [*parts, tf.cast(given, self.compute_dtype)]
        return parts[0] if len(parts) == 1 else tf.concat(parts, axis=1)


def _nothing_deep(fields: Sequence[Any]) -> SpecError:
    return SpecError(
        f"no feature of {[field.name for field in fields]} enters the deep part: write "
        "embedding=8 for one of them, or declare a number."
    )


def _around_0(stddev: float) -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=stddev)


def check_dim(network: str, dim: Any) -> None:
    """Raises if the size of all vectors is no positive number.

    Args:
      network: name of the network's factory.
      dim: the size.
    """
    if not isinstance(dim, int) or dim < 1:
        raise RefusedValueError(
            f"{network}.embedding_dim is {dim!r}: write a positive number, "
            f"{network}.embedding_dim = 16."
        )
