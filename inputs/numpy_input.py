"""Arrays in memory as input.

Only row numbers flow through the pipeline; the rows are gathered batch by batch. So the
shuffling is complete, and it can start at any batch. Every pipeline draws the same
order and takes its part of it. So a global batch holds the same examples on any number
of replicas and pipelines.
"""

import numbers
from collections.abc import Callable, Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from pipeline import RefusedValueError

from .batching import Batching, make_batching, of_known_rows


@gin.configurable
def numpy_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    x: Any = None,
    y: Any = None,
    data: Callable[[], tuple[Any, Any]] | None = None,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Yields batches of the rows of arrays.

    Args:
      mode: one of `ModeKeys`. PREDICT yields `features`, the other modes
        `(features, labels)`, or `features` where there are no labels.
      input_context: this pipeline; None is one pipeline that feeds one replica.
      x: array `[examples, ...]` of any dtype, or a dict of arrays. Nested lists become
        float32 or int32.
      y: labels, array or dict of the same length; None for data without labels.
      data: function without arguments, in place of x and y. It returns `(x, y)`, or
        `((x_train, y_train), (x_eval, y_eval))` as Keras' `load_data` does.
      batch_size: examples in a global batch. Exactly one of the two batch sizes is
        given.
      batch_size_per_replica: examples in the batch of one replica.
      shuffle: whether TRAIN draws a new order each epoch. EVAL and PREDICT keep the
        order of the rows.
      seed: seed of the order, an integer. Each pipeline draws the order by itself, and
        all have to draw the same.
      num_epochs: passes in TRAIN; None is forever. EVAL and PREDICT make one.
      drop_remainder: whether an incomplete last batch is left out, in every mode. All
        batches then have one shape, which a TPU needs.
      first_batch: batches of this pipeline to leave out, for a run that goes on.

    Raises:
      ValueError: x and data are both given or neither, lengths differ, there are no
        rows, or an argument is refused by `make_batching`.
    """
    batching = make_batching(
        mode,
        input_context,
        batch_size=batch_size,
        batch_size_per_replica=batch_size_per_replica,
        num_epochs=num_epochs,
        drop_remainder=drop_remainder,
        first_batch=first_batch,
    )
    if (x is None) == (data is None):
        raise RefusedValueError(
            f"numpy_input_fn got {'neither' if x is None else 'both'} of x and data: "
            "give x (and y), or data, a function that returns them."
        )
    if data is not None:
        if y is not None:
            raise RefusedValueError(
                "numpy_input_fn got y and data: data returns the labels."
            )
        x, y = _arrays_of(data(), is_training=batching.is_training)
    return array_dataset(x, y, batching=batching, shuffle=shuffle, seed=seed)


@gin.configurable
def constant_arrays(
    x: Any = (1.0,), y: Any = (1.0,), num_examples: int = 1000
) -> tuple[np.ndarray, np.ndarray]:
    """Repeats one example: `numpy_input_fn.data = @constant_arrays`.

    Args:
      x: features of one example, made float32.
      y: labels of one example, made float32.
      num_examples: number of copies.

    Returns:
      `x` and `y` with a leading dimension of `num_examples`.

    Raises:
      ValueError: the example has no values, on which TensorFlow would crash.
    """
    for name, row in (("x", x), ("y", y)):
        if not np.size(row):
            raise RefusedValueError(
                f"constant_arrays.{name} is {row!r}, which holds no value: write "
                f"constant_arrays.{name} = (1.0,)."
            )

    def repeated(row: Any) -> np.ndarray:
        return np.repeat(np.asarray(row, np.float32)[np.newaxis], num_examples, axis=0)

    return repeated(x), repeated(y)


def array_dataset(
    x: Any,
    y: Any,
    *,
    batching: Batching,
    shuffle: bool,
    seed: int,
    preprocess_batch: Callable[..., Any] | None = None,
) -> tf.data.Dataset:
    """Makes this pipeline's batches of the rows of `x` and `y`.

    Args:
      x: array `[examples, ...]` or dict of arrays, which may be ragged tensors.
      y: the same, or None.
      batching: pipeline, epochs and batch size.
      shuffle: whether TRAIN draws a new order each epoch.
      seed: seed of the order, the same in every pipeline.
      preprocess_batch: function `preprocess_batch(features, labels)` of a batch that
        returns `(features, labels)`, labels None without `y`; None changes nothing.

    Raises:
      ValueError: the seed is not an integer, lengths differ, or there are no rows.
    """
    if not isinstance(seed, numbers.Integral):
        raise RefusedValueError(
            f"seed is {seed!r}, not an integer: pipelines that draw different orders "
            "would share examples. Write another integer for another order."
        )
    # tf.data reads on the CPU; by default the rows would fill a GPU's memory.
    with tf.device("/CPU:0"):
        rows = _tensors(x) if y is None else (_tensors(x), _tensors(y))
    num_examples = _num_examples(rows)
    order = row_numbers(num_examples, batching=batching, shuffle=shuffle, seed=seed)
    order = batching.batch(batching.shard(order))
    if preprocess_batch is None:
        return gathered(order, rows, batching=batching)

    def preprocess(batch: Any) -> Any:
        features, labels = preprocess_batch(*((batch, None) if y is None else batch))
        return features if labels is None else (features, labels)

    return gathered(order, rows, batching=batching, preprocess=preprocess)


def row_numbers(
    num_rows: int, *, batching: Batching, shuffle: bool, seed: int
) -> tf.data.Dataset:
    """Yields the numbers of all pipelines' rows, from `first_batch` on, int64 scalars.

    Args:
      num_rows: rows in an epoch.
      batching: epochs, pipelines, and the batch to begin with.
      shuffle: whether TRAIN draws a new order each epoch.
      seed: seed of the order.
    """
    # Whole epochs are left out at once; only within the first is anything skipped.
    first = batching.first_batch * batching.batch_size * batching.num_pipelines
    first_epoch, skipped = divmod(first, num_rows)
    if batching.num_epochs is None:
        epochs = tf.data.Dataset.counter(first_epoch)
        total = tf.data.INFINITE_CARDINALITY
    else:
        epochs = tf.data.Dataset.range(first_epoch, batching.num_epochs)
        total = max(batching.num_epochs * num_rows - first, 0)

    def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        if shuffle and batching.is_training:
            return _permutation(num_rows, seed, epoch)
        return tf.data.Dataset.range(num_rows)

    order = epochs.flat_map(of_epoch).skip(skipped)
    # flat_map hides the length, by which the driver counts the steps of a pass.
    return order.apply(tf.data.experimental.assert_cardinality(total))


def gathered(
    order: tf.data.Dataset,
    rows: Any,
    *,
    batching: Batching,
    preprocess: Callable[[Any], Any] | None = None,
) -> tf.data.Dataset:
    """Gathers batches of rows in memory.

    Args:
      order: dataset of batches of row numbers.
      rows: nest of tensors `[rows, ...]`.
      batching: its mode decides whether labels are left out.
      preprocess: function of a gathered batch that returns another; None is none.
    """

    def gather(indices: tf.Tensor) -> Any:
        def gather_rows(array: Any) -> Any:
            batch = tf.gather(array, indices)
            is_ragged = isinstance(batch, tf.RaggedTensor)
            return of_known_rows(batch, indices.shape[0]) if is_ragged else batch

        batch = tf.nest.map_structure(gather_rows, rows)
        return batch if preprocess is None else preprocess(batch)

    batches = order.map(gather, num_parallel_calls=tf.data.AUTOTUNE)
    return batching.for_model(batches)


def _permutation(num_rows: int, seed: int, epoch: tf.Tensor) -> tf.data.Dataset:
    """Returns row numbers in an order that depends on (seed, epoch) alone."""
    # tf.random.shuffle is stateful: the iterator's position could not be saved. The
    # keys are of the full range of int32, so that few are equal.
    keys = tf.random.stateless_uniform(
        [num_rows], [seed, epoch], minval=None, maxval=None, dtype=tf.int32
    )
    rows = tf.argsort(keys, stable=True)
    return tf.data.Dataset.from_tensor_slices(tf.cast(rows, tf.int64))


def _arrays_of(loaded: Any, *, is_training: bool) -> tuple[Any, Any]:
    """Returns `(x, y)` of the data to train on, or of the other data."""
    if not isinstance(loaded, tuple) or len(loaded) != 2:
        raise RefusedValueError(
            f"data() returned {type(loaded).__name__}, not a pair: return (x, y), "
            "(x, None), or ((x_train, y_train), (x_eval, y_eval))."
        )
    if all(isinstance(part, tuple) and len(part) == 2 for part in loaded):
        return loaded[0] if is_training else loaded[1]
    return loaded


def _tensors(arrays: Any) -> Any:
    if isinstance(arrays, Mapping):
        return {name: _tensors(array) for name, array in arrays.items()}
    # A ragged tensor stays one.
    return arrays if tf.is_tensor(arrays) else tf.convert_to_tensor(arrays)


def _num_examples(rows: Any) -> int:
    """Returns the length of all arrays, which has to be the same."""
    lengths = [
        array.shape[0] if array.shape.rank else None for array in tf.nest.flatten(rows)
    ]
    if len(set(lengths)) != 1 or not lengths[0]:
        shapes = tf.nest.map_structure(lambda array: array.shape.as_list(), rows)
        raise RefusedValueError(
            "Arrays need one length above 0 in their first dimension, one row an "
            f"example; their shapes are {shapes}."
        )
    return lengths[0]
