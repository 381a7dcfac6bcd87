# SPDX-License-Identifier: Apache-2.0
"""TFRecord files of `tf.train.Example` as input.

files -> this pipeline's records -> shuffle -> repeat -> batch -> parse
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from gin_estimator import errors

from .batching import Batching, element, make_batching
from .columns import Column, column_of, make_table
from .files import Patterns, files_of, interleave, place_of, position_of, rows_are_shared

FeatureSpec = Mapping[str, Any]


@gin.configurable
def tfrecord_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    feature_spec: FeatureSpec | Callable[[], FeatureSpec],
    label_key: str | Sequence[str] | None = None,
    train_files: Patterns = None,
    eval_files: Patterns = None,
    preprocess: Callable[..., Any] | None = None,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    shuffle_buffer: int | None = 10000,
    seed: int | None = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Returns batches of the examples in TFRecord files; features are a dict of tensors.

    A record that is not as declared fails with its file and number.

    Args:
      mode: one of `ModeKeys`. TRAIN reads `train_files`, EVAL and PREDICT `eval_files`; PREDICT
        yields features only, and its files need no labels.
      input_context: this pipeline; None for one pipeline of one replica. Each pipeline reads
        its share of the files, or of the records if there are fewer files than pipelines.
      feature_spec: how to parse each feature, by name, or a function that returns it. Values are
        `(dtype, shape)`, such as `('float32', [28, 28])`, with shape None for any number of
        values (a SparseTensor); kinds of columns or `Column`s, see `csv_input_fn`; or features
        of `tf.io.parse_example`. Or a `Schema`, which encodes the features.
      label_key: name of the feature that is the label, names of several, whose labels are a
        dict, or None.
      train_files: glob pattern, or list of patterns. Files named '.gz' are compressed.
      eval_files: the same, for EVAL and PREDICT.
      preprocess: function `preprocess(features, labels)` of one example that returns
        `(features, labels)`; labels are None in PREDICT. None changes nothing and is faster,
        because a batch is then parsed at once. With a schema map the returned dataset.
      batch_size: examples in a global batch. Set exactly one of the two batch sizes.
      batch_size_per_replica: examples in a batch of one replica.
      shuffle_buffer: number of records among which TRAIN draws the next one; None or 0 keeps
        the order. A saved position contains these records.
      seed: seed of the order in TRAIN; None for another order in each run.
      num_epochs: passes in TRAIN; None without end.
      drop_remainder: whether an incomplete last batch is dropped, as a TPU needs.

    Raises:
      UserValueError: a pattern matches no file, `label_key` is unknown, or an argument is wrong.
    """
    batching = make_batching(
        mode,
        input_context,
        batch_size=batch_size,
        batch_size_per_replica=batch_size_per_replica,
        num_epochs=num_epochs,
        drop_remainder=drop_remainder,
    )
    spec = feature_spec() if callable(feature_spec) else feature_spec
    table = make_table(spec, mode=mode, label=label_key, make_column=_column)
    parsers = {
        name: each.parser() if isinstance(each, Column) else each
        for name, each in table.columns.items()
    }
    if preprocess is not None and hasattr(feature_spec, "prepared"):
        raise errors.UserValueError(
            f"preprocess is {preprocess!r}: expected None with a schema, which encodes batches. "
            "Map the dataset that tfrecord_input_fn returns."
        )
    files = files_of(batching, train_files, eval_files, owner="tfrecord_input_fn")
    records = _read(files, batching, shuffle=bool(shuffle_buffer), seed=seed)
    records = batching.shuffle_and_repeat(records, buffer_size=shuffle_buffer, seed=seed)

    def parse(records: tf.Tensor, positions: tf.Tensor) -> tuple[Any, Any]:
        names = place_of(files, positions, "record")
        return table.divide(tf.io.parse_example(records, parsers, example_names=names))

    def parse_batch(records: tf.Tensor, positions: tf.Tensor) -> Any:
        return element(*parse(records, positions))

    def parse_one(record: tf.Tensor, position: tf.Tensor) -> Any:
        # As a batch of one, because errors of single examples have no name.
        parsed = parse(record[tf.newaxis], position[tf.newaxis])
        return element(*preprocess(*tf.nest.map_structure(_only_row, parsed)))

    if preprocess is None:
        batches = batching.batch(records).map(parse_batch, num_parallel_calls=tf.data.AUTOTUNE)
    else:
        batches = batching.batch(records.map(parse_one, num_parallel_calls=tf.data.AUTOTUNE))
    return batching.finish(batches)


def _column(name: str, value: Any) -> Any:
    """Returns a value of `feature_spec` as a `Column` or a feature of `tf.io.parse_example`."""
    if isinstance(value, str | Mapping | Column):
        return column_of(name, value)
    # The features of tf.io are named tuples, unlike (dtype, shape).
    if type(value) not in (tuple, list):
        return value
    if len(value) != 2:
        raise errors.UserValueError(
            f"feature_spec[{name!r}] is {value!r}: expected (dtype, shape), such as "
            "('float32', [28, 28]), or (dtype, None) for any number of values."
        )
    dtype, shape = value
    if shape is None:
        return tf.io.VarLenFeature(tf.as_dtype(dtype))
    return tf.io.FixedLenFeature(shape, tf.as_dtype(dtype))


def _read(
    files: list[str], batching: Batching, *, shuffle: bool, seed: int | None
) -> tf.data.Dataset:
    """Returns this pipeline's records of one epoch, with their positions."""
    shared = rows_are_shared(files, batching)

    def read_file(file: tf.Tensor, compression: tf.Tensor, index: tf.Tensor) -> tf.data.Dataset:
        records = tf.data.TFRecordDataset(file, compression_type=compression)
        positions = tf.data.Dataset.range(position_of(index, 1), position_of(index + 1, 0))
        records = tf.data.Dataset.zip(records, positions)
        # Within each file, so that it does not depend on the order of the files.
        return batching.shard(records) if shared else records

    return interleave(
        files, read_file, batching=batching, shuffle=shuffle, seed=seed, block_length=16
    )


def _only_row(value: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.reshape(value, tf.shape(value, tf.int64)[1:])
    return None if value is None else value[0]
