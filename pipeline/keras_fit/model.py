# SPDX-License-Identifier: Apache-2.0
"""Makes the modules of an Estimator from a function that returns a compiled Keras model."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from .. import private
from ..contract.checks import repr_short
from ..contract.run_config import RunConfig
from ..errors import SpecError, UserTypeError
from . import own_steps
from .compiled import compile_parts

# The initial scale, and updates until it doubles: Keras' defaults, which `LossScale` has as well.
_LOSS_SCALE = (2.0**15, 2000)


def compiled_modules(
    make_model: Callable[[], keras.Model], check: Callable[[keras.Model], None] | None = None
) -> dict[str, Callable[[], Any]]:
    """Returns the factories of `network` and `optimizer`.

    Both come from one call of `make_model`, so that `network.optimizer` is the optimizer. A model
    with its own step may have several.

    Args:
      make_model: function that returns a new compiled model at each call.
      check: called with each model; refuses what cannot be trained. None refuses own steps, which
        only `fit` can make.

    Raises:
      UserTypeError: `make_model` is a model, or not a function.
    """
    if isinstance(make_model, keras.Model) or not callable(make_model):
        raise UserTypeError(
            f"make_model is {repr_short(make_model)}: expected a function that makes and compiles "
            "the model, which has to be made under the strategy. Set make_model to that function."
        )
    made: list[keras.Model] = []

    def network() -> keras.Model:
        with tf.variable_creator_scope(own_steps.assignable):
            model = new_model(make_model)
        compile_parts(model)  # Before anything else is made.
        (check or _check_has_no_step)(model)
        made[:] = [model]
        return model

    def optimizer() -> Any:
        model = made.pop() if made else new_model(make_model)
        optimizers = modules_of(model)
        del optimizers["network"]
        return optimizers

    return {"network": network, "optimizer": optimizer}


def _check_has_no_step(model: keras.Model) -> None:
    if found := own_steps.own_methods(model):
        raise SpecError(
            f"{type(model).__name__}.{found[0]} is overridden: expected a model that is trained by "
            "its compile() alone. Call ge.fit, or write the step as a model_fn, as "
            "docs/keras.md shows."
        )


def modules_of(model: keras.Model) -> dict[str, Any]:
    """Returns a compiled model and its optimizers by the names of their modules."""
    parts = compile_parts(model)
    if own_steps.reason_for_own_step(model) is None:
        return {"network": model, "optimizer": parts.optimizer}
    return {"network": model, **own_steps.optimizers_of(model)}


def build(model: keras.Model, batch: Any) -> None:
    """Creates the variables of a compiled model outside of a strategy, and of its optimizers.

    `batch` is one as Keras passes it to `train_step`.
    """
    if own_steps.reason_for_own_step(model) is not None:
        own_steps.build(model, batch)
        return
    if not model.built:
        model(keras.utils.unpack_x_y_sample_weight(batch)[0], training=False)
    model.optimizer.build(model.trainable_variables)


def new_model(make_model: Callable[[], keras.Model]) -> keras.Model:
    """Returns a new model, whose metrics and outputs have the names of a new process.

    Keras numbers the names `auc`, `auc_1` in the process, and each training makes several models.
    """
    try:
        with private.names_of_new_process():
            return make_model()
    except ValueError as error:
        if "unique" not in str(error):
            raise
    return make_model()  # A layer from outside has the name of a new one.


def check_compiled(model: keras.Model, config: RunConfig) -> None:
    """Refuses a model whose `compile` or class has a part that the driver does in another way.

    Args:
      model: a compiled model.
      config: how to run.

    Raises:
      SpecError: it has a custom step, or options that belong to the RunConfig.
    """
    if reason := own_steps.reason_for_own_step(model):
        own_steps.check_own_steps(reason, config)
    is_own = not str(getattr(model.fit, "__module__", "keras.")).startswith("keras.")
    if is_own and getattr(model, "preprocessor", model) is not None:
        raise SpecError(
            f"{type(model).__name__}.fit is overridden, and ge.fit does not call it: expected that "
            "of Keras. Do before ge.fit what it does; for a task of KerasHub set x=dataset.map("
            "model.preprocess_samples), and then model.preprocessor = None."
        )
    options = private.compile_arguments(model)
    for name in ("run_eagerly", "jit_compile"):
        if name == "jit_compile" and private.compiles_by_default(model):
            continue  # It cannot be told from an argument.
        if options.get(name) is True and not getattr(config, name):
            raise SpecError(
                f"{name} is True in model.compile: expected it in the RunConfig. Set "
                f"config=RunConfig({name}=True), and leave it out in compile."
            )
    _check_loss_scale(model, config.precision)


def _check_loss_scale(model: keras.Model, precision: str) -> None:
    """Refuses another loss scale than the driver's."""
    name, scales = type(model).__name__, hasattr(model.optimizer, "inner_optimizer")
    if precision != "mixed_float16":
        if scales:
            raise SpecError(
                f"the optimizer of {name} scales the loss, and the precision is {precision!r}: "
                "expected 'mixed_float16'. Call keras.config.set_dtype_policy('mixed_float16') at "
                "the start of the program, instead of dtype= in the model."
            )
        return
    if model.dtype_policy.name == "mixed_float16" and not scales:
        raise SpecError(
            "auto_scale_loss is False in model.compile: expected True in mixed_float16, where "
            "small gradients become 0 without a loss scale. Leave it out in compile."
        )
    own = scales and (model.optimizer.initial_scale, model.optimizer.dynamic_growth_steps)
    if own and own != _LOSS_SCALE:
        raise SpecError(
            f"initial_scale and dynamic_growth_steps of the LossScaleOptimizer are {own}: "
            f"expected {_LOSS_SCALE}. Give compile the optimizer inside of it; ge.fit scales."
        )
