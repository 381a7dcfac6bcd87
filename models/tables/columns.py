"""Takes encoded features apart: the ids and the numbers of a schema's fields.

A field is what `inputs.Schema` says that a model sees of a feature: its name, its kind
("number", "category" or "bag"), and of the latter two the number of its rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline import SpecError

from ..embedding import Embedding
from ..unknown_ids import under_xla


class Joined:
    """Categories and bags whose rows lie in one table, one field after the other.

    Attributes:
      fields: the fields, in order of their rows.
      num_rows: rows of all fields together.
    """

    def __init__(self, fields: Sequence[Any]) -> None:
        """Gives each field its rows.

        Args:
          fields: categories and bags.
        """
        self.fields = tuple(fields)
        self.num_rows = sum(field.size for field in fields)
        starts, start = {}, 0
        for field in fields:
            starts[field.name] = start
            start += field.size
        self._starts = starts
        self._categories = [f for f in fields if f.kind == "category"]
        self._bags = [f for f in fields if f.kind == "bag"]

    def rows(self, features: Mapping[str, Any]) -> list[Any]:
        """Returns the rows that a batch uses, int64.

        An id that its field has no row for ends the step; where XLA compiles it, which
        drops checks, its row is -1.

        Args:
          features: encoded features by name.

        Returns:
          Of all categories together `[batch, categories]`, where there are any; and of
          each bag a RaggedTensor `[batch, (items)]`.

        Raises:
          SpecError: a feature is missing, or of another kind.
        """
        found = []
        if self._categories:
            ids = [category(features, field) for field in self._categories]
            ids = tf.cast(tf.stack(ids, axis=1), tf.int64)
            found.append(self._placed(ids, self._categories))
        for field in self._bags:
            ids = bag(features, field)
            values = self._placed(tf.cast(ids.values, tf.int64)[:, None], [field])
            found.append(ids.with_values(values[:, 0]))
        return found

    def _placed(self, ids: tf.Tensor, fields: Sequence[Any]) -> tf.Tensor:
        """Returns rows of ids `[n, fields]`, which another field's must not be."""
        sizes = tf.constant([field.size for field in fields], tf.int64)
        starts = tf.constant([self._starts[f.name] for f in fields], tf.int64)
        known = tf.logical_and(ids >= 0, ids < sizes)
        if under_xla():
            return tf.where(known, ids + starts, -1)
        names = ", ".join(field.name for field in fields)
        check = tf.raw_ops.Assert(
            condition=tf.reduce_all(known),
            data=[
                f"the schema of the network has for {names}",
                sizes,
                "rows, and the features hold ids of none of them: give the input_fn "
                "and the network one Schema",
            ],
            summarize=8,
        )
        with tf.control_dependencies([] if check is None else [check]):
            return ids + starts


def multi_hot(features: Mapping[str, Any], joined: Joined, dtype: Any) -> tf.Tensor:
    """Returns how often each row is used by each example, `[batch, num_rows]`.

    Args:
      features: encoded features by name.
      joined: the fields.
      dtype: dtype of the numbers.
    """
    places, size = [], None
    for rows in joined.rows(features):
        if isinstance(rows, tf.RaggedTensor):
            size, examples = rows.nrows(), rows.value_rowids()
            rows = rows.values
        else:
            size = tf.shape(rows, tf.int64)[0]
            examples = tf.repeat(tf.range(size), rows.shape[1])
            rows = tf.reshape(rows, [-1])
        places.append(tf.stack([tf.cast(examples, tf.int64), rows], axis=1))
    places = places[0] if len(places) == 1 else tf.concat(places, axis=0)
    shape = tf.stack([size, joined.num_rows])
    counts = tf.scatter_nd(places, tf.ones(tf.shape(places)[:1], dtype), shape)
    if under_xla():  # It leaves out the rows that are -1.
        bad = tf.reduce_any(places[:, 1] < 0)
        counts = tf.where(bad, tf.constant(float("nan"), dtype), counts)
    return tf.ensure_shape(counts, [None, joined.num_rows])


def category(features: Mapping[str, Any], field: Any) -> tf.Tensor:
    """Returns the ids of a category, integers `[batch]`.

    Args:
      features: encoded features by name.
      field: the field.

    Raises:
      SpecError: the feature is missing, or of another kind.
    """
    return _checked(features, field, lambda t: _is_dense(t) and t.dtype.is_integer)


def bag(features: Mapping[str, Any], field: Any) -> tf.RaggedTensor:
    """Returns the ids of a bag, integers `[batch, (items)]`; see `category`."""
    return _checked(
        features,
        field,
        lambda t: (
            isinstance(t, tf.RaggedTensor)
            and t.dtype.is_integer
            and t.shape.rank == 2
            and t.values.shape.rank == 1
        ),
    )


def numbers(features: Mapping[str, Any], fields: Sequence[Any]) -> tf.Tensor:
    """Returns numbers side by side, float32 `[batch, fields]`.

    Args:
      features: encoded features by name.
      fields: fields of numbers.

    Raises:
      SpecError: a feature is missing, or of another kind.
    """

    def is_number(tensor: Any) -> bool:
        return _is_dense(tensor) and tensor.dtype.is_floating

    found = [_checked(features, field, is_number) for field in fields]
    return tf.cast(tf.stack(found, axis=1), tf.float32)


def table(
    rows: int, dim: int, initializer: Any, *, combiner: str | None, **options: Any
) -> Embedding:
    """Returns an Embedding for ids that the schema has checked.

    Args:
      rows: rows of the table.
      dim: size of a vector.
      initializer: a Keras initializer, or its name.
      combiner: see `Embedding`.
      **options: name, and dtype.
    """
    # All arguments: what gin binds for `Embedding` is not meant for these tables.
    return Embedding(
        rows,
        dim,
        initializer,
        embeddings_regularizer=None,
        embeddings_constraint=None,
        mask_zero=False,
        combiner=combiner,
        oov="error",
        num_oov_buckets=None,
        **options,
    )


def _is_dense(tensor: Any) -> bool:
    return tf.is_tensor(tensor) and getattr(tensor, "shape", None).rank == 1


_WANTED = {
    "number": "floats [batch]",
    "category": "integers [batch]",
    "bag": "a tf.RaggedTensor of integers [batch, (items)]",
}


def _checked(features: Mapping[str, Any], field: Any, is_good: Any) -> Any:
    """Returns the feature of a field."""
    if not isinstance(features, Mapping) or field.name not in features:
        held = sorted(features) if isinstance(features, Mapping) else "no dict"
        raise SpecError(
            f"the network's schema has the feature {field.name!r} and features hold "
            f"{held}: give the input_fn the same Schema, columns=schema."
        )
    found = features[field.name]
    if not is_good(found):
        given = f"{type(found).__name__}{getattr(found, 'shape', '')}"
        kind = getattr(getattr(found, "dtype", None), "name", "?")
        raise SpecError(
            f"feature {field.name!r} is {given} of {kind}, and the network's schema "
            f"encodes it as {_WANTED[field.kind]}: give the input_fn the same Schema, "
            "columns=schema."
        )
    return found
