"""Large tables: cut into shards on several parameter servers, and gathered by rows.

A layer asks for shards, in a block of `sharding`. No other variable is cut: Keras'
layers and optimizers train whole variables only.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

Partitioner = Callable[..., Sequence[int]]

# The class of what `tf.Variable(...)` returns under a strategy with a partitioner. It
# is no `tf.Variable`, and TensorFlow documents it without a public name.
ShardedVariable = tf.__internal__.distribute.ShardedVariable

_asked = contextvars.ContextVar("asked", default=False)


@contextlib.contextmanager
def sharding() -> Iterator[None]:
    """Lets the strategy cut the variables that are made in the block, by their rows."""
    token = _asked.set(True)
    try:
        yield
    finally:
        _asked.reset(token)


def where_asked(partitioner: Partitioner) -> Partitioner:
    """Returns a partitioner that cuts in a block of `sharding`, and nowhere else.

    Args:
      partitioner: how to cut there, one of `tf.distribute.experimental.partitioners`.
    """

    def partition(shape: Any, dtype: Any, **options: Any) -> Sequence[int]:
        if _asked.get():
            return partitioner(shape, dtype, **options)
        return [1] * len(shape)

    return partition


def shards_of(variable: Any) -> list[Any]:
    """Returns the shards of a variable; a whole variable is its own only shard."""
    if isinstance(variable, ShardedVariable):
        return list(variable.variables)
    return [variable]


def let_gather(made: Iterable[Any]) -> None:
    """Lets `tf.gather` read only the rows that it gathers from mirrored variables.

    TensorFlow lets it for other variables. Of a mirrored one it reads all rows first,
    for which it copies the table where rows of it were updated.

    Args:
      made: variables of a strategy.
    """
    for variable in made:
        mirrored = isinstance(variable, tf.distribute.DistributedValues)
        if mirrored and getattr(variable, "trainable", False):
            variable.sparse_read = functools.partial(_gathered, variable)


def _gathered(variable: Any, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Returns rows of this replica's copy; in cross-replica context of the first."""
    replica, place = tf.distribute.get_replica_context(), 0
    copies = variable.values
    if replica is not None and len(copies) > 1:
        number = tf.get_static_value(replica.replica_id_in_sync_group)
        if number is None:  # Where one trace serves all replicas, as on a TPU.
            raise AttributeError("sparse_read")
        place = int(number) % len(copies)
    return copies[place].sparse_read(indices, name=name)
