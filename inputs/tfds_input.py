# SPDX-License-Identifier: Apache-2.0
"""Data sets of tensorflow_datasets as input.

Each pipeline reads its range of the split. Examples of fixed shapes that fit in memory are
preprocessed once and gathered by number; others are shuffled, repeated, preprocessed, batched.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from gin_estimator import ModeKeys, errors

from .arrays import array_dataset
from .batching import make_batching
from .columns import did_you_mean

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
    """Returns batches of a data set of `tensorflow_datasets`.

    Args:
      mode: one of `ModeKeys`. TRAIN reads `train_split`, EVAL and PREDICT `eval_split`; PREDICT
        yields features only.
      input_context: this pipeline; None for one pipeline of one replica.
      name: name of the data set, such as 'mnist', 'glue/sst2' or 'mnist:3.0.1'.
      train_split: a split or a part of one, such as 'train[:90%]'.
      eval_split: the same, for EVAL and PREDICT.
      data_dir: folder of data sets; None for `$TFDS_DATA_DIR`, or `~/tensorflow_datasets`.
      download: whether to download and prepare a data set that is not there.
      as_supervised: whether examples are `(features, labels)`, as the data set declares them;
        otherwise they are dicts of all features.
      preprocess: function of one example, `preprocess(features, labels)`, or
        `preprocess(example)` with as_supervised=False, that returns `(features, labels)` or
        features; None changes nothing.
      batch_size: examples in a global batch. Set exactly one of the two batch sizes.
      batch_size_per_replica: examples in a batch of one replica.
      shuffle_buffer: number of examples among which TRAIN draws the next one; None or 0 keeps
        the order. A saved position contains these examples. Cached examples are shuffled as a
        whole by number.
      seed: seed of the order in TRAIN; None for another order in each run, and after
        a restart.
      num_epochs: passes in TRAIN; None without end.
      cache: whether TRAIN keeps preprocessed examples in memory, which need fixed shapes. None:
        if they have fixed shapes and fit in 1 GiB.
      drop_remainder: whether an incomplete last batch is dropped, as a TPU needs.

    Raises:
      UserValueError: tensorflow_datasets is not installed, the data set or split does not exist,
        or an argument does not fit.
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
        raise errors.UserValueError(
            f"the data set {name!r} does not declare which features are the labels: set "
            "tfds_input_fn.as_supervised = False, and a preprocess that returns (features, "
            f"labels). The features are {sorted(builder.info.features)}."
        )
    split = train_split if batching.is_training else eval_split
    num_examples = _num_examples(builder, split)
    shuffles = batching.is_training and bool(shuffle_buffer)
    if num_examples >= batching.num_pipelines:
        # Ranges rather than files: there may be fewer files than pipelines.
        splits = _tfds().even_splits(split, n=batching.num_pipelines)
        split = splits[batching.pipeline]
        own = dataclasses.replace(batching, num_pipelines=1, pipeline=0)
    else:
        own = batching

    def read(*, shuffle_files: bool) -> tf.data.Dataset:
        dataset = _read(
            builder,
            split,
            as_supervised=as_supervised,
            mode=mode,
            shuffle_files=shuffle_files,
            seed=seed,
        )
        return own.shard(dataset)

    in_order = _map(read(shuffle_files=False), preprocess)
    if own.is_training and own.num_pipelines == 1:
        share = -(-num_examples // batching.num_pipelines)  # Ranges may differ by one example.
        if _is_cached(in_order, share, cache):
            with tf.device("/CPU:0"):
                rows = next(iter(in_order.batch(share)))
            x, y = rows if isinstance(rows, tuple) else (rows, None)
            return array_dataset(x, y, batching=own, shuffle=shuffles, seed=seed)
    if not own.is_training:
        return own.finish(own.batch(in_order))
    # Shuffled before they are preprocessed: raw examples are usually smaller.
    examples = own.shuffle_and_repeat(
        read(shuffle_files=shuffles), buffer_size=shuffle_buffer, seed=seed
    )
    return own.finish(own.batch(_map(examples, preprocess)))


def _tfds() -> Any:
    """Returns tensorflow_datasets, which is optional and takes seconds to import.

    Raises:
      UserValueError: it is not installed.
    """
    try:
        import tensorflow_datasets
    except ModuleNotFoundError as error:
        if error.name not in ("tensorflow_datasets", "importlib_resources"):
            raise
        raise errors.UserValueError(
            f"tfds_input_fn needs {error.name}: pip install tensorflow-datasets "
            "importlib_resources."
        ) from error
    return tensorflow_datasets


def _prepared_builder(name: str, data_dir: str | None, download: bool) -> Any:
    """Returns the builder of a data set whose files exist."""
    tfds = _tfds()
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        raise errors.UserValueError(
            f"tfds_input_fn.name is {name!r}: expected a data set of tensorflow_datasets, or of "
            f"data_dir={data_dir!r}.{did_you_mean(name, known)}"
        ) from error
    except AssertionError as error:  # It asserts that a version exists.
        raise errors.UserValueError(
            f"tfds_input_fn.name is {name!r}: expected a version that exists in "
            f"data_dir={data_dir!r} ({error})."
        ) from error
    if not builder.data_path.exists():
        if not download:
            raise errors.UserValueError(
                f"the data set {name!r} is not in {builder.data_path}. Set "
                "tfds_input_fn.download = True to download and prepare it there, or "
                "tfds_input_fn.data_dir to the folder of the data set."
            )
        builder.download_and_prepare()
    return builder


def _num_examples(builder: Any, split: str) -> int:
    try:
        return builder.info.splits[split].num_examples
    except (KeyError, ValueError) as error:
        raise errors.UserValueError(
            f"the data set {builder.info.full_name!r} has no split {split!r}: expected one of "
            f"{sorted(builder.info.splits)}, or a part such as 'train[:90%]'."
        ) from error


def _read(
    builder: Any,
    split: Any,
    *,
    as_supervised: bool,
    mode: str,
    shuffle_files: bool,
    seed: int | None,
) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    # Files are not mixed for predictions, which keep the order of the data set.
    in_order = mode == ModeKeys.PREDICT or builder.info.disable_shuffling
    config = _tfds().ReadConfig(
        options=options,
        try_autocache=False,
        skip_prefetch=True,
        shuffle_seed=seed,
        interleave_cycle_length=1 if in_order else 16,
    )
    return builder.as_dataset(
        split=split,
        as_supervised=as_supervised,
        shuffle_files=shuffle_files and not builder.info.disable_shuffling,
        read_config=config,
    )


def _map(dataset: tf.data.Dataset, preprocess: Callable[..., Any] | None) -> tf.data.Dataset:
    if preprocess is None:
        return dataset
    return dataset.map(preprocess, num_parallel_calls=tf.data.AUTOTUNE)


def _is_cached(dataset: tf.data.Dataset, num_examples: int, cache: bool | None) -> bool:
    """Returns whether to keep examples in memory.

    Raises:
      UserValueError: `cache` is True, and the shapes are not fixed.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    fixed = all(isinstance(s, tf.TensorSpec) and s.shape.is_fully_defined() for s in specs)
    if cache and not fixed:
        raise errors.UserValueError(
            f"tfds_input_fn.cache is True, and the examples are {dataset.element_spec}: expected "
            "fixed shapes. Set preprocess to a function that resizes them, or cache to None."
        )
    if cache is not None or not fixed or any(spec.dtype == tf.string for spec in specs):
        return bool(cache)
    num_bytes = sum(spec.shape.num_elements() * spec.dtype.size for spec in specs)
    return num_bytes * num_examples <= _MAX_BYTES_TO_CACHE
