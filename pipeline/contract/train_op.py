"""TrainOp: an optimizer, the variables that it moves, and the turns that it takes."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from pipeline.mistakes import habits
from pipeline.mistakes.checks import is_int, kind_of
from pipeline.process.refusals import Refusal


class SpecError(Refusal, ValueError):
    """A model_fn that breaks the contract."""


class MeanOverExamples(tuple):
    """Gradients that count by examples, whatever weights the loss has.

    Where tokens have weights, and gradients are made example by example, as
    `models.clipped_mean_gradients` makes them:

        TrainOp(optimizer, variables, gradients=MeanOverExamples(gradients))
    """


class Rate(Protocol):
    """The learning rate of one optimizer, which a hook may change."""

    @property
    def value(self) -> float:
        """The rate of the next update."""

    def multiply(self, factor: float) -> None:
        """Multiplies the rate; each process that trains has to call it."""

    def begin_anew(self) -> None:
        """Takes off a schedule what was multiplied."""

    def state(self) -> Any:
        """Returns JSON for `restore`."""

    def restore(self, state: Any) -> None:
        """Goes on from the `state` of an earlier run."""


@habits.named
@dataclasses.dataclass(frozen=True)
class TrainOp:
    """One optimizer, the variables that it moves, and the loss that it minimises.

    Attributes:
      optimizer: a Keras optimizer that came in as a module. Its own `clipnorm`,
        `global_clipnorm` and `clipvalue` act on the all-reduced gradient.
      variables: the variables to update, usually `network.trainable_variables`
        (after the network was called, where its layers build on first call).
      loss: loss to minimise, of the shapes that `EstimatorSpec.loss` may have; None
        for the spec's own loss with its weights and regularization. A loss given
        here is weighted by examples alone, and contains its own regularization.
      clip_norm: global norm to which the all-reduced gradient is clipped; None
        clips nothing.
      every: global steps in a round, one of which applies the op. `every=5` on a
        generator makes five discriminator updates, on fresh batches, to one of it.
      at: number in the round, from 1, of the step, or steps, to apply the op at; None
        for the last. An op of `every=2, at=1` takes turns with one of `every=2`.
      repeat: updates a step, all on the step's batch, each after a forward pass of
        its own. The other ops are applied together with the last of them.
      sequential: whether the gradient is taken from a forward pass of its own on
        the step's batch, after the ops listed before were applied. False: the op
        shares the pass of the op before it, and does not see that op's update.
      lazy: whether an update moves only the rows of a table that its batch used, with
        optimizers that would move all of them by momentum or decay (Adam, AdamW, Nadam,
        Adamax, RMSprop, Adadelta, Lion, SGD with momentum or weight decay, FTRL at
        changing rates). Each of these rows, and its slots, moves as by the whole
        gradient, with the count of all updates; the other rows and their slots stay. A
        table is a variable from which model_fn gathers rows, by `tf.gather` on it. SGD
        and Adagrad move no other rows anyway, and need no `lazy`.
      gradients: gradients that model_fn has computed itself, one for each variable, or
        None where the loss does not depend on it: of the mean over this replica's
        batch, as the loss is. They are added up over replicas and micro-batches by the
        loss' weights, as the driver's own would be; a `MeanOverExamples` by the number
        of examples. None: the driver takes the gradient of the loss.
      gradient_fn: function `gradient_fn(gradients, variables, step)` that returns the
        list of gradients to apply, with None for one that is not to be applied. It is
        given what all replicas came to, without a loss scale, before anything is
        clipped, and the updates made before. Each replica calls it, and has to get the
        same: draw random numbers by `tf.random.stateless_normal`. It cannot use tensors
        of model_fn. A table's gradient is a `tf.IndexedSlices`.

    Raises:
      SpecError: a field has a wrong type or value.
    """

    optimizer: Any
    variables: Sequence[Any]
    loss: Any = None
    clip_norm: float | None = None
    every: int = 1
    repeat: int = 1
    at: int | Sequence[int] | None = None
    sequential: bool = False
    lazy: bool = False
    gradients: Sequence[Any] | None = None
    gradient_fn: Callable[..., Sequence[Any]] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            raise SpecError(
                "TrainOp.optimizer is a LossScaleOptimizer, and the driver scales "
                "the loss itself: hand in its inner optimizer and write "
                "RunConfig(precision='mixed_float16')."
            )
        if not isinstance(self.optimizer, keras.optimizers.Optimizer):
            raise SpecError(
                f"TrainOp.optimizer is {kind_of(self.optimizer)}, not a Keras "
                "optimizer. Hand its factory in as a module: "
                "Estimator(modules={'optimizer': keras.optimizers.Adam}), and take "
                "`optimizer` in model_fn."
            )
        if self.optimizer.gradient_accumulation_steps:
            raise SpecError(
                "the optimizer's gradient_accumulation_steps fails with several "
                "replicas: write RunConfig(gradient_accumulation_steps="
                f"{self.optimizer.gradient_accumulation_steps}) instead."
            )
        if not isinstance(self.variables, Iterable):
            raise SpecError(
                f"TrainOp.variables is {kind_of(self.variables)}, not a list: write "
                "TrainOp(optimizer, network.trainable_variables)."
            )
        variables = tuple(self.variables)
        object.__setattr__(self, "variables", variables)
        if not variables:
            raise SpecError(
                "TrainOp.variables is empty. A network without input shape has "
                "variables only once it was called: read network.trainable_variables "
                "after network(features)."
            )
        for variable in variables:
            if not isinstance(variable, (keras.Variable, tf.Variable)):
                raise SpecError(
                    f"TrainOp.variables holds {kind_of(variable)}, not a variable: "
                    "write TrainOp(optimizer, network.trainable_variables)."
                )
        self._check_gradients()
        clip = self.clip_norm
        if clip is not None and (isinstance(clip, str) or not clip > 0):
            raise SpecError(f"TrainOp.clip_norm is {clip!r}: write a number > 0.")
        for name in ("every", "repeat"):
            value = getattr(self, name)
            if not is_int(value) or value < 1:
                raise SpecError(f"TrainOp.{name} is {value!r}: write an int > 0.")
        at = self.every if self.at is None else self.at
        at = set(at) if isinstance(at, Iterable) else {at}
        if not at or not at <= set(range(1, self.every + 1)):
            raise SpecError(
                f"TrainOp.at is {self.at!r}; it counts the steps of every={self.every} "
                "from 1: write at=1, or several of them, at=(1, 2)."
            )
        object.__setattr__(self, "at", tuple(sorted(at)))

    def _check_gradients(self) -> None:
        """Checks gradients that model_fn has computed, and makes them a tuple."""
        if self.gradient_fn is not None and not callable(self.gradient_fn):
            raise SpecError(
                f"TrainOp.gradient_fn is {kind_of(self.gradient_fn)}, not a function: "
                "write gradient_fn=lambda gradients, variables, step: gradients."
            )
        if self.gradients is None:
            return
        if self.loss is not None:
            raise SpecError(
                "TrainOp has a loss and gradients: leave one of them out, as the "
                "gradients say what is done."
            )
        given = self.gradients if isinstance(self.gradients, Iterable) else ()
        kind = MeanOverExamples if isinstance(given, MeanOverExamples) else tuple
        checked = kind(check_gradients(given, self.variables))
        object.__setattr__(self, "gradients", checked)

    def updates(self, first: int, last: int) -> int:
        """Returns the number of updates at the steps from `first` + 1 to `last`."""
        turns = ((last - a) // self.every - (first - a) // self.every for a in self.at)
        return self.repeat * sum(turns)


def check_gradients(values: Iterable[Any], variables: Sequence[Any]) -> tuple[Any, ...]:
    """Returns gradients, one for each variable, that fit the variables.

    Args:
      values: tensors, IndexedSlices, or None.
      variables: variables that they are gradients of.

    Raises:
      SpecError: there is another number of them, or one has another shape or dtype.
    """
    values = tuple(values)
    if len(values) != len(variables):
        raise SpecError(
            f"{len(values)} gradients were given for {len(variables)} variables: write "
            "one for each, in their order, as tape.gradient(loss, variables) does."
        )
    for value, variable in zip(values, variables, strict=True):
        if value is None:
            continue
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        fits = shape is not None and tf.TensorShape(shape).is_compatible_with(
            tf.TensorShape(variable.shape)
        )
        if not fits or tf.as_dtype(dtype) != tf.as_dtype(variable.dtype):
            raise SpecError(
                f"the gradient of {variable.name} is {kind_of(value)} of shape {shape} "
                f"and {dtype}, and the variable has shape {tuple(variable.shape)} and "
                f"{variable.dtype}: write the gradients in the order of the variables."
            )
    return values
