"""Takes ids of any kind apart, and puts their rows together: vectors, or one a bag.

A bag is the last dimension of its ids: `[batch, words]` is a bag for each example. It
may be padded (a tensor), of any length (ragged), or the values that are there (sparse).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline import SpecError

COMBINERS = ("sum", "mean", "sqrtn")

# The number from which on a dtype knows not every whole number.
_EXACT = {tf.bfloat16: 2**8, tf.float16: 2**11, tf.float32: 2**24, tf.float64: 2**53}

# Takes a value for each id, [n, ...], and returns the sums of the bags.
_Total = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Bags:
    """The ids of one input, and the way back from their rows.

    Attributes:
      ids: int64 `[n]`.
      weights: floats `[n]`; None where all are 1.
      total: adds up a value for each id, `[n, ...]`, to one for each bag; None where
        each id is for itself.
      shaped: gives the input's shape to rows `[n, dim]`, or to what `total` returns.
    """

    ids: tf.Tensor
    weights: tf.Tensor | None
    total: _Total | None
    shaped: Callable[[tf.Tensor], Any]

    def joined(
        self, rows: tf.Tensor, combiner: str | None, kept: tf.Tensor | None
    ) -> Any:
        """Returns what the rows of the ids come to.

        Args:
          rows: `[n, dim]`.
          combiner: one of `COMBINERS`; it is not looked at where each id is for itself.
          kept: bool `[n]`, which ids count; None for all.
        """
        weights = self.weights
        if kept is not None:
            # Not by a product: what pads weights may be NaN.
            weights = tf.ones_like(rows[:, 0]) if weights is None else weights
            weights = tf.where(kept, weights, tf.zeros_like(weights))
        if self.total is None:
            return self.shaped(rows if weights is None else rows * weights[:, None])
        return self.shaped(_combined(rows, weights, combiner, self.total))


def bags_of(
    ids: Any,
    weights: Any,
    *,
    combiner: str | None,
    dtype: Any,
    num_ids: int | None,
    table: str,
) -> Bags:
    """Takes the ids of one input apart.

    Args:
      ids: integers: a tensor, a RaggedTensor or a SparseTensor. Floats are taken where
        they know all ids, for `keras.Sequential` casts what its first layer is given.
      weights: a number for each id, of the same kind and shape; None for 1 each.
      combiner: one of `COMBINERS`; None where each id is for itself.
      dtype: dtype of the rows, and so of the weights.
      num_ids: number of ids that have to be told apart; None for all integers.
      table: how the table is called, for messages.

    Raises:
      SpecError: ids are no integers or have no known rank, they are sparse and there is
        no combiner, or the weights do not fit them.
    """
    ids = _integers(ids, num_ids, table)
    if weights is not None:
        _check_weights(ids, weights, combiner, table)
    is_sparse, rank = isinstance(ids, tf.SparseTensor), ids.shape.rank
    if rank is None or (combiner and rank < 1 + is_sparse):
        raise SpecError(
            f"{table} is given ids of shape {ids.shape}: give them the dimensions of "
            "the batch and of its bags, tf.reshape(ids, [-1, 1])."
        )
    if is_sparse:
        if combiner is None:
            raise SpecError(
                f"{table} is given sparse ids, and combiner is None: write "
                "combiner='sum' for a vector a bag, or give it "
                "tf.RaggedTensor.from_sparse(ids)."
            )
        found = _sparse(ids, weights)
    elif isinstance(ids, tf.RaggedTensor):
        found = _ragged(ids, weights, combiner)
    else:
        if combiner is not None and ids.shape.rank == 1:
            # `[batch]` are bags of one id each.
            ids = ids[:, None]
            weights = None if weights is None else weights[:, None]
        found = _dense(ids, weights, bagged=combiner is not None)
    if found.weights is not None:
        numbers = tf.cast(found.weights, dtype)
        found = dataclasses.replace(found, weights=numbers)
    return found


def _dense(ids: tf.Tensor, weights: tf.Tensor | None, bagged: bool) -> Bags:
    shape = tf.shape(ids)

    def as_ids(values: tf.Tensor) -> tf.Tensor:
        whole = tf.reshape(values, tf.concat([shape, tf.shape(values)[1:]], 0))
        return tf.ensure_shape(whole, [*ids.shape, *values.shape[1:]])

    def total(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(as_ids(values), axis=ids.shape.rank - 1)

    flat = None if weights is None else tf.reshape(weights, [-1])
    if bagged:
        return Bags(tf.reshape(ids, [-1]), flat, total, tf.identity)
    return Bags(tf.reshape(ids, [-1]), flat, None, as_ids)


def _ragged(
    ids: tf.RaggedTensor, weights: tf.RaggedTensor | None, combiner: str | None
) -> Bags:
    """The innermost dimension is the bag, be it ragged or not."""
    if weights is not None:
        same = tf.debugging.assert_equal(
            ids.row_splits, weights.row_splits, "weights need the ids' row_splits"
        )
        with tf.control_dependencies([same] if same is not None else []):
            ids = ids.with_values(tf.identity(ids.values))
    values, below = ids.values, None if weights is None else weights.values
    if isinstance(values, tf.RaggedTensor):
        inner = _ragged(values, below, combiner)
    elif combiner is None or values.shape.rank > 1:
        inner = _dense(values, below, bagged=combiner is not None)
    else:
        rows, count = ids.value_rowids(), ids.nrows()

        def total(numbers: tf.Tensor) -> tf.Tensor:
            return tf.math.unsorted_segment_sum(numbers, rows, count)

        def shaped(vectors: tf.Tensor) -> tf.Tensor:
            return tf.ensure_shape(vectors, [ids.shape[0], vectors.shape[-1]])

        return Bags(values, below, total, shaped)
    return dataclasses.replace(
        inner, shaped=lambda vectors: ids.with_values(inner.shaped(vectors))
    )


def _sparse(ids: tf.SparseTensor, weights: tf.SparseTensor | None) -> Bags:
    values = ids.values
    if weights is not None:
        same = tf.debugging.assert_equal(
            ids.indices, weights.indices, "weights need the ids' indices"
        )
        with tf.control_dependencies([same] if same is not None else []):
            values = tf.identity(values)
    outer = ids.dense_shape[:-1]
    # The number of each value's bag, where the bags are numbered through.
    strides = tf.math.cumprod(outer, exclusive=True, reverse=True)
    bags = tf.reduce_sum(ids.indices[:, :-1] * strides, axis=1)
    count = tf.reduce_prod(outer)

    def total(numbers: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(numbers, bags, count)

    def shaped(vectors: tf.Tensor) -> tf.Tensor:
        size = vectors.shape[-1]
        vectors = tf.reshape(vectors, tf.concat([outer, [size]], 0))
        return tf.ensure_shape(vectors, [*ids.shape[:-1], size])

    return Bags(values, None if weights is None else weights.values, total, shaped)


def _combined(
    rows: tf.Tensor, weights: tf.Tensor | None, combiner: str | None, total: _Total
) -> tf.Tensor:
    summed = total(rows if weights is None else rows * weights[:, None])
    if combiner == "sum":
        return summed
    if weights is None:
        weights = tf.ones(tf.shape(rows)[:1], rows.dtype)
    if combiner == "mean":
        return tf.math.divide_no_nan(summed, total(weights)[..., None])
    squares = total(tf.square(weights))[..., None]
    some = squares > 0
    # The root of 0 has no gradient: that of an empty bag would be NaN.
    root = tf.sqrt(tf.where(some, squares, tf.ones_like(squares)))
    return tf.where(some, summed / root, tf.zeros_like(summed))


def _integers(ids: Any, num_ids: int | None, table: str) -> Any:
    """Returns ids as int64, of their kind; refuses what may have become others."""
    dtype = getattr(ids, "dtype", None)
    if dtype == tf.string:
        raise SpecError(
            f"{table} is given strings: turn words into ids in input_fn, by a lookup "
            "table or tf.strings.to_hash_bucket_fast(words, num_ids)."
        )
    if dtype is not None and dtype.is_integer and dtype != tf.uint64:
        return tf.cast(ids, tf.int64)
    if num_ids is None or num_ids > _EXACT.get(dtype, 0):
        given = getattr(dtype, "name", type(ids).__name__)
        raise SpecError(
            f"{table} is given {given} for ids, which does not tell all of them "
            "apart: write tf.cast(ids, tf.int64). keras.Sequential casts what its "
            "first layer is given: begin it with keras.Input([...], dtype='int64')."
        )
    values = getattr(ids, "flat_values", getattr(ids, "values", ids))
    whole = tf.debugging.assert_equal(
        values, tf.floor(values), f"{table} is given ids that are no whole numbers"
    )
    with tf.control_dependencies([whole] if whole is not None else []):
        return tf.cast(ids, tf.int64)


def _check_weights(ids: Any, weights: Any, combiner: str | None, table: str) -> None:
    if combiner is None:
        raise SpecError(
            f"{table} is given weights, and combiner is None: write combiner='sum', "
            f"or another of {list(COMBINERS)}."
        )
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    kind, other = (
        next((k for k in kinds if isinstance(each, k)), tf.Tensor)
        for each in (ids, weights)
    )
    if kind is not other or not ids.shape.is_compatible_with(weights.shape):
        raise SpecError(
            f"{table} is given ids {kind.__name__}{ids.shape} with weights "
            f"{other.__name__}{weights.shape}: give weights of the ids' kind and "
            "shape, a number for each id."
        )
