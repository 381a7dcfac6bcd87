"""What is done to iterators over data besides reading them."""

import contextlib
import sys
import threading
from typing import Any

import tensorflow as tf

_IGNORE_EXTERNAL_STATE = 1


def skip(iterator: Any, number: int) -> None:
    """Takes elements, as many as there are, and drops them.

    An iterator of `dataset.skip()` would be saved as one of another dataset.
    """

    def drop(iterator: Any, number: tf.Tensor) -> None:
        def one(index: tf.Tensor) -> tf.Tensor:
            next(iterator)
            return index + 1

        tf.while_loop(lambda index: index < number, one, [tf.zeros([], tf.int64)])

    arguments = iterator, tf.constant(number, tf.int64)
    compiled = tf.function(drop, autograph=False).get_concrete_function(*arguments)
    with contextlib.suppress(tf.errors.OutOfRangeError):
        compiled(*arguments)


class TooLargeError(ValueError):
    """A dataset that holds too many data in memory to be written as a graph."""


def definition_of(dataset: tf.data.Dataset) -> tf.compat.v1.GraphDef:
    """Returns what `dataset` does as a graph, which holds data that are in memory.

    Raises:
      TooLargeError: it would be larger than TensorFlow can write.
    """
    return tf.compat.v1.GraphDef.FromString(serialized(dataset).numpy())


def serialized(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns the same as a string, which another process can read.

    Raises:
      TooLargeError: it would be larger than TensorFlow can write.
    """
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=_IGNORE_EXTERNAL_STATE,
        strip_device_assignment=True,
    )
    if not graph.numpy():
        # TensorFlow only logs it.
        raise TooLargeError(
            "the input holds more than 2 GB in memory, which TensorFlow cannot write "
            "as a graph: write the data to files, and read these "
            "(inputs.tfrecord_input_fn)."
        )
    return graph


def delete_in_background(box: list[Any]) -> None:
    """Empties a list of iterators that nobody else refers to.

    TensorFlow 2.21 keeps a deletion waiting until its autotuning thread wakes up next,
    which takes up to as long as the iterator has lived, a minute at the most.

    While the interpreter ends it deletes them at once: predictions that nobody closed
    are closed then, and a thread that is started then never runs (Python 3.11) or is
    refused (3.12 and later), and what waits for it would wait for ever.
    """
    if not sys.is_finalizing():
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=box.clear, daemon=True).start()
            return
    box.clear()
