# SPDX-License-Identifier: Apache-2.0
"""The model_fn of any Keras model, with losses and metrics as `compile` takes them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gin
import keras

from gin_estimator import Estimator, EstimatorSpec, ModeKeys, RunConfig, keras_fit

from . import features as features_lib


@gin.configurable
def keras_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    network: keras.Model,
    optimizer: keras.optimizers.Optimizer | None = None,
    *,
    loss: Any = None,
    loss_weights: Any = None,
    metrics: Any = None,
    weight_column: str | None = None,
    clip_norm: float | None = None,
    feature_key: str | None = None,
) -> EstimatorSpec:
    """Returns the spec of a Keras model with the loss and metrics of `fit` and `evaluate`.

    Args:
      features: input of the network, a tensor or a nest.
      labels: a tensor, or a dict or a list, as the outputs; None in PREDICT.
      mode: one of `ModeKeys`.
      network: any Keras model. Its `losses` are the regularization; layers with `trainable=False`
        are not updated.
      optimizer: updates the network; None outside of TRAIN.
      loss: a loss, its name, or a function; for several outputs a dict or a list. None if the
        network's `losses` are everything.
      loss_weights: factors of the losses of several outputs; None for 1.
      metrics: a list of metrics, or a dict `{name: metric}`; for several outputs a dict or a list
        of these.
      weight_column: entry of features with the weights of the examples, `[batch]`, which the
        network does not get. As Keras' `sample_weight` they multiply the losses.
      clip_norm: maximum global norm of the gradient; None for none.
      feature_key: entry of a dict of features that the network takes.

    Raises:
      SpecError: losses, metrics, labels and outputs do not fit each other.
    """
    parts = keras_fit.CompileParts(optimizer, loss, loss_weights, metrics)
    return _spec(features, labels, mode, network, parts, weight_column, clip_norm, feature_key)


@gin.configurable
def model_to_estimator(
    make_model: Callable[[], keras.Model],
    config: RunConfig | None = None,
    *,
    weight_column: str | None = None,
    clip_norm: float | None = None,
    feature_key: str | None = None,
    **options: Any,
) -> Estimator:
    """Returns an Estimator of a compiled Keras model.

        def make_model():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("adam", "mse", metrics=["mae"])
            return model

        estimator = model_to_estimator(make_model, RunConfig(model_dir="runs/prices"))

    Args:
      make_model: function that returns a new compiled model at each call, which is made under the
        strategy.
      config: the RunConfig.
      weight_column: see `keras_model_fn`.
      clip_norm: see `keras_model_fn`.
      feature_key: see `keras_model_fn`.
      **options: more arguments of Estimator, such as `params`.

    Raises:
      UserTypeError: `make_model` is not a function.
    """

    def model_fn(features: Any, labels: Any, mode: str, network: Any, optimizer: Any) -> Any:
        parts = dataclasses.replace(keras_fit.compile_parts(network), optimizer=optimizer)
        return _spec(features, labels, mode, network, parts, weight_column, clip_norm, feature_key)

    modules = keras_fit.compiled_modules(make_model)
    return Estimator(model_fn, modules=modules, config=config, **options)


def _spec(
    features: Any,
    labels: Any,
    mode: str,
    network: keras.Model,
    parts: keras_fit.CompileParts,
    weight_column: str | None,
    clip_norm: float | None,
    feature_key: str | None,
) -> EstimatorSpec:
    weights, inputs = None, features
    if weight_column is not None:
        weights = features_lib.example_weights(features, weight_column)
        inputs = {name: each for name, each in features.items() if name != weight_column}
    inputs = features_lib.network_input(inputs, feature_key)
    outputs = network(inputs, training=mode == ModeKeys.TRAIN)
    return keras_fit.compiled_spec(
        mode, network, outputs, labels, parts, weights=weights, clip_norm=clip_norm
    )
