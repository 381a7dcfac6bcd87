"""An embedding whose table may lie on several parameter servers."""

import itertools
from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline import RefusedValueError
from pipeline.strategy import sharding

_numbers = itertools.count()


@gin.configurable
class ShardedEmbedding(tf.Module):
    """A table of vectors by id, of which each parameter server holds a part.

    `keras.layers.Embedding` works on every strategy, too, but keeps its table in one
    place. `ShardedEmbedding` is for a table that is too large or too busy for one
    server. It is not a Keras layer, so model_fn names its variables:

        TrainOp(optimizer, [*network.trainable_variables, *table.trainable_variables])

    A checkpoint holds the table whole, so that it is restored to any number of servers,
    or to none.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        embeddings_initializer: Any = "uniform",
        name: str | None = None,
    ) -> None:
        """Creates the table, under parameter servers in shards.

        Args:
          input_dim: number of ids, which count from 0.
          output_dim: size of a vector.
          embeddings_initializer: a Keras initializer, or its name.
          name: name of the module.

        Raises:
          ValueError: a dimension is not positive.
        """
        if input_dim < 1 or output_dim < 1:
            raise RefusedValueError(
                f"input_dim={input_dim} and output_dim={output_dim}: write positive "
                "numbers."
            )
        super().__init__(name=name)
        initializer = keras.initializers.get(embeddings_initializer)
        shape = (input_dim, output_dim)

        # TensorFlow calls it once for each shard, with the shard's shape and first row.
        def initial_value(
            partition_shape: Any = shape, partition_offset: Any = (0, 0)
        ) -> tf.Tensor:
            of_shard = _reseeded(initializer, partition_offset[0])
            return of_shard(tuple(partition_shape), "float32")

        with sharding.sharding():
            self.table = tf.Variable(
                initial_value,
                shape=shape,
                dtype=tf.float32,
                # Optimizers name their slots after it: two tables need two names.
                name=f"{self.name}_{next(_numbers)}",
            )

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the vectors of `ids`, float32 `[*ids.shape, output_dim]`.

        Args:
          ids: integers of any shape, below `input_dim`.
        """
        if isinstance(
            self.table, tf.Variable
        ):  # Its lookup reads a mirrored one whole.
            return tf.gather(self.table, ids)
        return tf.nn.embedding_lookup(self.table, ids)


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
