"""One replica's batch: what it holds, how many rows, one of several."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf


def pair_of(element: Any) -> tuple[Any, Any]:
    """Returns `(features, labels)` of an element; labels are None without any."""
    return element if isinstance(element, tuple) else (element, None)


class Batch(NamedTuple):
    """What one replica computes on in one micro-batch.

    Attributes:
      features: nest of tensors with a leading batch dimension.
      labels: the same, or None.
      share: float32 scalar, 1, or 0 for a stand-in that counts for nothing; None
        where every batch counts.
    """

    features: Any
    labels: Any
    share: tf.Tensor | None = None


def rows_in(element: Any) -> int | tf.Tensor:
    """Examples in a batch: an int where the shape tells, else an int32 scalar.

    A batch of scalars without a batch dimension counts as one example.
    """
    first = tf.nest.flatten(element)[0]
    static = 1 if first.shape.rank == 0 else first.shape[0]
    if static is not None:
        return static
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    return tf.shape(first)[0]


def batch_of(element: Any, has: tf.Tensor | None) -> Batch:
    """An element as a batch.

    Args:
      element: of the dataset.
      has: bool scalar, whether it counts; None where every one does.
    """
    features, labels = pair_of(element)
    return Batch(features, labels, None if has is None else tf.cast(has, tf.float32))


def choose(batches: Sequence[Batch], index: tf.Tensor) -> Batch:
    """`batches[index]` for a tensor `index` of 1 or more."""
    fields = [
        {"features": b.features, "labels": b.labels, "share": b.share}
        for b in batches[1:]
    ]
    present = [k for k, value in fields[0].items() if value is not None]
    branches = [lambda f=f: {k: f[k] for k in present} for f in fields]
    chosen = tf.switch_case(index - 1, branches)
    return Batch(**{**dict.fromkeys(fields[0]), **chosen})


def same_shapes(batches: Sequence[Sequence[Batch]]) -> bool:
    """Whether every replica's batches have the same static shapes.

    Values that differ by replica have the same static shape, see `replicas.run_each`.
    """
    if isinstance(batches[0], Batch):
        return True
    shapes = {
        str([getattr(leaf, "shape", None) for leaf in tf.nest.flatten(batches_of)])
        for batches_of in ([(b.features, b.labels) for b in mine] for mine in batches)
    }
    return len(shapes) == 1


def rows_of(value: Any, start: Any, stop: Any) -> Any:
    """Returns some rows of a dense, ragged or sparse tensor, as `value[start:stop]`."""
    if not isinstance(value, tf.SparseTensor):
        return value[start:stop]
    begin = tf.one_hot(0, value.shape.rank, tf.cast(start, tf.int64), 0, dtype=tf.int64)
    known, shape = value.shape.as_list(), value.dense_shape
    widths = [shape[i] if n is None else n for i, n in enumerate(known)][1:]
    size = tf.stack([tf.cast(stop - start, tf.int64), *widths])
    part = tf.sparse.slice(value, begin, size)
    # TensorFlow's slice does not say of what shape it is.
    return tf.SparseTensor(part.indices, part.values, size)


def any_batch_size(spec: Any) -> Any:
    """Returns the spec of a part of a batch of `spec`, of any number of rows."""
    kinds = tf.TensorSpec, tf.SparseTensorSpec, tf.RaggedTensorSpec
    if not isinstance(spec, kinds) or not spec.shape.rank:
        return spec
    shape, ranks = tf.TensorShape([None, *spec.shape[1:]]), ()
    if isinstance(spec, tf.RaggedTensorSpec):
        ranks = spec.ragged_rank, spec.row_splits_dtype
    return type(spec)(shape, spec.dtype, *ranks)
