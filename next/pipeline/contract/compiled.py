"""Makes an EstimatorSpec from a Keras model and the arguments of `compile`.

    parts = compile_parts(model)
    outputs = model(features, training=mode == ModeKeys.TRAIN)
    spec = compiled_spec(mode, model, outputs, labels, parts)

The loss, the metrics and the updates are those of `fit` and `evaluate`. Keras' own losses and
metrics cannot be used as they are: they divide each batch by its own size, and have state.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..errors import SpecError
from .checks import shown
from .spec import EstimatorSpec, Metric, ModeKeys, metric
from .train_op import TrainOp

# A loss without a reduction means its mean here.
_REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "none", None)


@dataclasses.dataclass(frozen=True)
class CompileParts:
    """Arguments of `keras.Model.compile`, as they were given.

    Attributes:
      optimizer: an optimizer; None outside of TRAIN.
      loss: a loss, its name, or a function of labels and outputs. For several outputs a dict or a
        list; None leaves an output out.
      loss_weights: factors of the losses of several outputs; None for 1.
      metrics: a list of metrics, their names, or functions. For several outputs a dict or a list
        of these. A dict `{name: metric}` is allowed for one output.
      weighted_metrics: the same, for metrics that the weights of examples weigh.
    """

    optimizer: Any = None
    loss: Any = None
    loss_weights: Any = None
    metrics: Any = None
    weighted_metrics: Any = None


def compile_parts(model: Any) -> CompileParts:
    """Returns the arguments with which a model was compiled.

    Raises:
      SpecError: it is not a compiled Keras model.
    """
    # `get_compile_config` returns copies, which custom losses and metrics may not have.
    config = getattr(getattr(model, "_compile_config", None), "config", {})
    if not isinstance(model, keras.Model) or config.get("optimizer") is None:
        raise SpecError(
            f"{shown(model)} is not a compiled Keras model. Call "
            "model.compile(optimizer='adam', loss='mse') before it is returned."
        )
    optimizer = model.optimizer  # In mixed_float16 Keras wraps it.
    names = [field.name for field in dataclasses.fields(CompileParts)][1:]
    return CompileParts(
        getattr(optimizer, "inner_optimizer", optimizer),
        **{name: config.get(name) for name in names},
    )


def compiled_spec(
    mode: str,
    network: keras.Model,
    outputs: Any,
    labels: Any,
    parts: CompileParts,
    *,
    weights: Any = None,
    clip_norm: float | None = None,
) -> EstimatorSpec:
    """Returns the spec of a model with the losses and metrics of `compile`.

    Predictions are the outputs, in float32: a tensor, or a dict by the names of the outputs.
    Masks of Keras' layers, such as those of `mask_zero`, weigh losses and metrics.

    Args:
      mode: one of `ModeKeys`.
      network: the model; its `losses` are the regularization.
      outputs: return value of the model: a tensor, or a dict or a list of tensors.
      labels: a tensor, or a dict or a list, as the outputs; None in PREDICT.
      parts: losses, metrics and optimizer.
      weights: weights of the examples, `[batch]`; for several outputs also a dict or a list. As in
        Keras, the sum of weighted losses is divided by the number of examples.
      clip_norm: maximum global norm of the gradient; None for none.

    Raises:
      SpecError: losses, metrics, labels and outputs do not fit each other.
    """
    by_name = _by_name(network, outputs)
    # Keras has no public name for masks.
    masks = {name: getattr(each, "_keras_mask", None) for name, each in by_name.items()}
    by_name = {name: _as_float32(each) for name, each in by_name.items()}
    if mode == ModeKeys.PREDICT:
        single = tf.is_tensor(outputs)
        return EstimatorSpec(mode, predictions=_as_float32(outputs) if single else by_name)

    given = {"labels": labels, "weights": weights}
    given |= {name: getattr(parts, name) for name in ("loss", "loss_weights")}
    split = {key: by_output(key, value, list(by_name)) for key, value in given.items()}
    found = [
        _Output(name, by_name[name], masks[name], **{key: split[key][name] for key in given})
        for name in by_name
    ]
    loss, loss_weights, metrics = _total([each for each in found if each.loss is not None])
    for field in ("metrics", "weighted_metrics"):
        listed = by_output(field, getattr(parts, field), list(by_name))
        for each in found:
            _declare(metrics, each, listed[each.name], field, several=len(found) > 1)
    if loss is None:  # The regularization is everything.
        loss = tf.zeros(tf.shape(found[0].value)[:1])
    train_op: Any = ()
    if mode == ModeKeys.TRAIN:
        train_op = TrainOp(parts.optimizer, network.trainable_variables, clip_norm=clip_norm)
    return EstimatorSpec(
        mode,
        loss=loss,
        loss_weights=loss_weights,
        regularization_losses=network.losses,
        train_op=train_op,
        metrics=metrics,
    )


def by_output(argument: str, value: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns an argument of `compile` by the names of the outputs.

    Args:
      argument: name of the argument, for messages.
      value: a value for one output, or a dict or a list for all.
      names: names of the outputs.

    Raises:
      SpecError: it has another number of values, or other names.
    """
    of_metrics = argument in ("metrics", "weighted_metrics")
    is_list = isinstance(value, list | tuple)
    if isinstance(value, Mapping) and (len(names) > 1 or set(value) == set(names)):
        if unknown := sorted(value.keys() - set(names)):
            raise SpecError(f"{argument} has {unknown}: expected names of outputs, {list(names)}.")
        return {name: value.get(name) for name in names}
    if len(names) == 1:
        single = is_list and len(value) == 1 and not of_metrics
        return {names[0]: value[0] if single else value}
    if not is_list:
        return dict.fromkeys(names, value)
    if len(value) != len(names):
        raise SpecError(
            f"{argument} has {len(value)} entries: expected one for each of the outputs "
            f"{list(names)}, or a dict by their names."
        )
    return dict(zip(names, value, strict=True))


@dataclasses.dataclass(frozen=True)
class _Output:
    """One output of the model with its parts of the arguments, None if absent."""

    name: str
    value: tf.Tensor
    mask: Any
    labels: Any
    weights: Any
    loss: Any
    loss_weights: Any

    @property
    def kind(self) -> str:
        """What Keras takes the labels for: 'binary', 'sparse_categorical' or 'categorical'."""
        labels, value = tf.convert_to_tensor(self.labels).shape, self.value.shape
        if value[-1] == 1:
            return "binary"
        is_sparse = labels.rank < value.rank or labels[-1] == 1
        return "sparse_categorical" if is_sparse else "categorical"

    def aligned(self, *, is_sparse: bool) -> tf.Tensor:
        """Returns the labels in the shape of the output; class numbers without its last axis.

        Raises:
          SpecError: they are absent, or Keras would broadcast one to the other.
        """
        if self.labels is None:
            raise SpecError(
                f"output {self.name!r} has a loss or a metric and no labels: expected labels for "
                "it. Return (features, labels) from the input_fn, or set its loss to None."
            )
        labels, rank = tf.convert_to_tensor(self.labels), self.value.shape.rank
        expected = self.value.shape[:-1] if is_sparse else self.value.shape
        if labels.shape.rank == expected.rank - 1 and expected[-1] == 1:
            labels = labels[..., tf.newaxis]
        elif labels.shape.rank == expected.rank + 1 and labels.shape[-1] == 1:
            labels = tf.squeeze(labels, axis=-1)
        if labels.shape.rank != expected.rank or not labels.shape.is_compatible_with(expected):
            raise SpecError(
                f"output {self.name!r} has shape {self.value.shape} and its labels have "
                f"{labels.shape}: expected labels of shape {expected}. Change the units of the "
                f"last layer, or reshape the labels to {rank} dimensions."
            )
        return labels

    def losses(self) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns the losses, `[batch, ...]`, and weights that they are divided by, or None."""
        loss = self.loss
        if isinstance(loss, str) and loss.lower() in ("crossentropy", "ce"):
            loss = f"{self.kind}_crossentropy"
        try:
            loss = keras.losses.get(loss() if isinstance(loss, type) else loss)
        except (TypeError, ValueError):
            raise SpecError(
                f"loss is {shown(loss)}: expected one of Keras. Set loss='mse'."
            ) from None
        reduction = getattr(loss, "reduction", None)
        if reduction not in _REDUCTIONS:
            raise SpecError(
                f"the loss of output {self.name!r} has reduction={reduction!r}: expected the mean. "
                "Remove the argument reduction."
            )
        is_sparse = "sparse" in getattr(loss, "name", getattr(loss, "__name__", ""))
        labels = self.aligned(is_sparse=is_sparse)
        # The method `call` of a Loss object returns the losses before their mean.
        losses = (loss.call if isinstance(loss, keras.losses.Loss) else loss)(labels, self.value)
        losses = tf.cast(losses, tf.float32)
        if losses.shape.rank == 0:
            raise SpecError(
                f"the loss of output {self.name!r} returned a scalar: expected losses by example."
            )
        mask = None if self.mask is None else _spread(self.mask, losses)
        if self.weights is None:
            return losses, mask
        weights = _spread(self.weights, losses)
        if reduction != "mean_with_sample_weight":
            return losses * weights, mask
        return losses, weights if mask is None else weights * mask


def _total(outputs: Sequence[_Output]) -> tuple[Any, Any, dict[str, Any]]:
    """Returns losses, their weights, and the losses of several outputs as metrics."""
    if not outputs:
        return None, None, {}
    losses = {each.name: each.losses() for each in outputs}
    factors = {each.name: each.loss_weights for each in outputs}
    if len(outputs) == 1:
        [(name, (loss, weights))] = losses.items()
        return loss if factors[name] is None else loss * factors[name], weights, {}
    if masked := [name for name, (_, weights) in losses.items() if weights is not None]:
        raise SpecError(
            f"the outputs {masked} of several have masks, or losses with "
            "reduction='mean_with_sample_weight': expected neither. Write a model_fn that adds up "
            "the losses."
        )
    by_example = {
        name: tf.reduce_mean(loss, list(range(1, loss.shape.rank)))
        for name, (loss, _) in losses.items()
    }
    total = tf.add_n(
        [v if factors[name] is None else v * factors[name] for name, v in by_example.items()]
    )
    return total, None, {f"{name}_loss": value for name, value in by_example.items()}


def _declare(
    metrics: dict[str, Any], output: _Output, listed: Any, field: str, *, several: bool
) -> None:
    """Adds the metrics of one output, with the names that Keras gives them."""
    if listed is None:
        return
    if not isinstance(listed, Mapping | list | tuple):
        listed = [listed]
    pairs = listed.items() if isinstance(listed, Mapping) else [(_name_of(m), m) for m in listed]
    prefix = f"{output.name}_" if several else ""
    for name, given in pairs:
        full_name = f"{prefix}{name}"
        if full_name in metrics and field == "weighted_metrics":
            full_name = f"{prefix}weighted_{name}"
        if full_name in metrics:
            raise SpecError(
                f"{field} has {full_name!r} twice: expected different names. Set a metric's "
                "argument name."
            )
        metrics[full_name] = _metric(given, output, is_weighted=field == "weighted_metrics")


def _metric(given: Any, output: _Output, *, is_weighted: bool) -> Metric:
    labels = output.aligned(is_sparse=output.kind == "sparse_categorical")
    factory = _factory(given, output)
    weights = [each for each in (output.mask, output.weights if is_weighted else None)]
    weights = [tf.cast(each, tf.float32) for each in weights if each is not None]
    if len(weights) == 2:
        weights = [weights[0] * _spread(weights[1], weights[0])]
    options = {"sample_weight": weights[0]} if weights else {}
    return metric(factory, labels, output.value, **options)


def _factory(given: Any, output: _Output) -> Callable[[], keras.metrics.Metric]:
    """Returns a function that makes the metric, whose variables must not be made here."""
    if isinstance(given, str) and given.lower() in ("accuracy", "acc"):
        return {
            "binary": keras.metrics.BinaryAccuracy,
            "sparse_categorical": keras.metrics.SparseCategoricalAccuracy,
            "categorical": keras.metrics.CategoricalAccuracy,
        }[output.kind]

    def make() -> keras.metrics.Metric:
        try:
            if isinstance(given, keras.metrics.Metric):
                return type(given).from_config(given.get_config())
            found = given() if isinstance(given, type) else keras.metrics.get(given)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"metrics has {shown(given)}, which Keras cannot make: expected the name of a "
                f"metric, a function, or a metric that from_config can copy. {error}"
            ) from error
        is_metric = isinstance(found, keras.metrics.Metric)
        return found if is_metric else keras.metrics.MeanMetricWrapper(found)

    return make


def _name_of(given: Any) -> str:
    """Returns the name that Keras gives a metric."""
    name = given if isinstance(given, str) else getattr(given, "name", None)
    name = name or (None if isinstance(given, type) else getattr(given, "__name__", None))
    if name is None:
        raise SpecError(
            f"metrics has {shown(given)}, which has no name: expected a metric, its name, or a "
            "dict. Set metrics={'auc': keras.metrics.AUC}."
        )
    return name


def _by_name(network: keras.Model, outputs: Any) -> dict[str, tf.Tensor]:
    """Returns the outputs by name; a single one is called `output`."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if not isinstance(outputs, list | tuple):
        return {"output": outputs}
    names = getattr(network, "output_names", None) or []
    if len(names) != len(outputs):
        names = [f"output_{index}" for index in range(len(outputs))]
    return dict(zip(names, outputs, strict=True))


def _as_float32(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.float32) if value.dtype.is_floating else tf.identity(value)


def _spread(weights: Any, losses: tf.Tensor) -> tf.Tensor:
    """Returns weights `[batch]` or `[batch, 1]` with the rank of `[batch, ...]` losses."""
    weights = tf.cast(weights, tf.float32)
    if weights.shape.rank == losses.shape.rank + 1 and weights.shape[-1] == 1:
        weights = tf.squeeze(weights, axis=-1)
    missing = losses.shape.rank - weights.shape.rank
    return tf.reshape(weights, tf.concat([tf.shape(weights), [1] * missing], axis=0))
