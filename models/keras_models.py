"""The model_fn of any Keras model: its losses and metrics as `compile` takes them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline import Estimator, EstimatorSpec, ModeKeys, SpecError, TrainOp

from . import checks
from .keras_losses import masks_of, total_loss
from .keras_metrics import metrics_of, read_metrics


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
    """Trains a Keras model by its own losses and metrics: a model_fn.

    The loss is what Keras' `fit` minimises, but that a mean over weighted examples is
    divided by the sum of weights, and batches count by their examples. Predictions are
    the model's outputs: a tensor, or a dict by the outputs' names.

    Args:
      features: the network's input: a tensor, or a nest as its inputs are.
      labels: one tensor, or a dict or list as the network's outputs are. None in
        PREDICT.
      mode: one of `ModeKeys`.
      network: any Keras model. What it adds to its `losses` is added to the loss. Only
        its trainable variables are updated: `layer.trainable = False` in the factory
        freezes a layer.
      optimizer: updates the network; may be None outside TRAIN.
      loss: a Keras loss, its name, or a function of labels and outputs; for several
        outputs a dict or list of these, where None leaves an output out. None: the
        network's `losses` are all.
      loss_weights: factor of each output's loss, a dict or list as `loss` is; None: 1.
      metrics: a list of metrics, or a dict by their names, for one output; for several
        a dict or list of these. A metric is Keras' name of one, as 'accuracy', a
        function of labels and outputs, a metric, of which copies are made, or in a dict
        a class: `{'auc': keras.metrics.AUC}`.
      weight_column: entry of the features dict with the examples' weights, `[batch]`,
        which the network is not given. They weigh the loss, not the metrics.
      clip_norm: global norm to which the gradient is clipped; None clips nothing.
      feature_key: the entry of a features dict that the network takes. None: the whole
        dict, or the only entry of a dict of one.

    Raises:
      SpecError: losses, metrics or labels do not fit the outputs.
    """
    features, weights = _without_weights(features, weight_column)
    inputs = checks.network_input(features, feature_key)
    outputs = network(inputs, training=mode == ModeKeys.TRAIN)
    named = _by_name(network, outputs)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions=_in_float32(outputs, named))

    names = list(named)
    targets = _labels_by_name(labels, names, mode)
    masks = masks_of(named)
    named = {name: tf.cast(output, tf.float32) for name, output in named.items()}
    minimised, loss_weight = total_loss(
        spread(loss, names, "loss"),
        spread(loss_weights, names, "loss_weights"),
        targets,
        named,
        weights=weights,
        masks=masks,
    )
    train_op = None
    if mode == ModeKeys.TRAIN:
        train_op = TrainOp(optimizer, network.trainable_variables, clip_norm=clip_norm)
    return EstimatorSpec(
        mode,
        loss=minimised,
        loss_weights=loss_weight,
        regularization_losses=network.losses,
        train_op=train_op,
        metrics=metrics_of(
            spread(metrics, names, "metrics"), targets, named, masks=masks
        ),
    )


@gin.configurable
def model_to_estimator(
    make_model: Callable[[], keras.Model],
    config: Any = None,
    *,
    weight_column: str | None = None,
    clip_norm: float | None = None,
    feature_key: str | None = None,
    **options: Any,
) -> Estimator:
    """Returns an Estimator of a compiled Keras model, as tf.keras' function of old.

        def make_model():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("adam", "mse", metrics=["mae"])
            return model

        estimator = model_to_estimator(make_model, RunConfig(model_dir="runs/house"))

    Args:
      make_model: function that returns a compiled Keras model. It is called under the
        strategy, once for each set of values that is needed.
      config: the RunConfig.
      weight_column: see `keras_model_fn`; so are the two that follow.
      clip_norm: global norm to which the gradient is clipped.
      feature_key: the entry of a features dict that the network takes.
      **options: of `Estimator`, as `params` and `warm_start_from`.

    Raises:
      SpecError: `make_model` is no function, or returns no compiled model.
    """
    if isinstance(make_model, keras.Model) or not callable(make_model):
        raise SpecError(
            f"make_model is {make_model!r}: write a function that makes the model and "
            "returns it, so that it is made under the strategy."
        )
    compiled = _Compiled(make_model)
    given = {
        "weight_column": weight_column,
        "clip_norm": clip_norm,
        "feature_key": feature_key,
    }

    def compiled_model_fn(
        features: Any, labels: Any, mode: str, network: Any, optimizer: Any
    ) -> EstimatorSpec:
        batch = features, labels, mode, network, optimizer
        return keras_model_fn(*batch, **compiled.arguments(), **given)

    modules = {"network": compiled.network, "optimizer": compiled.optimizer}
    return Estimator(compiled_model_fn, modules=modules, config=config, **options)


class _Compiled:
    """The factories of a compiled model, and what it was compiled with."""

    def __init__(self, make_model: Callable[[], keras.Model]) -> None:
        self._make_model = make_model
        self._config: dict[str, Any] = {}

    def network(self) -> keras.Model:
        """Returns a new model."""
        model = self._make_model()
        compiled = isinstance(model, keras.Model) and model.get_compile_config()
        if not compiled or compiled.get("optimizer") is None:
            raise SpecError(
                f"make_model returned {model!r}, which is no compiled model: call "
                "model.compile(optimizer='adam', loss='mse') before it is returned, or "
                "use keras_model_fn."
            )
        self._config = compiled
        return model

    def optimizer(self) -> keras.optimizers.Optimizer:
        """Returns a new optimizer, as the model's own."""
        if not self._config:
            self.network()
        return self._read("optimizer", keras.optimizers.get)

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `keras_model_fn` that `compile` was given."""
        read = keras.saving.deserialize_keras_object
        metrics = self._read("metrics", read_metrics)
        if self._config.get("weighted_metrics"):
            raise SpecError(
                "the model was compiled with weighted_metrics: leave them out, or "
                "write a model_fn that gives metric(...) sample_weight=."
            )
        return {
            "loss": self._read("loss", read),
            "loss_weights": self._read("loss_weights", read),
            "metrics": metrics,
        }

    def _read(self, name: str, read: Callable[[Any], Any]) -> Any:
        """Returns an argument of `compile`, made anew."""
        value = self._config.get(name)
        try:
            return None if value is None else read(value)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"the model was compiled with a {name} that Keras cannot make again: "
                "decorate its class or function with "
                "@keras.saving.register_keras_serializable(), or hand it to "
                f"keras_model_fn. Keras says: {error}"
            ) from error


def spread(value: Any, names: Sequence[str], argument: str) -> dict[str, Any]:
    """Returns an argument of `compile` by the names of the outputs.

    Args:
      value: a value for the only output, a dict by names, or a list for all outputs.
      names: names of the outputs.
      argument: name of the argument, for messages.

    Raises:
      SpecError: there is another number of values, or of another name.
    """
    if value is None:
        return dict.fromkeys(names)
    by_metric = argument == "metrics" and len(names) == 1
    if isinstance(value, Mapping) and not (by_metric and names[0] not in value):
        unknown = sorted(set(value) - set(names))
        if unknown:
            raise SpecError(
                f"{argument} holds {unknown}, and the outputs are {list(names)}: write "
                f"{argument}={{{names[0]!r}: ...}}."
            )
        return {name: value.get(name) for name in names}
    if len(names) == 1:
        single = isinstance(value, Sequence) and not isinstance(value, str)
        if single and argument != "metrics" and len(value) == 1:
            (value,) = value
        return {names[0]: value}
    if isinstance(value, str) or not isinstance(value, Sequence):
        return dict.fromkeys(names, value)
    if len(value) != len(names):
        raise SpecError(
            f"{argument} has {len(value)} entries for the outputs {list(names)}: write "
            "one for each, or a dict by their names."
        )
    return dict(zip(names, value, strict=True))


def _by_name(network: keras.Model, outputs: Any) -> dict[str, Any]:
    """Returns the outputs by name; a single one is called `output`."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if isinstance(outputs, (list, tuple)):
        known = getattr(network, "output_names", None) or []
        if len(known) != len(outputs):
            known = [f"output_{i}" for i in range(len(outputs))]
        return dict(zip(known, outputs, strict=True))
    return {"output": outputs}


def _in_float32(outputs: Any, named: Mapping[str, Any]) -> Any:
    """Returns predictions: floats in float32, in which losses are computed, too."""

    def cast(value: tf.Tensor) -> tf.Tensor:
        return tf.cast(value, tf.float32) if value.dtype.is_floating else value

    if tf.is_tensor(outputs):
        return cast(outputs)
    return {name: cast(value) for name, value in named.items()}


def _without_weights(features: Any, column: str | None) -> tuple[Any, Any]:
    """Returns the features that the network takes, and the examples' weights."""
    if column is None:
        return features, None
    if not isinstance(features, Mapping) or column not in features:
        held = sorted(features) if isinstance(features, Mapping) else "no dict"
        raise SpecError(
            f"weight_column is {column!r} and features hold {held}: name one of these, "
            "or leave weight_column out."
        )
    rest = {name: value for name, value in features.items() if name != column}
    return rest, features[column]


def _labels_by_name(labels: Any, names: Sequence[str], mode: str) -> dict[str, Any]:
    """Returns the labels by the names of the outputs; None where there are none."""
    if len(names) == 1 and not isinstance(labels, (list, tuple)):
        return {names[0]: None if labels is None else checks.labels_of(labels, mode)}
    return spread(labels, names, "labels")
