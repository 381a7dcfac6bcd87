"""Keras' optimizers, on the rows that a gradient has.

The formula is Keras' own, see `row_update.py`. What is decided here is whether a
variable moves by it whole, or those rows alone.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from pipeline.contract.train_op import SpecError, TrainOp
from pipeline.rows import row_update
from pipeline.rows.shared_numbers import SharedNumbers
from pipeline.rows.slices import dense, of_one_dtype
from pipeline.strategy import variables
from pipeline.strategy.replicas import Replicas

_K = keras.optimizers
# Optimizers whose formula computes each row by itself.
_KNOWN = (
    _K.SGD,
    _K.Adagrad,
    _K.Ftrl,
    _K.Adam,
    _K.RMSprop,
    _K.Nadam,
    _K.Adamax,
    _K.Lion,
    _K.Adadelta,
)
# Those that divide by a slot that may be 0, or by its root.
_DIVIDING = (_K.Adam, _K.Nadam, _K.Adamax, _K.RMSprop)
# The cost of all rows of a table of this size is worth a line.
_LARGE_BYTES = 10_000_000
# Numbers that are settled at one time, which bounds the memory for them.
_SETTLED_AT_ONCE = 2**22


class RowOptimizer:
    """A Keras optimizer that moves the rows of a gradient alone.

    It does so where the optimizer's formula leaves all others where they are: SGD
    without momentum, Adagrad, and FTRL without shrinkage. The result is that of the
    dense gradient. FTRL computes weights of its slots and of the learning rate alone,
    whatever they were before. So it computes all rows anew after an update whose rate
    differs from that of the one before, as in the first; and in each update where
    something beside the formula writes to the rows.

    Of a lazy op it does so with all optimizers that it knows. The rows and their slots
    move as by the dense gradient, with the count of all updates; the other rows stay:
    neither momentum nor decay moves them.
    """

    def __init__(
        self, ops: Sequence[TrainOp], strategy: tf.distribute.Strategy
    ) -> None:
        """Finds out which rows the optimizer moves.

        Args:
          ops: all train ops of one optimizer.
          strategy: strategy of the ops' variables.

        Raises:
          SpecError: an op is lazy and its optimizer is not known to compute each row by
            itself, or has a loss_scale_factor; or another op of it is not lazy.
        """
        optimizer = ops[0].optimizer
        self._optimizer, self._kind = optimizer, type(optimizer)
        self._lazy = any(op.lazy for op in ops)
        formula = next((k for k in _KNOWN if _has_formula_of(k, optimizer)), None)
        _check(ops, formula)
        self._by_rows = self._lazy or _others_stay(ops, formula)
        # A formula of somebody's own may write to what is read once.
        self._numbers = SharedNumbers() if formula is not None else None
        # Workers of parameter servers update them at any time.
        self._shared = isinstance(strategy, tf.distribute.ParameterServerStrategy)
        self._divides = formula in _DIVIDING
        # RMSprop's velocity alone is safe, and falls so fast that the parts of ten
        # workers added up could be below 0.
        alone = formula is _K.RMSprop and not optimizer.centered
        self._held = self._divides and not alone
        self._speaks = Replicas.of(strategy).process == 0
        self._said: set[int] = set()
        # Ids of the variables whose rows are moved in the update under way.
        self._tables: set[int] = set()
        # By a variable's number, the learning rate that all rows were computed with.
        self._rates: dict[int, tf.Variable] = {}
        if self._by_rows and not self._lazy and formula is _K.Ftrl:
            self._rates = _rates(ops, strategy)

    def apply(self, gradients: Sequence[Any], trained: Sequence[Any]) -> None:
        """Updates variables; in replica context.

        Args:
          gradients: gradient by variable, no row twice.
          trained: the variables.
        """
        if self._optimizer.loss_scale_factor:  # Keras divides only tensors by it.
            gradients = [dense(gradient) for gradient in gradients]
        pairs = zip(gradients, trained, strict=True)
        tables = [v for g, v in pairs if _has_rows(g)]
        self._tables = {id(variables.raw(table)) for table in tables}
        for table in tables:
            self._say(table)
        # At each trace anew: another training may have put its own there.
        self._optimizer.update_step = self._update_step
        self._optimizer._clip_gradients = self._clip
        self._optimizer._apply_weight_decay = self._decay_others
        try:
            self._optimizer.apply(gradients, trained)
        finally:
            if self._numbers is not None:
                self._numbers.forget()

    def _update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Stands in the place of Keras' method; called for each device's variable."""
        if self._numbers is None:
            self._kind.update_step(self._optimizer, gradient, variable, learning_rate)
            return
        given = self._optimizer, learning_rate, variable.device
        with self._numbers.in_place_of(*given):
            self._update_known(gradient, variable, learning_rate)

    def _update_known(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates a variable by a formula that is known."""
        if not self._by_rows or not _has_rows(gradient):
            if self._shared and self._divides:
                self._update(dense(gradient), variable, learning_rate)
                return
            self._kind.update_step(self._optimizer, gradient, variable, learning_rate)
            return
        if self._lazy and self._decays(variable):
            rows = row_update.Rows(variable, gradient.indices, shared=self._shared)
            rate = tf.cast(learning_rate, rows.dtype)
            rows.assign_sub(
                rows * tf.cast(self._optimizer.weight_decay, rows.dtype) * rate
            )
        self._update(gradient, variable, learning_rate)
        if self._rates:
            number = self._optimizer._get_variable_index(variable)
            self._settle(variable, learning_rate, self._rates[number])

    def _update(self, gradient: Any, variable: Any, rate: Any) -> None:
        given = self._optimizer, gradient, variable, rate
        row_update.update(*given, shared=self._shared, held=self._held)

    def _clip(self, gradients: Sequence[Any]) -> list[Any]:
        """Clips as Keras does, which would make rows dense."""
        values = [g.values if _has_rows(g) else g for g in gradients]
        clipped = self._kind._clip_gradients(self._optimizer, of_one_dtype(values))
        clipped = [tf.cast(c, v.dtype) for c, v in zip(clipped, values, strict=True)]
        return [
            tf.IndexedSlices(value, g.indices, g.dense_shape) if _has_rows(g) else value
            for value, g in zip(clipped, gradients, strict=True)
        ]

    def _decays(self, variable: Any) -> bool:
        decays = self._optimizer.weight_decay is not None
        return decays and self._optimizer._use_weight_decay(variable)

    def _decay_others(self, trained: Sequence[Any]) -> None:
        """Decays as Keras does the variables of which not only some rows decay."""
        by_rows = self._tables if self._lazy else ()
        whole = [v for v in trained if id(variables.raw(v)) not in by_rows]
        self._kind._apply_weight_decay(self._optimizer, whole)

    def _settle(self, variable: Any, rate: Any, settled: tf.Variable) -> None:
        """Computes all rows by the rate where it has changed, a part at a time."""
        rate = tf.cast(rate, settled.dtype)
        num_rows = variable.shape[0]
        size = max(1, _SETTLED_AT_ONCE // max(1, variable.shape[1:].num_elements()))

        def some(first: tf.Tensor) -> tuple[tf.Tensor]:
            last = tf.minimum(first + size, num_rows)
            rows = tf.range(first, last)
            shape = tf.concat([[last - first], variable.shape[1:]], 0)
            # A gradient of 0 adds nothing to the slots.
            nothing = tf.IndexedSlices(tf.zeros(shape, variable.dtype), rows)
            self._update(nothing, variable, rate)
            return (last,)

        def all_rows() -> bool:
            tf.while_loop(
                lambda first: first < num_rows,
                some,
                [tf.constant(0)],
                parallel_iterations=1,
            )
            settled.assign(rate)
            return True

        # At first it is NaN, which equals nothing.
        tf.cond(tf.equal(settled, rate), lambda: False, all_rows)

    def _say(self, table: Any) -> None:
        """Says once what a large table costs in each update."""
        bytes_ = table.shape.num_elements() * tf.as_dtype(table.dtype).size
        if id(table) in self._said or bytes_ < _LARGE_BYTES or not self._speaks:
            return
        self._said.add(id(table))
        given = variables.given_rate(self._optimizer)
        if not self._by_rows:
            why = f"{self._kind.__name__} moves them all"
        elif self._rates and isinstance(given, _K.schedules.LearningRateSchedule):
            why = "Ftrl moves them all where a schedule changes its learning rate"
        elif not self._lazy and self._decays(variables.raw(table)):
            why = "the weight decay moves them all"
        else:
            return
        logging.warning(
            "Each update computes all %d rows of %s, and a batch uses few of them: %s. "
            "TrainOp(..., lazy=True) moves only the rows of a batch.",
            table.shape[0],
            table.name,
            why,
        )


def _has_rows(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def _has_formula_of(kind: type, optimizer: Any) -> bool:
    return type(optimizer).update_step is kind.update_step


def _others_stay(ops: Sequence[TrainOp], formula: type | None) -> bool:
    """Whether a row without a gradient stays where it is."""
    optimizer = ops[0].optimizer
    if formula is _K.SGD:
        return not optimizer.momentum
    if formula is _K.Ftrl:
        shrinks = optimizer.l2_shrinkage_regularization_strength
        return not shrinks and not _others_write(ops)
    return formula is _K.Adagrad


def _others_write(ops: Sequence[TrainOp]) -> bool:
    """Whether rows are written by more than the formula, which FTRL would undo."""
    optimizer = ops[0].optimizer
    constrained = [getattr(v, "constraint", None) for op in ops for v in op.variables]
    return bool(
        optimizer.weight_decay
        or (optimizer.use_ema and optimizer.ema_overwrite_frequency)
        or any(constrained)
    )


def _check(ops: Sequence[TrainOp], formula: type | None) -> None:
    optimizer, lazy = ops[0].optimizer, {op.lazy for op in ops}
    if len(lazy) > 1:
        raise SpecError(
            f"TrainOp.lazy is True and False in ops of one optimizer, {optimizer.name}:"
            " write lazy=True in all of them."
        )
    if lazy == {True} and optimizer.loss_scale_factor:
        raise SpecError(
            f"TrainOp.lazy is True, and optimizer {optimizer.name} has a "
            "loss_scale_factor, which takes no rows: leave it out, and write "
            "RunConfig(precision='mixed_float16') to have losses scaled."
        )
    if lazy == {True} and formula is None:
        known = ", ".join(kind.__name__ for kind in _KNOWN)
        raise SpecError(
            f"TrainOp.lazy is True, and {type(optimizer).__name__} may not compute "
            f"each row by itself: leave lazy out, or choose one of {known}."
        )


def _rates(
    ops: Sequence[TrainOp], strategy: tf.distribute.Strategy
) -> dict[int, tf.Variable]:
    """Returns, by a variable's number, the rate of its last update, which none was.

    They are in no checkpoint: the first update of a run computes all rows anew, for
    others may have set them.
    """
    found: dict[int, tf.Variable] = {}
    for variable in (variables.raw(v) for op in ops for v in op.variables):
        where = strategy.extended
        with tf.init_scope(), strategy.scope(), where.colocate_vars_with(variable):
            found[ops[0].optimizer._get_variable_index(variable)] = tf.Variable(
                float("nan"),
                trainable=False,
                name="settled_learning_rate",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
    return found
