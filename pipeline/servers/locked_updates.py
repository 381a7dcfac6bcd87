# SPDX-License-Identifier: Apache-2.0
"""Updates that several workers of parameter servers make at the same time, without losing any.

Keras computes a new value from the old one and writes it: of two workers that do so at the same
time, one overwrites the update of the other. TensorFlow's kernels lock the variable.
"""

from typing import Any

import keras
import tensorflow as tf

from .. import private
from ..contract.train_op import TrainOp
from ..distribute.names import variable_of
from ..errors import UserValueError
from ..train import indexed_slices
from ..train.kernels import BY_ROWS, KERNELS, VariableUpdate
from ..train.row_updates import moves_rows


def lock(op: TrainOp, strategy: tf.distribute.Strategy) -> None:
    """Makes the op's built optimizer update by kernels that lock.

    Raises:
      UserValueError: the optimizer, or one of its options, has no such kernel.
    """
    optimizer = op.optimizer
    if getattr(optimizer, "locks_updates", False):
        return
    kernel = KERNELS.get(type(optimizer))
    problem = None
    if kernel is None:
        problem = f"expected one of {[each.__name__ for each in KERNELS]}"
    elif op.lazy and type(optimizer) not in BY_ROWS:
        problem = f"with lazy=True: expected one of {[each.__name__ for each in BY_ROWS]}"
    elif optimizer.use_ema:
        problem = "with use_ema: expected none"
    elif any(getattr(variable, "constraint", None) for variable in op.variables):
        problem = "and a variable has a constraint: expected none"
    if problem:
        raise UserValueError(
            f"TrainOp.optimizer is {type(optimizer).__name__} on parameter servers, {problem}, "
            "since workers would overwrite each other's updates. Set "
            "parameter_server.allow_lost_updates = True to train all the same."
        )
    zeros: dict[int, tf.Variable] = {}
    if isinstance(optimizer, keras.optimizers.RMSprop) and not optimizer.momentum:
        # The kernel writes the momentum, which is 0 times the last one plus this update.
        for variable in map(variable_of, op.variables):
            with strategy.scope(), strategy.extended.colocate_vars_with(variable):
                empty = tf.Variable(tf.zeros_like(variable), trainable=False)
            zeros[id(private.slots_of(optimizer, variable)["_velocities"])] = empty

    by_rows = moves_rows(op)

    def update_step(gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        if not by_rows:
            gradient = indexed_slices.dense(gradient, variable)
        slots = private.slots_of(optimizer, variable).values()
        empty = next((zeros[id(each)] for each in slots if id(each) in zeros), None)
        one = VariableUpdate(optimizer, variable, gradient, learning_rate, zeros=empty)
        if op.lazy and indexed_slices.are_rows(gradient) and private.decays(optimizer, variable):
            one.decay()
        kernel(one)

    optimizer.update_step = update_step
