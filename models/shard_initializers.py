"""Initializers of the shards of a table, which begin as the whole table would."""

from typing import Any

import keras
import tensorflow as tf

from pipeline.tracing.initial_values import lean

# They draw each number by itself: a shard's are drawn without the others.
_BY_NUMBER = (
    keras.initializers.RandomUniform,
    keras.initializers.RandomNormal,
    keras.initializers.TruncatedNormal,
    keras.initializers.Zeros,
    keras.initializers.Ones,
)


def of_shard(initializer: Any, start: int, shape: tuple[int, int]) -> Any:
    """Returns the initializer of the shard that begins with a row of the table.

    Args:
      initializer: that of the table.
      start: the shard's first row.
      shape: shape of the table.
    """

    if isinstance(initializer, _BY_NUMBER):
        return lean(_reseeded(initializer, start))

    def sliced(of_shard: Any, dtype: Any = None) -> tf.Tensor:
        # Its numbers depend on the table's shape, as those of "glorot_uniform" do.
        return lean(initializer)(shape, dtype=dtype)[start : start + of_shard[0]]

    return sliced


def _reseeded(
    initializer: keras.initializers.Initializer, offset: int
) -> keras.initializers.Initializer:
    """Returns the initializer with another seed for each shard.

    A Keras initializer draws the same values at each call, so that all shards would
    begin alike.
    """
    seed = getattr(initializer, "seed", None)
    if not offset or not isinstance(seed, int):
        return initializer
    config = {**initializer.get_config(), "seed": seed + offset}
    return type(initializer).from_config(config)
