"""TFRecord files of `tf.train.Example` as input.

files -> this pipeline's files -> records -> shuffle -> repeat -> batch -> parse
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from pipeline import ModeKeys, RefusedValueError

from . import files as input_files
from .batching import Batching, make_batching
from .columns import Column, Table, column_of, encoding_of, table_of
from .schema import Schema

FeatureSpec = Mapping[str, Any]


@gin.configurable(denylist=["config"])
def tfrecord_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    feature_spec: FeatureSpec | Callable[[], FeatureSpec],
    label_key: str | Sequence[str] | None = None,
    train_files: str | Sequence[str] | None = None,
    eval_files: str | Sequence[str] | None = None,
    preprocess: Callable[..., Any] | None = None,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    shuffle_buffer: int | None = 10000,
    seed: int | None = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    config: Any = ...,
) -> tf.data.Dataset:
    """Yields batches of the examples in TFRecord files; features are a dict of tensors.

    Args:
      mode: one of `ModeKeys`. TRAIN reads `train_files`, the others `eval_files`;
        PREDICT yields features alone, and its files need no labels.
      input_context: this pipeline; None is one pipeline that feeds one replica. Each
        pipeline reads files of its own, or records of its own where there are fewer
        files than pipelines.
      feature_spec: how to parse each feature, by name, or a function that returns that.
        Values are `(dtype, shape)` such as `('float32', [28, 28])`, with shape None for
        any number of values (a SparseTensor); kinds of columns, such as 'number', or a
        `Column`, see `csv_input_fn`; or features of `tf.io.parse_example`. Or a
        `Schema`, whose features then come encoded.
      label_key: name of the feature that is the labels, or a list of several, whose
        labels are a dict; None for data without labels.
      train_files: glob pattern, or a list of patterns. Names in '.gz' are compressed.
      eval_files: the same, for EVAL and PREDICT.
      preprocess: function `preprocess(features, labels)` of one example that returns
        `(features, labels)`; labels are None in PREDICT. None changes nothing and is
        faster: examples are then parsed a batch at a time. Not with a schema, which
        encodes batches.
      batch_size: examples in a global batch. Exactly one of the two batch sizes is
        given.
      batch_size_per_replica: examples in the batch of one replica.
      shuffle_buffer: records among which TRAIN draws the next; None or 0 keeps the
        order. A saved position holds these records.
      seed: seed of the order in TRAIN; None: each run has another order.
      num_epochs: passes in TRAIN; None is forever. EVAL and PREDICT make one.
      drop_remainder: whether an incomplete last batch is left out, in every mode. All
        batches then have one shape, which a TPU needs.
      config: the `RunConfig`, which the driver gives, in whose model_dir a schema keeps
        its statistics; None: they are counted for this process.

    Raises:
      ValueError: a pattern is missing or matches no file, label_key is unknown, or an
        argument is refused by `make_batching`.
    """
    batching = make_batching(
        mode,
        input_context,
        batch_size=batch_size,
        batch_size_per_replica=batch_size_per_replica,
        num_epochs=num_epochs,
        drop_remainder=drop_remainder,
    )
    if preprocess is not None and isinstance(feature_spec, Schema):
        raise RefusedValueError(
            f"preprocess is {preprocess!r}, of one example, and feature_spec a schema, "
            "which encodes batches: leave preprocess out, and map what "
            "tfrecord_input_fn returns."
        )
    spec, table = _parsing(feature_spec, label_key, mode)
    files = input_files.of_mode(
        batching,
        train_files,
        eval_files,
        owner="tfrecord_input_fn",
        example="/data/part-*.tfrecord",
    )
    records = _read(files, batching, shuffle=bool(shuffle_buffer), seed=seed)
    records = batching.shuffle_and_repeat(
        records, buffer_size=shuffle_buffer, seed=seed
    )
    encode = encoding_of(feature_spec, config, "tfrecord_input_fn")

    def parse(serialized: tf.Tensor, places: tf.Tensor) -> Any:
        names = input_files.in_words(files, places, "record")
        parsed = tf.io.parse_example(serialized, spec, example_names=names)
        return table.divided(parsed)

    def parse_batch(serialized: tf.Tensor, places: tf.Tensor) -> Any:
        features, labels = parse(serialized, places)
        features = encode(features)
        return features if labels is None else (features, labels)

    def parse_and_preprocess(serialized: tf.Tensor, place: tf.Tensor) -> Any:
        # As a batch of one, for errors to say which: those of single examples do not.
        parsed = parse(serialized[tf.newaxis], place[tf.newaxis])
        return preprocess(*tf.nest.map_structure(_only, parsed))

    if preprocess is None:
        batches = batching.batch(records)
        batches = batches.map(parse_batch, num_parallel_calls=tf.data.AUTOTUNE)
    else:
        examples = records.map(
            parse_and_preprocess, num_parallel_calls=tf.data.AUTOTUNE
        )
        batches = batching.batch(examples)
    return batching.for_model(batches)


def _parsing(
    feature_spec: Any, label_key: str | Sequence[str] | None, mode: str
) -> tuple[dict[str, Any], Table]:
    """Returns the parsers of `tf.io.parse_example` by name, and what labels are.

    Raises:
      ValueError: label_key is unknown, or a feature cannot be parsed.
    """
    if isinstance(feature_spec, Schema):
        table = table_of(feature_spec, mode=mode, label=label_key)
        return {k: column.parser() for k, column in table.columns.items()}, table
    spec = dict(feature_spec() if callable(feature_spec) else feature_spec)
    labels = (label_key,) if isinstance(label_key, str) else tuple(label_key or ())
    for name in labels:
        if name not in spec:
            raise RefusedValueError(
                f"label_key={label_key!r} is not in feature_spec, which has "
                f"{sorted(spec)}: write one of these."
            )
    if mode == ModeKeys.PREDICT:
        spec = {name: value for name, value in spec.items() if name not in labels}
        label_key, labels = None, ()
    spec = {k: _parser(k, value, is_label=k in labels) for k, value in spec.items()}
    return spec, Table({}, labels, label_key)


def _parser(name: str, value: Any, *, is_label: bool) -> Any:
    if isinstance(value, (str, Mapping, Column)):
        return column_of(name, value, is_needed=is_label).parser()
    # The parsers of tf.io are named tuples, which a plain (dtype, shape) is not.
    if type(value) not in (tuple, list):
        return value
    if len(value) != 2:
        raise RefusedValueError(
            f"feature_spec[{name!r}] is {value!r}: write (dtype, shape), as in "
            "('float32', [28, 28]), or (dtype, None) for any number of values."
        )
    dtype, shape = value
    if shape is None:
        return tf.io.VarLenFeature(tf.as_dtype(dtype))
    return tf.io.FixedLenFeature(shape, tf.as_dtype(dtype))


def _read(
    files: list[str], batching: Batching, *, shuffle: bool, seed: int | None
) -> tf.data.Dataset:
    """Reads this pipeline's records of one epoch, and the place of each."""
    shared = input_files.are_shared(files, batching)

    def read_file(file: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        number = tf.argmax(tf.constant(files) == file)
        records = tf.data.TFRecordDataset(file, compression_type=compression)
        first = input_files.place_of(number, 1)
        places = tf.data.Dataset.range(first, input_files.place_of(number + 1, 0))
        records = tf.data.Dataset.zip(records, places)
        # Shards within each file: which pipeline reads a record then does not depend
        # on the order of the files.
        return batching.shard(records) if shared else records

    return input_files.read_in_turns(
        files, read_file, batching=batching, shuffle=shuffle, seed=seed, block_length=16
    )


def _only(value: Any) -> Any:
    """Returns the one example of a batch; None of labels that are none."""
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.reshape(value, tf.shape(value, tf.int64)[1:])
    return None if value is None else value[0]
