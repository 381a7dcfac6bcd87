"""Applies gradients: each train op's turn, loss scale, clipping and optimizer.

Gradients that are all-reduced go in, and the variables change. Every replica clips and
applies the same gradient, so all of them keep the same values.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.contract.train_op import SpecError, TrainOp, check_gradients
from pipeline.mistakes.checks import kind_of
from pipeline.mistakes.user_errors import call
from pipeline.rows.optimizers import RowOptimizer
from pipeline.rows.slices import each_row_once, is_finite, of_one_dtype, times
from pipeline.strategy import loss_scale
from pipeline.strategy.loss_scale import LossScale


class Updates:
    """Updates the variables of train ops by gradients that are all-reduced."""

    def __init__(
        self,
        ops: Sequence[TrainOp],
        strategy: tf.distribute.Strategy,
        driver_state: Mapping[str, tf.Variable],
        *,
        sparse: bool,
    ) -> None:
        """Takes over the all-reduce from the ops' optimizers.

        Args:
          ops: all train ops.
          strategy: strategy of the ops' variables.
          driver_state: the driver's variables, with the ops' loss scales if losses are
            scaled.
          sparse: whether a table's gradient holds only the rows that were used.
        """
        self._ops = ops
        self._strategy = strategy
        self._sparse = sparse
        is_scaled = loss_scale.is_used(driver_state)
        numbers = range(len(ops)) if is_scaled else ()
        self._scales = [LossScale(driver_state, i) for i in numbers]
        by_optimizer: dict[int, list[TrainOp]] = {}
        for op in ops:
            _leave_reduction_to_us(op.optimizer)
            by_optimizer.setdefault(id(op.optimizer), []).append(op)
        self._optimizers = {
            key: RowOptimizer(mine, strategy) for key, mine in by_optimizer.items()
        }

    def scaled(self, index: int, objective: tf.Tensor) -> tf.Tensor:
        """Returns the objective whose gradient `apply` expects.

        Args:
          index: number of the op.
          objective: scalar that the op minimises.
        """
        return self._scales[index].scaled(objective) if self._scales else objective

    def factor(self, index: int) -> tf.Tensor | float:
        """Returns what takes the loss scale out of an op's gradient."""
        return self._scales[index].factor() if self._scales else 1.0

    def apply(
        self,
        active: Sequence[int],
        values: Sequence[Any],
        trained: Mapping[int, Sequence[Any]],
        step: tf.Tensor,
    ) -> None:
        """Applies each active op's gradient where its turn has come.

        Where losses are scaled, a gradient that is not finite is skipped, and lowers
        its op's scale. Where the op is not due, its scale stays.

        Args:
          active: numbers of the ops.
          values: gradients of these ops, means over all replicas.
          trained: variables of each gradient's values, by the number of the op.
          step: int64 scalar, updates made before.
        """
        for i, mine in zip(active, values, strict=True):
            due = turn(self._ops[i], step)
            if self._scales:
                mine, finite = self._unscaled(i, mine)
                self._scales[i].move(finite, True if due is None else due)
                due = finite if due is None else tf.logical_and(finite, due)
            if due is None:
                self._apply(i, mine, trained, step)
            else:
                given = i, mine, trained, step
                tf.cond(due, lambda given=given: self._apply(*given), lambda: True)

    def _apply(
        self, index: int, values: Any, trained: Mapping[int, Any], step: tf.Tensor
    ) -> bool:
        """Clips and applies one op's gradient; returns a value for `tf.cond`."""
        self._strategy.run(
            lambda v: self.apply_here([index], [v], trained, step), args=(values,)
        )
        return True

    def apply_here(
        self,
        active: Sequence[int],
        values: Sequence[Any],
        trained: Mapping[int, Sequence[Any]],
        step: tf.Tensor,
    ) -> None:
        """Clips and applies gradients, due or not; in replica context.

        Args:
          active: numbers of the ops.
          values: gradients of these ops, means over all replicas.
          trained: variables of each gradient's values, by the number of the op.
          step: int64 scalar, updates made before.
        """
        for i, mine in zip(active, values, strict=True):
            op = self._ops[i]
            mine = [each_row_once(g, sparse=self._sparse) for g in mine]
            mine, of = _changed(op, mine, trained[i], step)
            if op.clip_norm is not None:
                mine = _clipped(mine, op.clip_norm)
            where = f"optimizer {op.optimizer.name}, a {type(op.optimizer).__name__}"
            apply = self._optimizers[id(op.optimizer)].apply
            call(lambda w=where: w, apply, mine, of)

    def _unscaled(self, index: int, values: Any) -> tuple[Any, tf.Tensor]:
        """Takes the loss scale out of an op's gradient.

        Returns:
          The gradient by replica, and whether all of it is finite (bool scalar).
        """

        def on_replica(values: list[Any]) -> tuple[list[Any], tf.Tensor]:
            factor = self._scales[index].factor()
            unscaled = [times(value, factor) for value in values]
            return unscaled, tf.reduce_all([is_finite(each) for each in unscaled])

        values, per_replica = self._strategy.run(on_replica, args=(values,))
        # The gradient is all-reduced, so every replica comes to the same answer.
        return values, self._strategy.experimental_local_results(per_replica)[0]


def _clipped(values: Sequence[Any], norm: float) -> list[Any]:
    """Returns gradients of a global norm."""
    clipped, _ = tf.clip_by_global_norm(of_one_dtype(values), norm)
    return [tf.cast(c, g.dtype) for c, g in zip(clipped, values, strict=True)]


def _changed(
    op: TrainOp, values: Sequence[Any], trained: Sequence[Any], step: tf.Tensor
) -> tuple[list[Any], list[Any]]:
    """Returns the gradients that an op's own function makes, and their variables."""
    if op.gradient_fn is None:
        return list(values), list(trained)
    given = list(values), list(trained), step
    found = call(lambda: "TrainOp.gradient_fn", op.gradient_fn, *given)
    if not isinstance(found, (list, tuple)):
        raise SpecError(
            f"TrainOp.gradient_fn returned {kind_of(found)}: return a list of "
            "gradients, one for each variable."
        )
    pairs = zip(check_gradients(found, trained), trained, strict=True)
    kept = [(value, variable) for value, variable in pairs if value is not None]
    return [value for value, _ in kept], [variable for _, variable in kept]


def turn(op: TrainOp, step: tf.Tensor) -> tf.Tensor | None:
    """Returns whether an op is applied in the step after `step`.

    Args:
      op: train op.
      step: int64 scalar, updates made before.

    Returns:
      Bool scalar; None for an op that is applied in every step.
    """
    if len(op.at) == op.every:
        return None
    return tf.reduce_any(tf.equal((step + 1 - op.at) % op.every, 0))


def _leave_reduction_to_us(optimizer: keras.optimizers.Optimizer) -> None:
    """Lets a Keras optimizer clip and apply gradients that are all-reduced already.

    Keras clips before its own all-reduce. So several replicas would clip other
    gradients than one replica does. No public way turns that all-reduce off.
    """
    optimizer._all_reduce_sum_gradients = list
