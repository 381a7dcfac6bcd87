# SPDX-License-Identifier: Apache-2.0
"""Trains a compiled model itself on one device, or models made again from its configuration."""

import copy as copy_lib
from collections.abc import Iterator
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from .. import private
from ..contract.checks import repr_short
from ..distribute import modules as modules_lib
from ..distribute import names
from ..distribute.replicas import Replicas
from ..errors import UserValueError
from ..estimator.estimator import Estimator
from .compiled import compile_parts
from .model import build, modules_of
from .own_steps import own_methods


class GivenModel:
    """A compiled model that is the `make_model` of one call of `fit`.

    The training begins with its weights and the state of its optimizer as they are now.

        given = GivenModel(model, strategy, batch)
        model = given()                  # itself, or a copy under the strategy
        given.set_values(modules, ...)   # before the first step
    """

    def __init__(self, model: keras.Model, strategy: tf.distribute.Strategy, batch: Any) -> None:
        """Builds the model, and makes a copy to compare if it cannot be trained itself.

        Args:
          model: the compiled model.
          strategy: strategy of the training.
          batch: one as Keras passes it to `train_step`.

        Raises:
          SpecError: the model is not compiled.
          UserValueError: the model has a strategy; a copy is impossible, or another model.
        """
        compile_parts(model)
        scope = type(model.distribute_strategy)
        if scope is not type(tf.distribute.get_strategy()):
            raise UserValueError(
                f"make_model is {repr_short(model)}, which was made in the scope of "
                f"{scope.__name__}: expected no scope, since fit has its own. Leave it out, and "
                "set RunConfig(devices=...) or RunConfig(execution=...)."
            )
        build(model, batch)
        self._model, self._config = model, None
        self._optimizer = compile_parts(model).optimizer
        self._arguments = dict(private.compile_arguments(model))
        # Variables that were made without a strategy work only without one.
        self._is_own = type(strategy) is type(tf.distribute.get_strategy())
        modules = modules_of(model)
        modules_lib.disown(modules)
        self._values = {n: v.numpy() for n, v in names.variables_of(modules).items()}
        if not self._is_own:
            self._compare(keras.utils.unpack_x_y_sample_weight(batch)[0])

    def __call__(self) -> keras.Model:
        """Returns the model to train, to be made under the strategy."""
        return self._model if self._is_own else self._copy()

    def set_values(self, modules: dict[str, Any], replicas: Replicas) -> None:
        """Sets the variables of modules to those of the chief's model."""
        variables = names.variables_of(modules)
        values = {n: self._values[n] for n in variables if n in self._values}
        if replicas.num_processes > 1:
            own = np.array if replicas.is_chief else np.zeros_like
            kinds = {n: v.dtype for n, v in values.items()}
            # No collective sums small integers and truth values.
            sent = {n: tf.constant(own(v), _summable(v.dtype)) for n, v in values.items()}
            found = replicas.sum_over_processes(sent)
            values = {n: tf.cast(found[n], kinds[n]) for n in values}
        for name, value in values.items():
            variables[name].assign(value)

    def take(self, values: dict[str, Any]) -> keras.Model:
        """Returns the model itself with trained values by name; it can be used without ge."""
        for name, variable in names.variables_of(modules_of(self._model)).items():
            variable.assign(values[name])
        for name, module in modules_of(self._model).items():
            if name != "network":
                private.restore_methods(module)
        return self._model

    def released(self, estimator: Estimator) -> Estimator:
        """Returns an Estimator of the same run that leaves the variables of the model alone."""
        if not self._is_own or estimator.state.is_unsaved:
            return estimator
        self._is_own = False  # It makes copies from now on.
        other = estimator.with_config(estimator.config)
        other.last_run = estimator.last_run
        return other

    def _copy(self) -> keras.Model:
        model, optimizer = self._model, self._optimizer
        if own := own_methods(model):
            self._refuse(f"has its own {own[0]}")
        schedule = getattr(optimizer, "_learning_rate", None)
        kinds = [type(each) for each in (*_layers(model), optimizer, schedule)]
        try:
            if self._config is None:
                self._config = keras.saving.serialize_keras_object(model)
                self._config.pop("compile_config", None)
            config = copy_lib.deepcopy(self._config)  # Some from_config take parts out.
            with keras.saving.custom_object_scope({kind.__name__: kind for kind in kinds}):
                copy = keras.saving.deserialize_keras_object(config, safe_mode=False)
                optimizer = type(optimizer).from_config(optimizer.get_config())
            if type(copy) is not type(model):
                raise TypeError(f"its configuration makes a {type(copy).__name__}")
            keras.Model.compile(copy, **{**self._arguments, "optimizer": optimizer})
        except Exception as error:  # get_config and constructors are code of the user.
            line = str(error).strip().partition("\n")[0]
            self._refuse(f"cannot be made again from its configuration: {line}", error)
        return copy

    def _compare(self, features: Any) -> None:
        """Refuses a copy that is another model."""
        model, copy = self._model, self._copy()
        copied = modules_of(copy)
        if not copy.built:
            copy(features, training=False)
        copied["optimizer"].build(copy.trainable_variables)
        variables = names.variables_of(copied)
        for name, value in self._values.items():
            if name not in variables or variables[name].shape != value.shape:
                self._refuse(f"has the variable {name}, and its copy has not")
        if unknown := sorted(variables.keys() - self._values.keys()):
            self._refuse(f"has no variable {unknown[0]}, and its copy has")
        for name, variable in variables.items():
            variable.assign(self._values[name])
        own = modules_of(model)
        for name, found in _trained(copied).items():
            if found != _trained(own).get(name):
                self._refuse(f"has other trainable variables or weight decay than its copy: {name}")
        outputs = [tf.nest.flatten(each(features, training=False)) for each in (model, copy)]
        for mine, other in zip(*outputs, strict=True):
            mine, other = np.asarray(mine), np.asarray(other)
            if not np.allclose(mine, other, rtol=1e-5, atol=1e-6, equal_nan=True):
                self._refuse("has other outputs than its copy")

    def _refuse(self, problem: str, error: Exception | None = None) -> NoReturn:
        raise UserValueError(
            f"make_model is {repr_short(self._model)}, which {problem}. On several devices, and "
            "for FitResult.estimator, a model is made again: expected the same model. Pass a "
            "function that makes and compiles it."
        ) from error


def _layers(layer: keras.Layer) -> Iterator[keras.Layer]:
    yield layer
    for each in private.sublayers(layer):
        yield from _layers(each)


def _trained(modules: dict[str, Any]) -> dict[str, bool]:
    """Returns the trainable variables by name, with whether the optimizer decays each."""
    model, optimizer = modules["network"], modules["optimizer"]
    decays = {
        id(names.variable_of(v)): private.decays(optimizer, v) for v in model.trainable_variables
    }
    named = names.variables_of({"network": model})
    return {n: decays[id(v)] for n, v in named.items() if id(v) in decays}


def _summable(dtype: np.dtype) -> tf.DType:
    kind = tf.as_dtype(dtype)
    return (
        tf.float32 if kind.is_floating and kind.size < 8 else kind if kind.is_floating else tf.int64
    )
