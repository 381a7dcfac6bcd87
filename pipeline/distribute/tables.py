# SPDX-License-Identifier: Apache-2.0
"""Tables of vectors by id: read by rows, and cut into shards over parameter servers."""

import contextlib
import contextvars
import copy
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from . import names

# Keras draws by several operations, which take three times the memory, and TensorFlow keeps it.
# For a smaller table a trace would cost more.
_LARGE_BYTES = 32 * 2**20
# These draw each number by itself, so that a shard can be drawn without the others.
_BY_NUMBER = (
    keras.initializers.RandomUniform,
    keras.initializers.RandomNormal,
    keras.initializers.TruncatedNormal,
)

_strategy: contextvars.ContextVar[Any] = contextvars.ContextVar("strategy", default=None)


class EmbeddingTable:
    """A table in a layer, of which a step reads only the rows that it gathers.

    On parameter servers a table of at least `min_shard_bytes` is cut into shards, one on each
    server, with their slots. They have one name in checkpoints, which hold the table whole.

        self.table = ge.EmbeddingTable(self, "vectors", (rows, size), initializer="uniform")
        vectors = self.table.gather(ids)

    Attributes:
      parts: the Keras variables of the shards in the order of their rows, usually one.
    """

    def __init__(
        self,
        layer: keras.Layer,
        name: str,
        shape: tuple[int, int],
        *,
        initializer: Any = "uniform",
        regularizer: Any = None,
        constraint: Any = None,
    ) -> None:
        """Creates the variables.

        Args:
          layer: layer that owns them; its `variable_dtype` is that of the table.
          name: name of the variable.
          shape: number of rows and size of a vector.
          initializer: Keras initializer, or its name.
          regularizer: Keras regularizer of the whole table; such a table is not cut.
          constraint: Keras constraint of the whole table; such a table is not cut.
        """
        initializer = keras.initializers.get(initializer)
        whole = regularizer is not None or constraint is not None
        sizes = [shape[0]] if whole else rows_of_shards(shape, layer.variable_dtype)
        self.parts = [
            layer.add_weight(
                # Distinct, since Keras names slots by the variable.
                name=f"{name}_shard_{i}" if i else name,
                shape=(size, shape[1]),
                initializer=_initializer(initializer, sum(sizes[:i]), shape),
                regularizer=regularizer,
                constraint=constraint,
                autocast=False,
            )
            for i, size in enumerate(sizes)
        ]
        names.join(self.parts)

    @property
    def whole(self) -> Any:
        """The Keras variable; a `ShardedVariable` of a table that is cut."""
        return self.parts[0] if len(self.parts) == 1 else names.whole(self.parts)

    def gather(self, ids: Any) -> tf.Tensor:
        """Returns the rows of ids, `[*ids.shape, size]`; its gradient is tf.IndexedSlices.

        Args:
          ids: integers from 0 to the number of rows. Under XLA, which ignores checks, other ids
            give NaN.
        """
        parts = [_copy_here(part.value) for part in self.parts]
        # Of the variables, not of their values, of which TensorFlow would read all rows.
        rows = tf.nn.embedding_lookup(parts if parts[1:] else parts[0], ids)
        if not _xla.traces and not isinstance(
            tf.distribute.get_strategy(), tf.distribute.TPUStrategy
        ):
            return rows
        num_rows = sum(part.shape[0] for part in self.parts)
        return tf.where(((ids >= 0) & (ids < num_rows))[..., tf.newaxis], rows, math.nan)

    def numpy(self) -> np.ndarray:
        """Returns the values of all rows."""
        return np.concatenate([part.numpy() for part in self.parts])

    def assign(self, value: Any) -> None:
        """Sets all rows."""
        first = 0
        for part in self.parts:
            part.assign(value[first : first + part.shape[0]])
            first += part.shape[0]


def rows_of_shards(shape: tuple[int, int], dtype: Any) -> list[int]:
    """Returns the number of rows of each shard, as `tf.nn.embedding_lookup` divides them."""
    strategy = _strategy.get() or tf.distribute.get_strategy()
    partitioner = getattr(strategy, "table_partitioner", None)
    if partitioner is None:
        return [shape[0]]
    count = partitioner(shape=tf.TensorShape(shape), dtype=tf.as_dtype(dtype))[0]
    return [shape[0] // count + (i < shape[0] % count) for i in range(count)]


@contextlib.contextmanager
def cut_by(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Makes tables in the block cut as for `strategy`, in whose scope a trace is not."""
    token = _strategy.set(strategy)
    try:
        yield
    finally:
        _strategy.reset(token)


class _Xla(threading.local):
    traces = False


_xla = _Xla()


@contextlib.contextmanager
def traced_for_xla() -> Iterator[None]:
    """Marks a trace that XLA compiles; each replica has its own thread."""
    before, _xla.traces = _xla.traces, True
    try:
        yield
    finally:
        _xla.traces = before


def _copy_here(variable: Any) -> Any:
    """Returns this replica's copy of a mirrored variable, of which TensorFlow reads all rows."""
    if not isinstance(variable, tf.distribute.DistributedValues):
        return variable
    context = tf.distribute.get_replica_context()
    copies: Sequence[Any] = variable.values
    if context is None:
        return copies[0]
    replica = tf.get_static_value(context.replica_id_in_sync_group)
    return variable if replica is None else copies[int(replica) % len(copies)]


def _initializer(
    initializer: Any, first_row: int, shape: tuple[int, int]
) -> Callable[..., tf.Tensor]:
    """Returns the initializer of the shard that begins at a row of the table."""
    if isinstance(initializer, _BY_NUMBER):
        if first_row:  # With one seed all shards would begin with the same values.
            config = {**initializer.get_config(), "seed": initializer.seed + first_row}
            initializer = type(initializer).from_config(config)
        return lambda mine, dtype=None: _drawn(initializer, mine, dtype)

    def sliced(mine: Any, dtype: Any = None) -> tf.Tensor:
        # Other initializers depend on the shape, or return a table that was trained before.
        value = _drawn(initializer, shape, dtype)
        return value if mine[0] == shape[0] else value[first_row : first_row + mine[0]]

    return sliced


def _drawn(initializer: Any, shape: Sequence[int], dtype: Any) -> tf.Tensor:
    """Returns the initializer's values; a large table takes no other memory than its own."""
    is_small = math.prod(shape) * tf.as_dtype(dtype).size < _LARGE_BYTES
    if is_small or not isinstance(getattr(initializer, "seed", None), int):
        return initializer(shape, dtype=dtype)

    @tf.function(autograph=False)
    def draw(seed: tf.Tensor) -> tf.Tensor:
        drawing = copy.copy(initializer)
        drawing.seed = _Seed(seed)
        return drawing(shape, dtype=dtype)

    # As Keras makes a seed of a number.
    return draw(tf.constant([initializer.seed, 0], tf.int64))


class _Seed(keras.random.SeedGenerator):
    """A seed as a tensor; TensorFlow would fold the values of a constant one into the graph."""

    def __init__(self, value: tf.Tensor) -> None:
        """Takes the seed, and makes no variable."""
        self._value = value

    def next(self, ordered: bool = True) -> tf.Tensor:
        """Returns the seed."""
        return self._value
