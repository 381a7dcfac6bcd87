"""Updates that several workers of parameter servers make at the same time, without losing any.

Keras computes a new value from the old one and writes it: of two workers that do so at the same
time, one overwrites the update of the other. TensorFlow's kernels lock the variable while they
update it. They compute the same as Keras to float32's precision.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ..contract.train_op import TrainOp
from ..distribute.names import variable_of
from ..errors import UserValueError
from . import slices
from .rows import decays, moves_rows

_raw = tf.raw_ops


class _Update:
    """A variable, its gradient, slots and hyperparameters, as a kernel takes them.

    Attributes:
      optimizer: optimizer of the variable.
      variable: variable to update.
      gradient: tensor, or tf.IndexedSlices to update only these rows.
      rate: learning rate in the dtype of the variable.
      zeros: variable that takes the place of a slot, or None.
    """

    def __init__(
        self,
        optimizer: Any,
        variable: tf.Variable,
        gradient: Any,
        rate: Any,
        zeros: tf.Variable | None,
    ) -> None:
        self.optimizer = optimizer
        self.variable = variable
        self.gradient = gradient
        self.rate = self.number(rate)
        self.zeros = zeros
        self._index = optimizer._get_variable_index(variable)

    def slot(self, name: str) -> tf.Tensor:
        """Returns the handle of the slot in the optimizer's list `name`."""
        return variable_of(getattr(self.optimizer, name)[self._index]).handle

    def number(self, value: Any) -> tf.Tensor:
        """Returns a hyperparameter in the dtype of the variable."""
        return tf.cast(value, self.variable.dtype)

    def power(self, beta: float) -> tf.Tensor:
        """Returns `beta` to the power of this update's number."""
        return tf.pow(self.number(beta), self.number(self.optimizer.iterations.value + 1))

    def apply(self, name: str, **arguments: Any) -> None:
        """Calls the kernel of this name for all rows, or for those of the gradient."""
        kind = "Resource"
        if slices.are_rows(self.gradient):
            kind = "ResourceSparse"
            arguments["indices"] = self.gradient.indices
        getattr(_raw, kind + name)(
            var=self.variable.handle,
            grad=self.number(slices.values_of(self.gradient)),
            lr=self.rate,
            use_locking=True,
            **arguments,
        )

    def subtract(self, delta: tf.Tensor) -> None:
        """Subtracts from the rows of the gradient."""
        _raw.ResourceScatterNdSub(  # ResourceScatterSub loses updates.
            ref=self.variable.handle,
            indices=self.gradient.indices[:, tf.newaxis],
            updates=delta,
            use_locking=True,
        )

    def decay(self) -> None:
        """Decays the rows of the gradient."""
        rows = _raw.ResourceGather(
            resource=self.variable.handle,
            indices=self.gradient.indices,
            dtype=self.variable.dtype,
        )
        self.subtract(rows * self.number(self.optimizer.weight_decay) * self.rate)


def _sgd(u: _Update) -> None:
    optimizer = u.optimizer
    if optimizer.momentum:
        u.apply(
            "ApplyKerasMomentum",
            accum=u.slot("momentums"),
            momentum=u.number(optimizer.momentum),
            use_nesterov=optimizer.nesterov,
        )
    elif slices.are_rows(u.gradient):
        u.subtract(u.rate * u.number(u.gradient.values))
    else:
        _raw.ResourceApplyGradientDescent(
            var=u.variable.handle, alpha=u.rate, delta=u.number(u.gradient), use_locking=True
        )


def _adagrad(u: _Update) -> None:
    epsilon = u.number(u.optimizer.epsilon)
    u.apply("ApplyAdagradV2", accum=u.slot("_accumulators"), epsilon=epsilon)


def _ftrl(u: _Update) -> None:
    optimizer = u.optimizer
    u.apply(
        "ApplyFtrlV2",
        accum=u.slot("_accumulators"),
        linear=u.slot("_linears"),
        l1=u.number(optimizer.l1_regularization_strength),
        l2=u.number(optimizer.l2_regularization_strength) + optimizer.beta / (2 * u.rate),
        l2_shrinkage=u.number(optimizer.l2_shrinkage_regularization_strength),
        lr_power=u.number(optimizer.learning_rate_power),
    )


def _adam(u: _Update) -> None:
    optimizer = u.optimizer
    arguments = {
        "m": u.slot("_momentums"),
        "v": u.slot("_velocities"),
        "beta1_power": u.power(optimizer.beta_1),
        "beta2_power": u.power(optimizer.beta_2),
        "beta1": u.number(optimizer.beta_1),
        "beta2": u.number(optimizer.beta_2),
        "epsilon": u.number(optimizer.epsilon),
    }
    if optimizer.amsgrad:
        u.apply("ApplyAdamWithAmsgrad", vhat=u.slot("_velocity_hats"), **arguments)
    else:
        u.apply("ApplyAdam", **arguments)


def _adamax(u: _Update) -> None:
    optimizer = u.optimizer
    u.apply(
        "ApplyAdaMax",
        m=u.slot("_m"),
        v=u.slot("_u"),
        beta1_power=u.power(optimizer.beta_1),
        beta1=u.number(optimizer.beta_1),
        beta2=u.number(optimizer.beta_2),
        epsilon=u.number(optimizer.epsilon),
    )


def _adadelta(u: _Update) -> None:
    u.apply(
        "ApplyAdadelta",
        accum=u.slot("_accumulated_grads"),
        accum_update=u.slot("_accumulated_delta_vars"),
        rho=u.number(u.optimizer.rho),
        epsilon=u.number(u.optimizer.epsilon),
    )


def _rmsprop(u: _Update) -> None:
    optimizer = u.optimizer
    arguments = {
        "ms": u.slot("_velocities"),
        "mom": u.slot("_momentums") if u.zeros is None else u.zeros.handle,
        "rho": u.number(optimizer.rho),
        "momentum": u.number(optimizer.momentum),
        "epsilon": u.number(optimizer.epsilon),
    }
    if optimizer.centered:
        u.apply("ApplyCenteredRMSProp", mg=u.slot("_average_gradients"), **arguments)
    else:
        u.apply("ApplyRMSProp", **arguments)


_KERNELS: dict[type, Callable[[_Update], None]] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adagrad: _adagrad,
    keras.optimizers.Ftrl: _ftrl,
    keras.optimizers.Adam: _adam,
    keras.optimizers.AdamW: _adam,
    keras.optimizers.Adamax: _adamax,
    keras.optimizers.Adadelta: _adadelta,
    keras.optimizers.RMSprop: _rmsprop,
}
# Those that have a kernel for some rows.
_BY_ROWS = (
    keras.optimizers.SGD,
    keras.optimizers.Adagrad,
    keras.optimizers.Ftrl,
    keras.optimizers.Adadelta,
    keras.optimizers.RMSprop,
)


def lock(op: TrainOp, strategy: tf.distribute.Strategy) -> None:
    """Makes the op's optimizer update by kernels that lock.

    Args:
      op: train op with a built optimizer.
      strategy: strategy of the variables.

    Raises:
      UserValueError: the optimizer, or one of its options, has no such kernel.
    """
    optimizer = op.optimizer
    kernel = _KERNELS.get(type(optimizer))
    problem = None
    if kernel is None:
        problem = f"expected one of {[each.__name__ for each in _KERNELS]}"
    elif op.lazy and type(optimizer) not in _BY_ROWS:
        problem = f"with lazy=True: expected one of {[each.__name__ for each in _BY_ROWS]}"
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
            zeros[optimizer._get_variable_index(variable)] = empty

    by_rows = moves_rows(op)

    def update_step(gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        if not by_rows:
            gradient = slices.dense(gradient, variable)
        empty = zeros.get(optimizer._get_variable_index(variable))
        update = _Update(optimizer, variable, gradient, learning_rate, empty)
        if op.lazy and slices.are_rows(gradient) and decays(optimizer, variable):
            update.decay()
        kernel(update)

    optimizer.update_step = update_step
