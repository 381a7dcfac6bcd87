"""Keeps a run's random numbers apart from those of the program around it.

Keras draws the seeds of initializers and of dropout from Python's `random`, and a
factory or an input_fn may draw from NumPy's generator. A seeded run has both to itself
while it calls them; another thread's waits. In between `random` and `np.random` are the
program's own.
"""

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# The numbers are the process': of threads with models, one at a time draws.
_drawing = threading.RLock()


class Seeds:
    """The random numbers that a run of one seed draws."""

    def __init__(self, seed: int | None) -> None:
        """Starts the process's numbers at the seed; None leaves them as they are."""
        self._seed = seed
        self._state: Any = None
        if seed is not None:
            with undisturbed():
                keras.utils.set_random_seed(seed)
                self._state = _state()

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """Draws the run's random numbers in the block, from where it last stopped."""
        if self._state is None:
            with _drawing:
                yield
            return
        with undisturbed():
            _set_state(self._state)
            try:
                yield
            finally:
                self._state = _state()

    def seed_graph(self) -> None:
        """Seeds the operations of the graph under way, as the run's seed would.

        Another thread may have set TensorFlow's seed, one for all graphs, since then.
        """
        if self._seed is not None and not tf.executing_eagerly():
            tf.random.set_seed(self._seed)


@contextlib.contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Starts Python's and NumPy's random numbers at `seed`, in the block alone.

    Args:
      seed: seed of the block; None leaves the numbers as they are.
    """
    if seed is None:
        yield
        return
    with undisturbed():
        random.seed(seed)
        np.random.seed(seed)
        yield


def of_program() -> int | None:
    """Returns the seed that the program has set for TensorFlow, or None."""
    # `tf.random` can only set it.
    return tf.compat.v1.get_seed(None)[0]


@contextlib.contextmanager
def restarted(seed: int) -> Iterator[None]:
    """Starts all random numbers at `seed`, TensorFlow's for after the block as well."""
    with seeded(seed):
        # TensorFlow numbers the operations that follow, which is a part of their seeds:
        # this resets the number.
        tf.random.set_seed(seed)
        yield


@contextlib.contextmanager
def all_seeded(seed: int | None) -> Iterator[None]:
    """Starts TensorFlow's random numbers, too, at `seed`, in the block alone.

    Args:
      seed: seed of the block; None leaves the numbers as they are.
    """
    if seed is None:
        yield
        return
    with untouched(), restarted(seed):
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Restores Python's and NumPy's random numbers after the block."""
    with _drawing:
        before = _state()
        try:
            yield
        finally:
            _set_state(before)


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Restores TensorFlow's seed, too, after the block."""
    with undisturbed():
        before = of_program()
        try:
            yield
        finally:
            tf.random.set_seed(before)


def _state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
