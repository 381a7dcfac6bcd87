# SPDX-License-Identifier: Apache-2.0
"""Optimizers that a program wrote itself.

The program calls them in its model_fn, where each replica has its own gradient. So the call is
recorded there, and runs in the update of the step on the gradient of all replicas.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from . import optimizers
from . import trace as traces
from .updates import Own


class Optimizer(optimizers.Optimizer):
    """`tf.train.Optimizer`, for subclasses of a program.

    A subclass has an `apply_gradients` with assignments, or the parts of TensorFlow's: `_prepare`,
    `_create_slots`, `_apply_dense`, `_apply_sparse` or their `_resource_` forms, and `_finish`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = vars(cls)
        if "apply_gradients" in own:
            cls.apply_gradients = _recorded(own["apply_gradients"])
        elif {"_apply_dense", "_resource_apply_dense"} & own.keys():
            cls.apply_gradients = _recorded(_apply_parts)

    def get_slot(self, var: Any, name: str) -> Any:
        """Returns a slot of a variable: `_get_or_make_slot` and `_zeros_slot` create it."""
        return self._slot(var, name)

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        """Creates no slots."""

    def _prepare(self) -> None:
        """Prepares nothing."""

    def _finish(self, update_ops: Sequence[Any], name_scope: str) -> Any:
        return tf.group(*update_ops)

    def _call_if_callable(self, param: Any) -> Any:
        return param() if callable(param) else param

    def _get_or_make_slot(self, var: Any, val: Any, slot_name: str, op_name: str) -> Any:
        return self._slot(var, slot_name, lambda *_, **__: tf.convert_to_tensor(val), op_name)

    def _zeros_slot(self, var: Any, slot_name: str, op_name: str) -> Any:
        return self._slot(var, slot_name, tf1.zeros_initializer(), op_name)

    def _slot(self, var: Any, name: str, initializer: Any = None, op_name: str = "") -> Any:
        """Returns a slot, `w/Momentum` in checkpoints; a second one of this name is numbered."""
        names = self.__dict__.setdefault("_slot_names", {}).setdefault(var.op.name, {})
        if name not in names:
            same = sum(each.rpartition("/")[2].startswith(op_name) for each in names.values())
            names[name] = f"{var.op.name}/{op_name}" + (f"_{same}" if same else "")
        with tf1.variable_scope(tf1.get_variable_scope(), reuse=tf1.AUTO_REUSE):
            return tf1.get_variable(
                names[name], var.shape.as_list(), initializer=initializer, trainable=False
            )


def _apply_parts(optimizer: Any, grads_and_vars: Any, global_step: Any = None) -> Any:
    """Calls the parts of an optimizer, as TensorFlow's `apply_gradients` does."""
    pairs = list(grads_and_vars)
    optimizer._create_slots([v for _, v in pairs])
    optimizer._prepare()
    dense = getattr(optimizer, "_resource_apply_dense", None) or optimizer._apply_dense
    sparse = getattr(optimizer, "_apply_sparse", None)
    updates = []
    for gradient, variable in pairs:
        is_sparse = isinstance(gradient, tf.IndexedSlices) and sparse is not None
        value = gradient if is_sparse else tf.convert_to_tensor(gradient)
        updates.append((sparse if is_sparse else dense)(value, variable))
    return optimizer._finish(updates, optimizer.get_name())


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that records the call, after a try that creates the variables."""

    @functools.wraps(function)
    def apply_gradients(
        self: Any, grads_and_vars: Any, global_step: Any = None, name: Any = None
    ) -> Any:
        trace = traces.needed("train.Optimizer.apply_gradients")
        if trace.is_applying:
            return function(self, grads_and_vars, global_step)
        pairs = [(gradient, v) for gradient, v in grads_and_vars if gradient is not None]
        scope, takes_step = tf1.get_variable_scope(), global_step is not None
        own = Own(self, function, pairs, scope, trace.model, takes_step)
        own.call(self, pairs, trace)
        return trace.mark(own)

    return apply_gradients
