"""Data sets of tensorflow_datasets as input.

Each pipeline reads its part of the data set. Examples that fit in memory are
preprocessed once and kept; then their numbers flow: shuffle -> repeat -> batch ->
gather. Other examples flow themselves: shuffle -> repeat -> preprocess -> batch.
"""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from pipeline import ModeKeys, RefusedImportError, RefusedValueError
from pipeline.process import later

from .batching import Batching, make_batching
from .numpy_input import gathered, row_numbers

tfds = later.module("tensorflow_datasets")

_MAX_BYTES_TO_CACHE = 2**30


@gin.configurable
def tfds_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    name: str,
    train_split: str = "train",
    eval_split: str = "test",
    data_dir: str | None = None,
    download: bool = False,
    as_supervised: bool = True,
    preprocess: Callable[..., Any] | None = None,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    shuffle_buffer: int | None = 10000,
    seed: int | None = 0,
    num_epochs: int | None = None,
    cache: bool | None = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Yields batches of a data set that `tensorflow_datasets` knows.

    Args:
      mode: one of `ModeKeys`. TRAIN reads `train_split`, the others `eval_split`;
        PREDICT yields features alone.
      input_context: this pipeline; None is one pipeline that feeds one replica. Each
        pipeline reads a range of the split; ranges differ by one example at most.
      name: name of the data set, such as 'mnist', 'glue/sst2' or 'mnist:3.0.1'.
      train_split: a split or a part of one, such as 'train[:90%]'.
      eval_split: the same, for EVAL and PREDICT.
      data_dir: folder of data sets; None is `~/tensorflow_datasets`, or
        `$TFDS_DATA_DIR`.
      download: whether to download and prepare the data set where it is not there.
      as_supervised: whether examples are `(features, labels)`, as the data set pairs
        them; otherwise they are dicts of all features.
      preprocess: function of one example: `preprocess(features, labels)`, or
        `preprocess(example)` with as_supervised=False. It returns
        `(features, labels)`, or features alone. None changes nothing.
      batch_size: examples in a global batch. Exactly one of the two batch sizes is
        given.
      batch_size_per_replica: examples in the batch of one replica.
      shuffle_buffer: examples among which TRAIN draws the next; None or 0 keeps the
        order. A saved position holds these examples. Cached examples of fixed shapes
        are shuffled by number instead, and all at once if there is a seed.
      seed: seed of the order in TRAIN; None: each run has another order.
      num_epochs: passes in TRAIN; None is forever. EVAL and PREDICT make one.
      cache: whether TRAIN keeps preprocessed examples in memory, so that `preprocess`
        runs once an example. None: if they have fixed shapes and fit in 1 GiB.
        Examples of fixed shapes are read during this call; with parameter servers they
        are sent to the workers.
      drop_remainder: whether an incomplete last batch is left out, in every mode. All
        batches then have one shape, which a TPU needs.

    Raises:
      ModuleNotFoundError: tensorflow_datasets is not installed.
      ValueError: the data set or the split is unknown, data_dir does not have it, it
        has no supervised pair, or an argument is refused by `make_batching`.
    """
    batching = make_batching(
        mode,
        input_context,
        batch_size=batch_size,
        batch_size_per_replica=batch_size_per_replica,
        num_epochs=num_epochs,
        drop_remainder=drop_remainder,
    )
    builder = _prepared_builder(name, data_dir, download)
    if as_supervised and builder.info.supervised_keys is None:
        raise RefusedValueError(
            f"Data set {name!r} does not say which features are the labels. Write "
            "tfds_input_fn.as_supervised = False and a preprocess that returns "
            f"(features, labels); the features are {sorted(builder.info.features)}."
        )
    split = train_split if batching.is_training else eval_split
    num_examples = _num_examples(builder, split)

    def read(*, shuffle_files: bool) -> tf.data.Dataset:
        return _read(
            builder,
            split,
            num_examples=num_examples,
            as_supervised=as_supervised,
            batching=batching,
            shuffle_files=shuffle_files,
            seed=seed,
        )

    def shuffled(examples: tf.data.Dataset) -> tf.data.Dataset:
        return batching.shuffle_and_repeat(
            examples, buffer_size=shuffle_buffer, seed=seed
        )

    # The largest part: as some parts are smaller by one, all decide alike.
    share = -(-num_examples // batching.num_pipelines)
    in_order = _map(read(shuffle_files=False), preprocess)
    if cache is None:
        cache = _fits_in_memory(in_order, share)
    # EVAL and PREDICT read each example once.
    cache = cache and batching.is_training
    rows = _in_memory(in_order, share) if cache else None
    if rows is not None:
        num_rows = tf.nest.flatten(rows)[0].shape[0]
        if seed is None:
            numbers = shuffled(tf.data.Dataset.range(num_rows))
        else:
            # No shuffle buffer, which would be saved with each position. One pipeline,
            # for these rows are this pipeline's alone.
            alone = dataclasses.replace(batching, context=tf.distribute.InputContext())
            numbers = row_numbers(
                num_rows, batching=alone, shuffle=bool(shuffle_buffer), seed=seed
            )
        return gathered(batching.batch(numbers), rows, batching=batching)
    dataset = read(shuffle_files=batching.is_training and bool(shuffle_buffer))
    if cache:
        batches = batching.batch(shuffled(_map(dataset, preprocess).cache()))
    else:
        # Shuffled before they are preprocessed: examples are often smaller then.
        batches = batching.batch(_map(shuffled(dataset), preprocess))
    return batching.for_model(batches)


def _prepared_builder(name: str, data_dir: str | None, download: bool) -> Any:
    """Returns the builder of a data set whose files are there."""
    if tfds is None:
        raise RefusedImportError(
            "tfds_input_fn needs tensorflow_datasets: pip install tensorflow-datasets "
            "importlib_resources"
        )
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        close = difflib.get_close_matches(name, known)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise RefusedValueError(
            f"tensorflow_datasets knows no data set {name!r}, and there is none of "
            f"that name in data_dir={data_dir!r}.{hint}"
        ) from error
    # tensorflow_datasets asserts that it has the version.
    except AssertionError as error:
        raise RefusedValueError(
            f"No data set {name!r} in data_dir={data_dir!r}: {error}"
        ) from error
    if builder.data_path.exists():
        return builder
    if not download:
        raise RefusedValueError(
            f"Data set {name!r} is not in {builder.data_path} (data_dir={data_dir!r}). "
            "Write tfds_input_fn.download = True to download and prepare it there, or "
            "tfds_input_fn.data_dir = '...' if it lies elsewhere."
        )
    builder.download_and_prepare()
    return builder


def _num_examples(builder: Any, split: str) -> int:
    try:
        return builder.info.splits[split].num_examples
    except (KeyError, ValueError) as error:
        raise RefusedValueError(
            f"Data set {builder.info.full_name!r} has no split {split!r}; it has "
            f"{sorted(builder.info.splits)}, and parts of them as in 'train[:90%]'."
        ) from error


def _read(
    builder: Any,
    split: str,
    *,
    num_examples: int,
    as_supervised: bool,
    batching: Batching,
    shuffle_files: bool,
    seed: int | None,
) -> tf.data.Dataset:
    """Reads this pipeline's examples.

    The split is divided into ranges rather than files, for there may be fewer files
    than pipelines, or a number that does not divide among them.
    """
    by_range = num_examples >= batching.num_pipelines > 1
    if by_range:
        parts = tfds.even_splits(split, n=batching.num_pipelines)
        split = parts[batching.pipeline_id]
    options = tf.data.Options()
    options.deterministic = True
    # Predictions have to come in the order of the data set, so files are not mixed.
    in_order = batching.mode == ModeKeys.PREDICT or builder.info.disable_shuffling
    config = tfds.ReadConfig(
        options=options,
        try_autocache=False,
        skip_prefetch=True,
        shuffle_seed=seed,
        interleave_cycle_length=1 if in_order else 16,
    )
    dataset = builder.as_dataset(
        split=split,
        as_supervised=as_supervised,
        shuffle_files=shuffle_files and not builder.info.disable_shuffling,
        read_config=config,
    )
    return dataset if by_range else batching.shard(dataset)


def _map(
    dataset: tf.data.Dataset, preprocess: Callable[..., Any] | None
) -> tf.data.Dataset:
    if preprocess is None:
        return dataset
    return dataset.map(preprocess, num_parallel_calls=tf.data.AUTOTUNE)


def _in_memory(dataset: tf.data.Dataset, num_examples: int) -> Any:
    """Reads all examples as one batch; None without examples, or if shapes differ."""
    if not all(map(_is_fixed, tf.nest.flatten(dataset.element_spec))):
        return None
    with tf.device("/CPU:0"):
        return next(iter(dataset.batch(num_examples)), None)


def _fits_in_memory(dataset: tf.data.Dataset, num_examples: int) -> bool:
    """Returns whether examples are surely of fixed size, and fit in 1 GiB."""
    specs = tf.nest.flatten(dataset.element_spec)
    if not all(_is_fixed(spec) and spec.dtype != tf.string for spec in specs):
        return False
    num_bytes = sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)
    return num_bytes * num_examples <= _MAX_BYTES_TO_CACHE


def _is_fixed(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
