"""Cuts large tables into shards, which lie on several parameter servers.

A layer asks for it, in a block of `sharding`. No other variable is cut: Keras' layers
and optimizers train whole variables only.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
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
