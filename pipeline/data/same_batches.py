# SPDX-License-Identifier: Apache-2.0
"""Whether the processes that split global batches read the same ones.

The order of operations of tf.data is a function of the seed, unless the user asks for another.
Python code can yield anything, so its batches are compared by a hash.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from ..distribute.replicas import Replicas
from ..errors import UserValueError
from . import fingerprint

# Values of an array that are hashed, from all parts of it: a batch of images has 20 MB.
_NUM_VALUES = 1 << 14
# Operations of numpy_function, from_generator and py_function.
PYTHON_CALLS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
_WAY_OUT = (
    "each process takes its part of each batch, so some examples would be missing and others come "
    "twice."
)


def in_order(dataset: tf.data.Dataset, name: str) -> tf.data.Dataset:
    """Returns a dataset with the same order in all processes, as far as tf.data decides.

    Args:
      dataset: dataset of global batches.
      name: name of the input_fn, for messages.

    Raises:
      UserValueError: an operation has `deterministic=False`.
    """
    if found := fingerprint.out_of_order(dataset):
        raise UserValueError(
            f"{name} has deterministic=False in {found}: {_WAY_OUT} Leave out "
            "deterministic=False, or take input_context."
        )
    if dataset.options().deterministic is not False:
        return dataset
    logging.warning("%s sets options.deterministic = False, here True: %s", name, _WAY_OUT)
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def calls_python(dataset: tf.data.Dataset) -> bool:
    """Returns whether Python code makes the elements."""
    return any(node.op in PYTHON_CALLS for node in fingerprint.nodes_of_functions(dataset))


class Agreement:
    """The hashes of the batches that one iterator has read."""

    def __init__(self, replicas: Replicas, name: str) -> None:
        """Creates it for one iterator of the input_fn `name`."""
        self._replicas, self._name = replicas, name
        self._hashes = [0]  # Of all batches up to each.
        self._num_dropped = 0

    def watched(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a dataset that notes its elements as they are read."""

        def noted(*element: Any) -> Any:
            arrays = [x for x in tf.nest.flatten(element, expand_composites=True) if x is not None]
            tf.numpy_function(self._note, arrays, [])
            return element if len(element) > 1 else element[0]

        return dataset.map(noted)

    def check(self, num_batches: int) -> None:
        """Compares the first `num_batches` with those of all processes, which must call it.

        Raises:
          UserValueError: they differ.
        """
        number = min(num_batches - self._num_dropped, len(self._hashes) - 1)
        own = [self._num_dropped + number, self._hashes[number]]
        if len({tuple(each) for each in self._replicas.gather(own)}) > 1:
            raise UserValueError(
                f"{self._name} takes no input_context, and its Python code yields other batches "
                f"in some processes: {_WAY_OUT} Set the same seed in all processes, such as "
                "np.random.default_rng(0), or take input_context."
            )
        del self._hashes[:number]
        self._num_dropped += number

    def _note(self, *arrays: np.ndarray) -> Sequence[Any]:
        value = self._hashes[-1]
        for array in arrays:
            # An odd step, which meets all columns of a table.
            some = array.reshape(-1)[:: array.size // _NUM_VALUES | 1]
            data = repr(some.tolist()).encode() if some.dtype == object else some.tobytes()
            value = zlib.crc32(data, value)
        self._hashes.append(value)
        return []
