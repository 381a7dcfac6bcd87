# SPDX-License-Identifier: Apache-2.0
"""TrainOp: an optimizer, the variables that it updates, and the steps in which it does."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..errors import SpecError, UserError
from ..private import KERAS_VARIABLE
from .checks import boolean, check_fields, function, integer, number, repr_short
from .old_names import reject_unknown_arguments


class MeanOverExamples(tuple):
    """Own gradients that are weighted by examples, whatever weights the loss has.

    For gradients that were computed and averaged example by example, as in DP-SGD:
    `TrainOp(optimizer, variables, gradients=MeanOverExamples(gradients))`.
    """


_CHECKS = {
    "clip_norm": number(0, above=True, example=1.0, optional=True),
    "every": integer(1, example=5),
    "repeat": integer(1, example=2),
    "sequential": boolean(),
    "lazy": boolean(),
    "gradient_fn": function(
        "a function of gradients, variables and step", "gradient_fn", optional=True
    ),
}


@reject_unknown_arguments
@dataclasses.dataclass(frozen=True)
class TrainOp:
    """An optimizer and the variables that it updates in a training step.

    Attributes:
      optimizer: Keras optimizer; it must be a module. Its own `clipnorm`, `global_clipnorm`
        and `clipvalue` apply to the gradient over all replicas.
      variables: variables to update, usually `network.trainable_variables`.
      loss: loss to minimize, of the shapes that `EstimatorSpec.loss` may have, weighted by
        examples, with its own regularization. None: the spec's loss, with its weights and
        regularization.
      clip_norm: maximum global norm of the gradient over all replicas; None for none.
      every: number of steps in a round. The op is applied in one step of each round.
        `every=5` on a generator makes five updates of the discriminator to one of it.
      at: number of that step in the round, from 1, or several numbers; None for the last.
      repeat: number of updates in a step, each with a forward pass on the same batch. Other
        ops that share the forward pass are applied with the last of them.
      sequential: whether the op has a forward pass after the updates of the ops before it.
        If not, it shares the forward pass of the op before it, and does not see its update.
      gradients: gradients that model_fn computed, one for each variable, of the mean over
        this replica's batch; None for a variable without gradient. They are averaged by the
        weights of the loss; `MeanOverExamples` by the number of examples.
      gradient_fn: function `gradient_fn(gradients, variables, step)` that returns the
        gradients to apply, None for a variable to leave alone. It gets the gradient over
        all replicas, before clipping, and must return the same on each replica: draw random
        numbers by `tf.random.stateless_normal`. It cannot use tensors of model_fn. A table's
        gradient is tf.IndexedSlices, no row twice.
      lazy: whether a table moves only in the rows that the batch uses, by Adam, AdamW, Nadam,
        Adamax, RMSprop, Adadelta, Lion and SGD with momentum. Other rows and their slots stay:
        no momentum moves them, nothing decays. That is another training than by the dense
        formula, at a cost that does not depend on the size of the table. SGD without momentum,
        Adagrad and Ftrl always do so; the first two equal the dense formula.

    Raises:
      SpecError: an option is wrong. The optimizer, the variables and the gradients are checked
        by EstimatorSpec, in TRAIN only.
    """

    optimizer: keras.optimizers.Optimizer | None
    variables: Sequence[Any] | None
    loss: Any = None
    clip_norm: float | None = None
    every: int = 1
    at: int | Iterable[int] | None = None
    repeat: int = 1
    sequential: bool = False
    gradients: Sequence[Any] | None = None
    gradient_fn: Callable[[list[Any], list[Any], tf.Tensor], Sequence[Any]] | None = None
    lazy: bool = False

    def __post_init__(self) -> None:
        try:
            check_fields(self, _CHECKS)
        except UserError as error:
            raise SpecError(str(error)) from None
        at = self.every if self.at is None else self.at
        at = tuple(sorted(set(at))) if isinstance(at, Iterable) else (at,)
        if not at or not set(at) <= set(range(1, self.every + 1)):
            raise SpecError(
                f"TrainOp.at is {self.at!r}: expected steps from 1 to every={self.every}."
            )
        object.__setattr__(self, "at", at)
        if self.gradients is not None and self.loss is not None:
            raise SpecError("TrainOp has a loss and gradients: expected one of them.")

    def check(self) -> None:
        """Checks what only training has.

        Raises:
          SpecError: the optimizer, the variables or the gradients are not usable.
        """
        self._check_optimizer()
        self._check_variables()
        if self.gradients is not None:
            check_gradients(self.gradients, self.variables)

    @property
    def is_due_always(self) -> bool:
        """Whether the op is applied in every step."""
        return len(self.at) == self.every

    def is_due(self, step: tf.Tensor) -> tf.Tensor:
        """Returns whether the op is applied in the step after `step`, a bool scalar."""
        return tf.reduce_any(tf.equal((step + 1 - self.at) % self.every, 0))

    def num_updates(self, start: int, stop: int) -> int:
        """Returns the number of updates in the steps from `start` to `stop`."""
        rounds = ((stop - at) // self.every - (start - at) // self.every for at in self.at)
        return self.repeat * sum(rounds)

    def _check_optimizer(self) -> None:
        optimizer = self.optimizer
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise SpecError(
                "TrainOp.optimizer is a LossScaleOptimizer: expected its inner optimizer. "
                "Set RunConfig(precision='mixed_float16'), which scales the loss."
            )
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            raise SpecError(
                f"TrainOp.optimizer is {repr_short(optimizer)}: expected a Keras optimizer. Set "
                "Estimator(modules={'optimizer': keras.optimizers.Adam}), and use `optimizer`."
            )
        if optimizer.gradient_accumulation_steps:
            raise SpecError(
                "the optimizer's gradient_accumulation_steps is "
                f"{optimizer.gradient_accumulation_steps}: expected None. Set "
                "RunConfig(gradient_accumulation_steps=...), which works on several replicas."
            )
        if optimizer.loss_scale_factor:
            raise SpecError(
                f"the optimizer's loss_scale_factor is {optimizer.loss_scale_factor}: expected "
                "None. Set RunConfig(precision='mixed_float16'), which scales the loss."
            )

    def _check_variables(self) -> None:
        if not isinstance(self.variables, Iterable):
            raise SpecError(
                f"TrainOp.variables is {repr_short(self.variables)}: expected a list of variables. "
                "Set TrainOp(optimizer, network.trainable_variables)."
            )
        variables = tuple(self.variables)
        for variable in variables:
            if not isinstance(variable, KERAS_VARIABLE | tf.Variable):
                raise SpecError(
                    f"TrainOp.variables has {repr_short(variable)}: expected variables."
                )
            if not isinstance(variable, KERAS_VARIABLE):
                # Keras 3.6 asks every variable for it if the first is one of Keras.
                variable.overwrite_with_gradient = False
        if not variables:
            raise SpecError(
                "TrainOp.variables is empty: expected variables. A network without an input "
                "shape has variables after its first call: read them after network(features). "
                "A frozen one, trainable=False, has none."
            )
        if len({id(v) for v in variables}) < len(variables):
            raise SpecError("TrainOp.variables has a variable twice: expected each once.")
        object.__setattr__(self, "variables", variables)


def check_gradients(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Checks that gradients fit their variables.

    Raises:
      SpecError: their number differs, or the shape of one, or it has no floating dtype.
    """
    if not isinstance(gradients, Sequence) or len(gradients) != len(variables):
        number = len(gradients) if isinstance(gradients, Sequence) else repr(gradients)
        raise SpecError(f"gradients are {number}: expected one for each of {len(variables)}.")
    for gradient, variable in zip(gradients, variables, strict=True):
        # That of rows may be known in the graph only.
        if gradient is not None and not tf.TensorShape(gradient.shape).is_compatible_with(
            variable.shape
        ):
            raise SpecError(
                f"the gradient of {variable.name} has shape {tuple(gradient.shape)}: "
                f"expected {tuple(variable.shape)}."
            )
        dtype = None if gradient is None else tf.as_dtype(gradient.dtype)
        if dtype is not None and not (dtype.is_floating or dtype.is_complex):
            raise SpecError(
                f"the gradient of {variable.name} is of {dtype.name}: expected "
                f"{tf.as_dtype(variable.dtype).name}. Set tf.cast(gradient, variable.dtype)."
            )
