"""Computes gradients, and keeps their weights, so that they can be added up."""

import dataclasses
from typing import Any

import tensorflow as tf

from pipeline.contract.train_op import SpecError, TrainOp
from pipeline.strategy import variables


@dataclasses.dataclass
class Gradient:
    """A gradient by variable, and the sum of weights that it counts with.

    Attributes:
      values: one tensor or IndexedSlices for each variable.
      weight: sum of weights, float32 scalar; a Python float where the shapes tell it.
    """

    values: list[Any]
    weight: Any

    def as_sum(self) -> "Gradient":
        """Turns a mean into a sum, dense, so that several can be added."""
        weight = tf.convert_to_tensor(self.weight, tf.float32)
        return Gradient([times(g, weight) for g in self.values], weight)

    def as_mean(self) -> "Gradient":
        """Turns a sum into the mean; zero where nothing had weight."""
        factor = tf.math.reciprocal_no_nan(self.weight)
        return Gradient([times(g, factor) for g in self.values], self.weight)


def gradient_of(
    tape: tf.GradientTape, objective: tf.Tensor, op: TrainOp
) -> tuple[list[Any], list[Any]]:
    """Computes the gradient by the variables of a TrainOp that the loss depends on.

    Args:
      tape: the tape that recorded `objective`.
      objective: scalar to minimise.
      op: the TrainOp whose variables are trained.

    Returns:
      The gradient's values, and the variables of each.

    Raises:
      SpecError: the loss depends on no variable, or a variable is there twice.
    """
    raw = [variables.raw(v) for v in op.variables]
    twice = [v.name for i, v in enumerate(raw) if any(v is w for w in raw[:i])]
    if twice:
        raise SpecError(
            f"TrainOp.variables holds {twice} twice, which would be updated twice: "
            "hand in each once."
        )
    values = tape.gradient(objective, raw)
    # Keras' optimizers drop a None for themselves, but weights and norms need numbers.
    present = [i for i, value in enumerate(values) if value is not None]
    if not present:
        names = [v.name for v in op.variables]
        raise SpecError(
            f"the loss depends on none of TrainOp.variables {names}: was it computed "
            "from the network's output inside of model_fn?"
        )
    return [values[i] for i in present], [op.variables[i] for i in present]


def each_row_once(gradient: Any, *, sparse: bool = True) -> Any:
    """Adds up repeated rows of a gradient.

    Keras' optimizers would square each of them by itself, where the square of their sum
    is right.

    Args:
      gradient: tensor or IndexedSlices, also of several replicas.
      sparse: whether slices stay slices. A TPU needs False, for the number of distinct
        rows is not known before they are computed.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if not sparse:
        return tf.convert_to_tensor(gradient)
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def times(gradient: Any, factor: tf.Tensor) -> tf.Tensor:
    """Multiplies a gradient by a scalar, and makes it dense."""
    dense = tf.convert_to_tensor(gradient)
    return dense * tf.cast(factor, dense.dtype)
