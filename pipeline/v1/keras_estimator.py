# SPDX-License-Identifier: Apache-2.0
"""`tf.keras.estimator.model_to_estimator`: a compiled Keras model as the model_fn."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from .. import keras_fit, private
from ..contract.spec import ModeKeys
from . import trace as traces
from .errors import refusal
from .estimators import Estimator
from .keras_layers import tensorflow_optimizer
from .specs import EstimatorSpec
from .variables import Model, trainable_variables


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | None = None,
    config: Any = None,
    checkpoint_format: str | None = None,
    **options: Any,
) -> Estimator:
    """Replaces `tf.keras.estimator.model_to_estimator`; the model itself is not trained."""
    if (keras_model is None) == (keras_model_path is None):
        raise ValueError("Exactly one of keras_model and keras_model_path must be provided.")
    if unknown := [name for name, value in options.items() if value is not None]:
        raise refusal(f"model_to_estimator has {unknown}: expected None. Leave them out.")
    if keras_model is None:
        keras_model = keras.models.load_model(keras_model_path, custom_objects)
    return _KerasEstimator(keras_model, model_dir, config)


class _KerasEstimator(Estimator):
    """An Estimator of a copy of a Keras model, whose layers are variables of TensorFlow 1."""

    def __init__(self, network: Any, model_dir: str | None, config: Any) -> None:
        given = vars(network).get("v1_compiled") or dict(private.compile_arguments(network))
        if not given:
            raise refusal(
                "keras_model is not compiled: expected an optimizer and a loss. Call "
                "keras_model.compile(optimizer, loss) before."
            )
        optimizer = tensorflow_optimizer(given["optimizer"])
        fields = ("loss", "loss_weights", "metrics", "weighted_metrics")
        parts = keras_fit.CompileParts(**{name: given.get(name) for name in fields})
        self._network, self._values = network, network.get_weights()

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            return _spec(features, labels, mode, parts, optimizer)

        super().__init__(model_fn, model_dir, config)

    def _new_model(self) -> Model:
        """Returns the module with the variables, those of a copy of the Keras model."""
        model, given = super()._new_model(), self._network
        compiled, given.compiled = given.compiled, False  # Or Keras compiles the copy as well.
        try:
            model.network = keras.models.clone_model(given)
        except (NotImplementedError, TypeError, ValueError) as error:
            raise refusal(
                f"{given.name} cannot be copied ({error}): expected a Sequential or functional "
                "model. Call it in a model_fn."
            ) from error
        finally:
            given.compiled = compiled
        if self._values:
            model.network.set_weights(self._values)
        model.found.update({layer.name: layer for layer in model.network.layers})
        return model


def _spec(
    features: Any, labels: Any, mode: str, parts: keras_fit.CompileParts, optimizer: Any
) -> EstimatorSpec:
    network = traces.needed("keras.estimator.model_to_estimator").model.network
    if isinstance(features, Mapping) and len(features) == 1:
        [features] = features.values()
    outputs = network(features, training=mode == ModeKeys.TRAIN)
    if isinstance(outputs, Mapping):
        predictions = dict(outputs)
    else:
        listed = tf.nest.flatten(outputs)
        names = getattr(network, "output_names", None) or [network.layers[-1].name]
        predictions = dict(zip(names, listed, strict=True))
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=predictions)
    # The loss and the metrics of an evaluation: the optimizer is one of TensorFlow 1.
    spec = keras_fit.compiled_spec(ModeKeys.EVAL, network, outputs, labels, parts)
    weights = 1.0 if spec.loss_weights is None else tf.cast(spec.loss_weights, tf.float32)
    weights = tf.broadcast_to(weights, tf.shape(spec.loss))
    loss = tf.math.divide_no_nan(tf.reduce_sum(spec.loss * weights), tf.reduce_sum(weights))
    loss = tf.add_n([loss, *(spec.regularization_losses or ())])
    update = None
    if mode == ModeKeys.TRAIN:
        update = optimizer.minimize(loss, var_list=trainable_variables())
    return EstimatorSpec(mode, predictions, loss, update, spec.metrics)
