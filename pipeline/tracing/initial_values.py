"""Initial values of large tables, made in no more memory than they take.

Keras computes them op by op: a table that it draws takes three times its size for a
moment, and Adagrad's slot twice. TensorFlow keeps that memory for good.
"""

import copy
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contract.train_op import SpecError

# Smaller ones are not worth a trace.
_LARGE_BYTES = 32 * 2**20


def lean(initializer: Any) -> Callable[..., tf.Tensor]:
    """Returns an initializer of the same values that makes nothing else of their size.

    Args:
      initializer: function of a shape and a dtype; Keras' own are known, and others are
        called as they are.
    """

    def initial(shape: Any, dtype: Any = None) -> tf.Tensor:
        dtype = dtype or keras.config.floatx()
        size = tf.as_dtype(dtype).size * np.prod([int(n) for n in shape], dtype=float)
        if size < _LARGE_BYTES:
            return initializer(shape, dtype=dtype)
        if isinstance(initializer, keras.initializers.Constant):
            return keras.ops.full(shape, initializer.value, dtype=dtype)
        if isinstance(getattr(initializer, "seed", None), int):
            return _drawn(initializer, shape, dtype)
        return initializer(shape, dtype=dtype)

    return initial


def build_slots(optimizer: keras.optimizers.Optimizer, trained: list[Any]) -> None:
    """Builds an optimizer, as its `build` does.

    Args:
      optimizer: optimizer without slots.
      trained: variables to make slots for.

    Raises:
      SpecError: the variables were created outside of the strategy.
    """
    add = optimizer.add_variable_from_reference

    def add_lean(
        reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Any:
        initializer = lean(keras.initializers.get(initializer))
        return add(reference_variable, name=name, initializer=initializer)

    optimizer.add_variable_from_reference = add_lean
    try:
        optimizer.build(trained)
    except ValueError as error:
        if "colocate_vars_with" not in str(error):
            raise
        raise SpecError(
            f"TrainOp.variables {[v.path for v in trained]} were created outside of "
            "the strategy: build the model inside of its factory, "
            "def make_network(): return keras.Sequential([...]), not before."
        ) from error
    finally:
        del optimizer.add_variable_from_reference


class _Seed(keras.random.SeedGenerator):
    """A seed that is a tensor: of a number TensorFlow draws ahead, into a constant."""

    def __init__(self, value: tf.Tensor) -> None:
        """Takes the seed; makes no variable, as Keras' own would."""
        self._value = value

    def next(self, ordered: bool = True) -> tf.Tensor:
        """Returns the seed."""
        return self._value


def _drawn(initializer: Any, shape: Any, dtype: Any) -> tf.Tensor:
    """Draws in one function, whose operations write to each other's memory."""

    @tf.function(autograph=False)
    def draw(seed: tf.Tensor) -> tf.Tensor:
        drawing = copy.copy(initializer)
        drawing.seed = _Seed(seed)
        return drawing(shape, dtype=dtype)

    # As Keras makes a seed of a number.
    return draw(tf.constant([initializer.seed, 0], tf.int64))
