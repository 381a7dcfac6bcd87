# SPDX-License-Identifier: Apache-2.0
"""Updates of the rows of a table that have a gradient.

A batch uses few rows of a large table. Its gradient is tf.IndexedSlices, and an update costs as
much as these rows. The formula is Keras' own, computed on the rows as if they were the variable:
faster than TensorFlow's sparse kernels, and the same for all optimizers.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from .. import private
from ..contract.train_op import TrainOp
from ..distribute.names import variable_of
from ..errors import SpecError
from . import indexed_slices, kernels

_Optimizers = keras.optimizers
# Optimizers whose formula computes each row by itself.
_BY_ROW = (
    _Optimizers.SGD,
    _Optimizers.Adagrad,
    _Optimizers.Ftrl,
    _Optimizers.Adam,
    _Optimizers.AdamW,
    _Optimizers.Nadam,
    _Optimizers.Adamax,
    _Optimizers.RMSprop,
    _Optimizers.Adadelta,
    _Optimizers.Lion,
)
# Updating all rows of a table of this size takes longer than a small network.
_LARGE_TABLE = 10_000_000


class RowOptimizer:
    """Applies a train op's gradients; of a table it moves only the rows of its gradient.

    It does so for SGD without momentum and Adagrad, where the result is that of the dense
    gradient; for Ftrl, whose other rows Keras would compute again from their slots; and for all
    optimizers above if the op is lazy. Then no momentum, average or decay moves other rows.
    """

    def __init__(self, op: TrainOp) -> None:
        """Prepares the op's optimizer.

        Raises:
          SpecError: the op is lazy, and its optimizer may mix rows.
        """
        self._op = op
        self._optimizer = op.optimizer
        self._kind = type(op.optimizer)
        self._moves_rows = moves_rows(op)
        self._powers: kernels.Powers = {}
        if op.lazy and not any(self._kind.update_step is each.update_step for each in _BY_ROW):
            raise SpecError(
                f"TrainOp.lazy is True, and optimizer is {self._kind.__name__}, which may mix "
                f"rows: expected one of {[each.__name__ for each in _BY_ROW]}. Set lazy=False."
            )
        self._optimizer.update_step = self._update_step
        private.clip_by(self._optimizer, functools.partial(_clipped, self._optimizer))

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Updates variables by gradients over all replicas, no row twice, in replica context."""
        pairs = zip(gradients, variables, strict=True)
        by_rows = [v for g, v in pairs if self._op.lazy and indexed_slices.are_rows(g)]
        private.decay_without(self._optimizer, by_rows)
        self._powers = {}
        self._optimizer.apply(gradients, variables)

    def _update_step(self, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        """Replaces Keras' method, which gets the variable of each device."""
        if not self._moves_rows or not indexed_slices.are_rows(gradient):
            whole = indexed_slices.dense(gradient, variable)
            if kernels.replaces_formula(self._optimizer, variable):
                kernels.update(self._optimizer, variable, whole, learning_rate, self._powers)
            else:
                self._kind.update_step(self._optimizer, whole, variable, learning_rate)
            return
        rows = _Rows(variable, gradient.indices)
        if self._op.lazy and private.decays(self._optimizer, variable):
            factor = tf.cast(self._optimizer.weight_decay * learning_rate, rows.dtype)
            rows.assign_sub(rows * factor)
        twin = private.with_slots(
            self._optimizer, variable, lambda slot: _Rows(slot.value, gradient.indices)
        )
        self._kind.update_step(twin, gradient.values, rows, learning_rate)


def moves_rows(op: TrainOp) -> bool:
    """Returns whether an op moves only the rows of a gradient that is of rows."""
    kind, optimizer = type(op.optimizer), op.optimizer
    if kind.update_step is keras.optimizers.SGD.update_step:
        return op.lazy or not optimizer.momentum
    exact = (keras.optimizers.Adagrad, keras.optimizers.Ftrl)
    return op.lazy or any(kind.update_step is each.update_step for each in exact)


def log_whole_updates(op: TrainOp, gradients: Mapping[int, Any]) -> None:
    """Warns once of a large table of which a batch uses some rows, and the op moves all."""
    reason = f"{type(op.optimizer).__name__} moves all of them"
    for index, gradient in gradients.items():
        variable = op.variables[index]
        if op.lazy or not indexed_slices.are_rows(gradient):
            continue
        row_bytes = gradient.values.shape[1:].num_elements() * gradient.dtype.size
        if variable.shape[0] * row_bytes < _LARGE_TABLE:
            continue
        if moves_rows(op):
            if not private.decays(op.optimizer, variable_of(variable)):
                continue
            reason = "the weight decay moves all of them"
        _warn_once(getattr(variable, "path", variable.name), variable.shape[0], reason)


@functools.cache
def _warn_once(name: str, num_rows: int, reason: str) -> None:
    logging.warning(
        "Each step updates all %d rows of %s, of which a batch uses some: %s. Set "
        "TrainOp(..., lazy=True) to move only the rows of the batch.",
        num_rows,
        name,
        reason,
    )


class _Rows:
    """Some rows of a variable, with the methods that formulas of optimizers call.

    Attributes:
      dtype: dtype of the variable.
      shape: `[None, ...]`.
    """

    def __init__(self, variable: tf.Variable, indices: tf.Tensor) -> None:
        """Takes the variable of this device, and the numbers of its rows, none twice."""
        self._handle, self._indices = variable.handle, indices
        self.dtype = variable.dtype
        self.shape = tf.TensorShape([None, *variable.shape[1:]])
        self._value: tf.Tensor | None = None

    def read(self) -> tf.Tensor:
        if self._value is None:
            # Not tf.gather, which reads all of some kinds of variables.
            value = tf.raw_ops.ResourceGather(
                resource=self._handle, indices=self._indices, dtype=self.dtype
            )
            self._value = tf.ensure_shape(value, self.shape)
        return self._value

    def assign(self, value: Any) -> None:
        self._value = tf.cast(tf.convert_to_tensor(value), self.dtype)
        tf.raw_ops.ResourceScatterUpdate(
            resource=self._handle, indices=self._indices, updates=self._value
        )

    def assign_add(self, delta: Any) -> None:
        # To add in place is slower: its kernel takes one row after the other.
        self.assign(self.read() + tf.cast(tf.convert_to_tensor(delta), self.dtype))

    def assign_sub(self, delta: Any) -> None:
        self.assign(self.read() - tf.cast(tf.convert_to_tensor(delta), self.dtype))

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.read(), dtype=dtype, name=name)

    def __mul__(self, other: Any) -> tf.Tensor:
        return self.read() * other

    def __add__(self, other: Any) -> tf.Tensor:
        return self.read() + other

    def __sub__(self, other: Any) -> tf.Tensor:
        return self.read() - other

    __rmul__, __radd__ = __mul__, __add__


def _clipped(optimizer: Any, gradients: Sequence[Any]) -> Sequence[Any]:
    """Returns gradients clipped by the optimizer's options; Keras would make rows dense."""
    if norm := optimizer.clipnorm:
        return [indexed_slices.clip_by_global_norm([each], norm)[0] for each in gradients]
    if norm := optimizer.global_clipnorm:
        return indexed_slices.clip_by_global_norm(gradients, norm)
    if limit := optimizer.clipvalue:
        values = [
            tf.clip_by_value(indexed_slices.values_of(each), -limit, limit) for each in gradients
        ]
        return [indexed_slices.with_values(*pair) for pair in zip(gradients, values, strict=True)]
    return gradients
