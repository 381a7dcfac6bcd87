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
    """The update of a variable by a kernel, with the optimizer's slots and hyperparameters."""

    def __init__(
        self,
        optimizer: Any,
        variable: tf.Variable,
        gradient: Any,
        rate: Any,
        zeros: tf.Variable | None,
    ) -> None:
        """Takes the gradient, a tensor or some rows, and a variable in place of a slot or None."""
        self.optimizer, self.variable, self.gradient = optimizer, variable, gradient
        self.rate, self.zeros = self.number(rate), zeros
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

    def apply(self, name: str, *hyperparameters: str, **arguments: Any) -> None:
        """Calls the kernel of this name for all rows, or for those of the gradient.

        Args:
          name: end of the kernel's name.
          *hyperparameters: those that the optimizer calls as the kernel does, but for `_`.
          **arguments: other arguments of the kernel; slots by their names in the optimizer.
        """
        kind = "Resource"
        if slices.are_rows(self.gradient):
            kind = "ResourceSparse"
            arguments["indices"] = self.gradient.indices
        arguments = {k: self.slot(v) if isinstance(v, str) else v for k, v in arguments.items()}
        for each in hyperparameters:
            arguments[each.replace("_", "")] = self.number(getattr(self.optimizer, each))
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
        handle, indices = self.variable.handle, self.gradient.indices
        rows = _raw.ResourceGather(resource=handle, indices=indices, dtype=self.variable.dtype)
        self.subtract(rows * self.number(self.optimizer.weight_decay) * self.rate)


def _sgd(u: _Update) -> None:
    if u.optimizer.momentum:
        nesterov = u.optimizer.nesterov
        u.apply("ApplyKerasMomentum", "momentum", accum="momentums", use_nesterov=nesterov)
    elif slices.are_rows(u.gradient):
        u.subtract(u.rate * u.number(u.gradient.values))
    else:
        _raw.ResourceApplyGradientDescent(
            var=u.variable.handle, alpha=u.rate, delta=u.number(u.gradient), use_locking=True
        )


def _adagrad(u: _Update) -> None:
    u.apply("ApplyAdagradV2", "epsilon", accum="_accumulators")


def _ftrl(u: _Update) -> None:
    optimizer = u.optimizer
    u.apply(
        "ApplyFtrlV2",
        accum="_accumulators",
        linear="_linears",
        l1=u.number(optimizer.l1_regularization_strength),
        l2=u.number(optimizer.l2_regularization_strength) + optimizer.beta / (2 * u.rate),
        l2_shrinkage=u.number(optimizer.l2_shrinkage_regularization_strength),
        lr_power=u.number(optimizer.learning_rate_power),
    )


def _adam(u: _Update) -> None:
    amsgrad = u.optimizer.amsgrad
    u.apply(
        "ApplyAdamWithAmsgrad" if amsgrad else "ApplyAdam",
        *("beta_1", "beta_2", "epsilon"),
        m="_momentums",
        v="_velocities",
        beta1_power=u.power(u.optimizer.beta_1),
        beta2_power=u.power(u.optimizer.beta_2),
        **({"vhat": "_velocity_hats"} if amsgrad else {}),
    )


def _adamax(u: _Update) -> None:
    power = u.power(u.optimizer.beta_1)
    u.apply("ApplyAdaMax", "beta_1", "beta_2", "epsilon", m="_m", v="_u", beta1_power=power)


def _adadelta(u: _Update) -> None:
    accumulators = {"accum": "_accumulated_grads", "accum_update": "_accumulated_delta_vars"}
    u.apply("ApplyAdadelta", "rho", "epsilon", **accumulators)


def _rmsprop(u: _Update) -> None:
    centered = u.optimizer.centered
    u.apply(
        "ApplyCenteredRMSProp" if centered else "ApplyRMSProp",
        *("rho", "momentum", "epsilon"),
        ms="_velocities",
        mom="_momentums" if u.zeros is None else u.zeros.handle,
        **({"mg": "_average_gradients"} if centered else {}),
    )


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
# Adam and Adamax have no kernel for some rows.
_BY_ROWS = [kind for kind, kernel in _KERNELS.items() if kernel not in (_adam, _adamax)]


def lock(op: TrainOp, strategy: tf.distribute.Strategy) -> None:
    """Makes the op's built optimizer update by kernels that lock.

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
