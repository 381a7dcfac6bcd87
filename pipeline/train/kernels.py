# SPDX-License-Identifier: Apache-2.0
"""Updates of a variable by one kernel of TensorFlow, in place of the operations of Keras.

One kernel takes less time than Keras' twenty operations, which counts in a small network. And it
locks the variable: of two workers of parameter servers that update it at the same time, Keras
would have one overwrite the update of the other. Kernels compute the same to float32's precision.
"""

from collections.abc import Callable, Hashable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .. import private
from ..distribute.names import variable_of
from . import indexed_slices

# Powers of an optimizer's decays by decay, dtype and device.
Powers = dict[Hashable, tf.Tensor]

_raw = tf.raw_ops


class VariableUpdate:
    """The update of a variable by a kernel, with the optimizer's slots and hyperparameters."""

    def __init__(
        self,
        optimizer: Any,
        variable: tf.Variable,
        gradient: Any,
        rate: Any,
        *,
        powers: Powers | None = None,
        zeros: tf.Variable | None = None,
    ) -> None:
        """Takes the gradient, a tensor or some rows.

        `powers` are those that updates of other variables have computed in this step; `zeros` is a
        variable in place of a slot.
        """
        self.optimizer, self.variable, self.gradient = optimizer, variable, gradient
        self.rate, self.zeros = self.number(rate), zeros
        self._powers = {} if powers is None else powers
        self._slots = private.slots_of(optimizer, variable)

    def slot(self, name: str) -> tf.Tensor:
        """Returns the handle of the slot in the optimizer's list `name`."""
        return variable_of(self._slots[name]).handle

    def number(self, value: Any) -> tf.Tensor:
        """Returns a hyperparameter in the dtype of the variable."""
        return tf.cast(value, self.variable.dtype)

    def power(self, beta: float) -> tf.Tensor:
        """Returns `beta` to the power of this update's number."""
        key = (beta, self.variable.dtype, self.variable.device)
        if key not in self._powers:
            count = self.number(self.optimizer.iterations.value + 1)
            self._powers[key] = tf.pow(self.number(beta), count)
        return self._powers[key]

    def scale_of(self, beta: float) -> tf.Tensor:
        """Returns the factor of the rate that makes up for the rounding of `1 - beta`.

        Keras computes it in double precision, the kernel in float32: with 0.999 its average of
        squares grows by 1.3e-5 less. The factor is that of a constant gradient.
        """
        key = ("scale", beta, self.variable.dtype, self.variable.device)
        if key not in self._powers:
            count = tf.cast(self.optimizer.iterations.value + 1, tf.float64)
            rounded = np.asarray(beta, self.variable.dtype.as_numpy_dtype).astype(np.float64)
            ratio = (1 - tf.pow(rounded, count)) / (1 - tf.pow(np.float64(beta), count))
            self._powers[key] = self.number(tf.sqrt(ratio))
        return self._powers[key]

    def apply(self, name: str, *hyperparameters: str, **arguments: Any) -> None:
        """Calls the kernel of this name for all rows, or for those of the gradient.

        Args:
          name: end of the kernel's name.
          *hyperparameters: those that the optimizer calls as the kernel does, but for `_`.
          **arguments: other arguments of the kernel; slots by their names in the optimizer.
        """
        kind = "Resource"
        if indexed_slices.are_rows(self.gradient):
            kind = "ResourceSparse"
            arguments["indices"] = self.gradient.indices
        arguments = {k: self.slot(v) if isinstance(v, str) else v for k, v in arguments.items()}
        for each in hyperparameters:
            arguments[each.replace("_", "")] = self.number(getattr(self.optimizer, each))
        getattr(_raw, kind + name)(
            var=self.variable.handle,
            grad=self.number(indexed_slices.values_of(self.gradient)),
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


def _sgd(u: VariableUpdate) -> None:
    if u.optimizer.momentum:
        nesterov = u.optimizer.nesterov
        u.apply("ApplyKerasMomentum", "momentum", accum="momentums", use_nesterov=nesterov)
    elif indexed_slices.are_rows(u.gradient):
        u.subtract(u.rate * u.number(u.gradient.values))
    else:
        _raw.ResourceApplyGradientDescent(
            var=u.variable.handle, alpha=u.rate, delta=u.number(u.gradient), use_locking=True
        )


def _adagrad(u: VariableUpdate) -> None:
    u.apply("ApplyAdagradV2", "epsilon", accum="_accumulators")


def _ftrl(u: VariableUpdate) -> None:
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


def _adam(u: VariableUpdate) -> None:
    amsgrad = u.optimizer.amsgrad
    u.rate *= u.scale_of(u.optimizer.beta_2)
    u.apply(
        "ApplyAdamWithAmsgrad" if amsgrad else "ApplyAdam",
        *("beta_1", "beta_2", "epsilon"),
        m="_momentums",
        v="_velocities",
        beta1_power=u.power(u.optimizer.beta_1),
        beta2_power=u.power(u.optimizer.beta_2),
        **({"vhat": "_velocity_hats"} if amsgrad else {}),
    )


def _adamax(u: VariableUpdate) -> None:
    power = u.power(u.optimizer.beta_1)
    u.apply("ApplyAdaMax", "beta_1", "beta_2", "epsilon", m="_m", v="_u", beta1_power=power)


def _adadelta(u: VariableUpdate) -> None:
    accumulators = {"accum": "_accumulated_grads", "accum_update": "_accumulated_delta_vars"}
    u.apply("ApplyAdadelta", "rho", "epsilon", **accumulators)


def _rmsprop(u: VariableUpdate) -> None:
    centered = u.optimizer.centered
    u.apply(
        "ApplyCenteredRMSProp" if centered else "ApplyRMSProp",
        *("rho", "momentum", "epsilon"),
        ms="_velocities",
        mom="_momentums" if u.zeros is None else u.zeros.handle,
        **({"mg": "_average_gradients"} if centered else {}),
    )


KERNELS: dict[type, Callable[[VariableUpdate], None]] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adagrad: _adagrad,
    keras.optimizers.Ftrl: _ftrl,
    keras.optimizers.Adam: _adam,
    keras.optimizers.AdamW: _adam,
    keras.optimizers.Adamax: _adamax,
    keras.optimizers.Adadelta: _adadelta,
    keras.optimizers.RMSprop: _rmsprop,
}
# Numbers of elements that Adam's kernel splits over threads, which takes longer than Keras'
# operations (on two cores: 156 to 118 us at 512 elements, 377 to 269 at 32,000).
_SPLIT = range(400, 50_000)
# Adam and Adamax have no kernel for some rows.
BY_ROWS = [kind for kind, kernel in KERNELS.items() if kernel not in (_adam, _adamax)]


def replaces_formula(optimizer: Any, variable: tf.Variable) -> bool:
    """Returns whether a kernel of all devices has Keras' formula and slots, and takes less time."""
    if variable.dtype != tf.float32 or getattr(optimizer, "amsgrad", False):
        return False
    if type(optimizer) not in (keras.optimizers.Adam, keras.optimizers.AdamW):
        return type(optimizer) is keras.optimizers.SGD
    return not splits_adam(variable)


def splits_adam(variable: tf.Variable) -> bool:
    """Returns whether Adam's kernel takes longer than single operations for this variable."""
    return "CPU" in variable.device and variable.shape.num_elements() in _SPLIT


def update(
    optimizer: Any, variable: tf.Variable, gradient: tf.Tensor, rate: Any, powers: Powers
) -> None:
    """Updates the variable of a device by the optimizer's kernel."""
    KERNELS[type(optimizer)](VariableUpdate(optimizer, variable, gradient, rate, powers=powers))
