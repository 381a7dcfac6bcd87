"""Large tables: cut into shards on several parameter servers, and gathered by rows.

A layer asks how to cut, and makes a Keras variable of each shard. They train as any
variables do, and are saved as one. No other variable is cut.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Partitioner = Callable[..., Sequence[int]]

# Variables that are saved as one. It is no `tf.Variable`, and TensorFlow documents it
# without a public name.
ShardedVariable = tf.__internal__.distribute.ShardedVariable

_strategy = contextvars.ContextVar("strategy", default=None)


class Table(ShardedVariable):
    """Keras variables that are the shards of one table.

    Attributes:
      parts: the Keras variables, in order of their rows.
    """

    def __init__(self, parts: Sequence[keras.Variable]) -> None:
        """Makes one variable of them.

        Args:
          parts: Keras variables, in order of their rows.
        """
        super().__init__([part.value for part in parts])
        self.parts = parts


@contextlib.contextmanager
def cut_by(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Has tables that are made in the block cut as the strategy says.

    Without a block it is the strategy of the scope; a trace is in none.
    """
    token = _strategy.set(strategy)
    try:
        yield
    finally:
        _strategy.reset(token)


def rows_of_shards(shape: tuple[int, int], dtype: str) -> list[int]:
    """Returns the number of rows of each shard of a table, as TensorFlow divides them.

    Args:
      shape: rows and columns of the table.
      dtype: dtype of its numbers.
    """
    strategy = _strategy.get() or tf.distribute.get_strategy()
    partitioner: Partitioner | None = getattr(strategy, "partitioner", None)
    if partitioner is None:
        return [shape[0]]
    count = partitioner(shape=tf.TensorShape(shape), dtype=tf.as_dtype(dtype))[0]
    rows, more = divmod(shape[0], count)
    return [rows + (i < more) for i in range(count)]


def join(parts: Sequence[keras.Variable]) -> None:
    """Has Keras variables saved as one, see `whole`."""
    if len(parts) > 1:
        for part in parts:
            part.shards = parts


def whole(variable: Any) -> Any:
    """Returns the `Table` that a Keras variable is a shard of; itself for another."""
    parts = getattr(variable, "shards", None)
    return variable if parts is None else Table(parts)


def without_later_shards(variables: Sequence[Any]) -> list[Any]:
    """Returns the variables, of each table the first shard alone."""
    return [v for v in variables if getattr(v, "shards", (v,))[0] is v]


def shards_of(variable: Any) -> list[Any]:
    """Returns the shards of a variable; a whole variable is its own only shard."""
    if isinstance(variable, ShardedVariable):
        return list(variable.variables)
    return [variable]


def assign(variable: Any, value: Any) -> None:
    """Sets a variable, whole or in shards, to a whole value.

    Args:
      variable: a `tf.Variable`, or one in shards, each of which takes its rows.
      value: array of the whole shape.
    """
    first = 0
    for shard in shards_of(variable):
        rows = shard.shape[0] if shard is not variable else None
        shard.assign(value if rows is None else value[first : first + rows])
        first += rows or 0


def value_of(variable: Any) -> np.ndarray:
    """Returns the whole value of a variable, whole or in shards, of the first replica.

    Args:
      variable: a `tf.Variable`, or one in shards.
    """
    parts = [first_copy(shard).numpy() for shard in shards_of(variable)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def first_copy(variable: Any) -> Any:
    """Returns the first replica's copy of a variable; itself where it has one value.

    Args:
      variable: a `tf.Variable`.
    """
    mirrored = isinstance(variable, tf.distribute.DistributedValues)
    return variable.values[0] if mirrored else variable


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
    copy = copy_here(variable)
    if copy is variable:
        raise AttributeError("sparse_read")  # TensorFlow reads all of it, then.
    return copy.sparse_read(indices, name=name)


def copy_here(variable: Any) -> Any:
    """Returns this replica's copy of a mirrored variable; without replicas the first.

    Args:
      variable: a `tf.Variable`; it is returned itself where it is not mirrored, or
        where one trace serves all replicas, as on a TPU.
    """
    if not isinstance(variable, tf.distribute.DistributedValues):
        return variable
    replica, place = tf.distribute.get_replica_context(), 0
    copies = variable.values
    if replica is not None and len(copies) > 1:
        number = tf.get_static_value(replica.replica_id_in_sync_group)
        if number is None:
            return variable
        place = int(number) % len(copies)
    return copies[place]
