# SPDX-License-Identifier: Apache-2.0
"""Keeps the random numbers of a run apart from those of the program around it.

Keras draws the seeds of initializers and of dropout from Python's generator, functions of the
user may draw from NumPy's, and tf.data draws from TensorFlow's seed. All belong to the process:
one thread at a time calls factories and input_fns, and traces the model_fn that creates
variables. Compiled steps draw from seeds that are part of their graph.
"""

import contextlib
import random
import threading
import zlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from .. import private

NO_SEED = 87654321  # What TensorFlow's get_seed returns if the program has set none.

_lock = threading.RLock()


@contextlib.contextmanager
def seeded(
    seed: int | None, name: str = "", *, clears: bool = False, base: int | None = None
) -> Iterator[None]:
    """Seeds Python, NumPy and TensorFlow in the block, and restores their states after it.

    Other threads wait.

    Args:
      seed: any int; None changes nothing.
      name: changes the seed, so that equal networks of other names get other weights.
      clears: whether `tf.random.normal` and the like begin again in the block if they were run
        with this seed before. Then those of compiled steps begin again as well.
      base: TensorFlow's seed, which operations combine with a seed of their own; None for `seed`.
    """
    with _lock:
        if seed is None:
            yield
            return
        seed = (seed + zlib.crc32(name.encode())) % 2**32
        python, numpy = random.getstate(), np.random.get_state()
        before = of_program()
        try:
            random.seed(seed)
            np.random.seed(seed)
            if clears:
                tf.random.set_seed(seed)
            private.set_eager_seed(seed, seed if base is None else base)
            yield
        finally:
            private.set_eager_seed(before, before)
            random.setstate(python)
            np.random.set_state(numpy)


def of_program() -> int | None:
    """Returns the seed of `tf.random.set_seed` or `keras.utils.set_random_seed`; None if unset."""
    seed, _ = tf.compat.v1.get_seed(0)
    return None if seed == NO_SEED else seed


def seed_graph(seed: int | None) -> None:
    """Seeds the random operations of the graph that is being traced; does nothing eagerly.

    Replicas in other processes, or in graphs of their own, draw other numbers.

    Args:
      seed: any int; None for the seed of the program.
    """
    if tf.executing_eagerly():
        return
    context = tf.distribute.get_replica_context()
    replica = tf.get_static_value(context.replica_id_in_sync_group) if context else 0
    if seed is None:
        with tf.init_scope():
            seed = of_program()
    if seed is not None:
        tf.random.set_seed(seed + int(replica or 0))
