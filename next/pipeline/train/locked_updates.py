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

_raw = tf.raw_ops


class _Slots:
    """One variable's slots and its optimizer's hyperparameters, as a kernel takes them."""

    def __init__(self, optimizer: Any, variable: tf.Variable, zeros: tf.Variable | None) -> None:
        self.optimizer = optimizer
        self.variable = variable
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


def _sgd(s: _Slots, gradient: tf.Tensor, rate: tf.Tensor) -> None:
    momentum = s.optimizer.momentum
    if not momentum:
        _raw.ResourceApplyGradientDescent(
            var=s.variable.handle, alpha=rate, delta=gradient, use_locking=True
        )
        return
    _raw.ResourceApplyKerasMomentum(
        var=s.variable.handle,
        accum=s.slot("momentums"),
        lr=rate,
        grad=gradient,
        momentum=s.number(momentum),
        use_nesterov=s.optimizer.nesterov,
        use_locking=True,
    )


def _adagrad(s: _Slots, gradient: tf.Tensor, rate: tf.Tensor) -> None:
    _raw.ResourceApplyAdagradV2(
        var=s.variable.handle,
        accum=s.slot("_accumulators"),
        lr=rate,
        epsilon=s.number(s.optimizer.epsilon),
        grad=gradient,
        use_locking=True,
    )


def _ftrl(s: _Slots, gradient: tf.Tensor, rate: tf.Tensor) -> None:
    optimizer = s.optimizer
    _raw.ResourceApplyFtrlV2(
        var=s.variable.handle,
        accum=s.slot("_accumulators"),
        linear=s.slot("_linears"),
        grad=gradient,
        lr=rate,
        l1=s.number(optimizer.l1_regularization_strength),
        l2=s.number(optimizer.l2_regularization_strength) + optimizer.beta / (2 * rate),
        l2_shrinkage=s.number(optimizer.l2_shrinkage_regularization_strength),
        lr_power=s.number(optimizer.learning_rate_power),
        use_locking=True,
    )


def _adam(s: _Slots, gradient: tf.Tensor, rate: tf.Tensor) -> None:
    optimizer = s.optimizer
    arguments = {
        "var": s.variable.handle,
        "m": s.slot("_momentums"),
        "v": s.slot("_velocities"),
        "beta1_power": s.power(optimizer.beta_1),
        "beta2_power": s.power(optimizer.beta_2),
        "lr": rate,
        "beta1": s.number(optimizer.beta_1),
        "beta2": s.number(optimizer.beta_2),
        "epsilon": s.number(optimizer.epsilon),
        "grad": gradient,
        "use_locking": True,
    }
    if optimizer.amsgrad:
        _raw.ResourceApplyAdamWithAmsgrad(vhat=s.slot("_velocity_hats"), **arguments)
    else:
        _raw.ResourceApplyAdam(**arguments)


def _adamax(s: _Slots, gradient: tf.Tensor, rate: tf.Tensor) -> None:
    optimizer = s.optimizer
    _raw.ResourceApplyAdaMax(
        var=s.variable.handle,
        m=s.slot("_m"),
        v=s.slot("_u"),
        beta1_power=s.power(optimizer.beta_1),
        lr=rate,
        beta1=s.number(optimizer.beta_1),
        beta2=s.number(optimizer.beta_2),
        epsilon=s.number(optimizer.epsilon),
        grad=gradient,
        use_locking=True,
    )


def _adadelta(s: _Slots, gradient: tf.Tensor, rate: tf.Tensor) -> None:
    _raw.ResourceApplyAdadelta(
        var=s.variable.handle,
        accum=s.slot("_accumulated_grads"),
        accum_update=s.slot("_accumulated_delta_vars"),
        lr=rate,
        rho=s.number(s.optimizer.rho),
        epsilon=s.number(s.optimizer.epsilon),
        grad=gradient,
        use_locking=True,
    )


def _rmsprop(s: _Slots, gradient: tf.Tensor, rate: tf.Tensor) -> None:
    optimizer = s.optimizer
    arguments = {
        "var": s.variable.handle,
        "ms": s.slot("_velocities"),
        "mom": s.slot("_momentums") if s.zeros is None else s.zeros.handle,
        "lr": rate,
        "rho": s.number(optimizer.rho),
        "momentum": s.number(optimizer.momentum),
        "epsilon": s.number(optimizer.epsilon),
        "grad": gradient,
        "use_locking": True,
    }
    if optimizer.centered:
        _raw.ResourceApplyCenteredRMSProp(mg=s.slot("_average_gradients"), **arguments)
    else:
        _raw.ResourceApplyRMSProp(**arguments)


_KERNELS: dict[type, Callable[[_Slots, tf.Tensor, tf.Tensor], None]] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adagrad: _adagrad,
    keras.optimizers.Ftrl: _ftrl,
    keras.optimizers.Adam: _adam,
    keras.optimizers.AdamW: _adam,
    keras.optimizers.Adamax: _adamax,
    keras.optimizers.Adadelta: _adadelta,
    keras.optimizers.RMSprop: _rmsprop,
}


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

    def update_step(gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        index = optimizer._get_variable_index(variable)
        slots = _Slots(optimizer, variable, zeros.get(index))
        gradient = tf.cast(tf.convert_to_tensor(gradient), variable.dtype)
        kernel(slots, gradient, slots.number(learning_rate))

    optimizer.update_step = update_step
