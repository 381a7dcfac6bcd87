# SPDX-License-Identifier: Apache-2.0
"""Makes an EstimatorSpec from a Keras model and the arguments of `compile`.

    parts = compile_parts(model)
    outputs = model(features, training=mode == ModeKeys.TRAIN)
    spec = compiled_spec(mode, model, outputs, labels, parts)

The loss, the metrics and the updates are those of `fit` and `evaluate`. Losses are called without
their reduction, which divides each batch by its own size, and metrics without their state.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from .. import private
from ..contract.batch_functions import warn_of_joined
from ..contract.checks import repr_short
from ..contract.spec import EstimatorSpec, ModeKeys, metric
from ..contract.train_op import TrainOp
from ..errors import SpecError

# A loss without a reduction means its mean here; in `fit` Keras' own step is taken for it.
_REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "none", None)
# Losses of Keras whose labels have another shape than the outputs.
_OTHER_LABELS = ("CTC", "ctc")


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
      weighted_metrics: metrics that take the weights of the examples, in the same forms.
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
    config = private.compile_arguments(model)
    if not isinstance(model, keras.Model) or config.get("optimizer") is None:
        raise SpecError(
            f"{repr_short(model)} is not a compiled Keras model. Call "
            "model.compile(optimizer='adam', loss='mse') before it is returned."
        )
    optimizer = model.optimizer  # In mixed_float16 Keras wraps it.
    fields = ("loss", "loss_weights", "metrics", "weighted_metrics")
    given = {name: config.get(name) for name in fields}
    return CompileParts(getattr(optimizer, "inner_optimizer", optimizer), **given)


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
    masks = {name: _mask_of(each) for name, each in by_name.items()}
    by_name = {name: _as_float32(each) for name, each in by_name.items()}
    if mode == ModeKeys.PREDICT:
        single = tf.is_tensor(outputs)
        return EstimatorSpec(mode, predictions=_as_float32(outputs) if single else by_name)

    given = {"labels": labels, "weights": weights, "metrics": parts.metrics}
    given |= {"loss": parts.loss, "loss_weights": parts.loss_weights}
    given |= {"weighted_metrics": parts.weighted_metrics}
    split = {key: _by_output(key, value, list(by_name)) for key, value in given.items()}
    found = [
        _Output(name, by_name[name], masks[name], **{key: split[key][name] for key in given})
        for name in by_name
    ]
    loss, loss_weights, metrics = _total([each for each in found if each.loss is not None])
    for each in found:
        _declare(metrics, each, prefix=f"{each.name}_" if len(found) > 1 else "")
        _declare(metrics, each, prefix=f"{each.name}_" if len(found) > 1 else "", weighted=True)
    if loss is None:  # The regularization is everything.
        loss = tf.zeros(tf.shape(found[0].value)[:1])
    train_op: Any = ()
    if mode == ModeKeys.TRAIN:
        train_op = TrainOp(parts.optimizer, network.trainable_variables, clip_norm=clip_norm)
    return EstimatorSpec(
        mode,
        loss=loss,
        loss_weights=loss_weights,
        # As in Keras the sum of a tensor that add_loss got.
        regularization_losses=[tf.reduce_sum(added) for added in network.losses],
        train_op=train_op,
        metrics=metrics,
    )


def _by_output(argument: str, value: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns an argument of `compile` by the names of the outputs.

    The value is that of one output, or a dict or a list for all.
    """
    is_list = isinstance(value, list | tuple)
    if isinstance(value, Mapping) and (len(names) > 1 or set(value) == set(names)):
        if unknown := sorted(value.keys() - set(names)):
            raise SpecError(f"{argument} has {unknown}: expected names of outputs, {list(names)}.")
        return {name: value.get(name) for name in names}
    if len(names) == 1:
        single = is_list and len(value) == 1
        if argument.endswith("metrics"):  # [["mae", "mse"]] is a list for each output.
            single = single and isinstance(value[0], list | tuple)
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
    metrics: Any
    loss: Any
    loss_weights: Any
    weighted_metrics: Any

    @property
    def kind(self) -> str:
        """What Keras takes the labels for: 'binary', 'sparse_categorical' or 'categorical'."""
        labels, value = tf.convert_to_tensor(self.labels).shape, self.value.shape
        if value[-1] == 1:
            return "binary"
        is_sparse = labels.rank < value.rank or labels[-1] == 1
        return "sparse_categorical" if is_sparse else "categorical"

    def aligned(self, *, is_sparse: bool) -> tf.Tensor:
        """Returns the labels in the shape of the output; class numbers without its last axis."""
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
        """Returns the losses, `[batch, ...]`, and their mask or None."""
        loss = self.loss
        if isinstance(loss, str) and loss.lower() in ("crossentropy", "ce"):
            loss = f"{self.kind}_crossentropy"
        try:
            loss = keras.losses.get(loss() if isinstance(loss, type) else loss)
        except (TypeError, ValueError):
            raise SpecError(
                f"loss is {repr_short(loss)}: expected one of Keras. Set loss='mse'."
            ) from None
        reduction = getattr(loss, "reduction", None)
        if reduction not in _REDUCTIONS:
            raise SpecError(
                f"the loss of output {self.name!r} has reduction={reduction!r}: expected the mean. "
                "Remove the argument reduction."
            )
        # The method `call` of a Loss object returns the losses before their mean.
        call = loss.call if isinstance(loss, keras.losses.Loss) else loss
        name = str(getattr(loss, "name", getattr(loss, "__name__", "")))
        labels, outputs = self.labels, self.value
        if not _is_of_keras(call):
            labels, outputs = _as_keras_passes(labels, outputs, squeezes=call is loss)
        elif name not in _OTHER_LABELS:
            labels = self.aligned(is_sparse="sparse" in name)
        losses = tf.cast(call(labels, outputs), tf.float32)
        sizes = (None, self.value.shape[0], getattr(labels, "shape", [None])[0])
        if losses.shape.rank and losses.shape[0] not in sizes:  # A mean over the batch by column.
            losses = tf.reduce_mean(losses)
        mask = self.mask
        if losses.shape.rank == 0 or not _is_of_keras(call):
            warn_of_joined(f"the loss of output {self.name!r}", call, labels, outputs)
        if losses.shape.rank == 0:  # The mean over the batch; each example has it.
            if self.weights is not None and tf.distribute.get_strategy().num_replicas_in_sync > 1:
                _warn_of_scalar(self.name)
            losses, mask = tf.fill([tf.shape(self.value)[0]], losses), None
        mask = None if mask is None else _spread(mask, losses)
        if self.weights is not None:
            weights = _spread(self.weights, losses)
            if reduction == "mean_with_sample_weight":
                return losses, weights if mask is None else weights * mask
            losses *= weights
        return losses, mask


@functools.cache  # Once.
def _warn_of_scalar(name: str) -> None:
    logging.warning(
        "the loss of output %r joins the examples of a batch to one number, whose weights then "
        "count in each replica alone: return the losses by example, [batch].",
        name,
    )


def _total(outputs: Sequence[_Output]) -> tuple[Any, Any, dict[str, Any]]:
    """Returns losses, their weights, and the losses of several outputs as metrics."""
    if not outputs:
        return None, None, {}
    losses = {each.name: each.losses() for each in outputs}
    factors = [1.0 if each.loss_weights is None else each.loss_weights for each in outputs]
    if len(outputs) == 1:
        [(loss, mask)] = losses.values()
        return loss * factors[0], mask, {}
    masked = [name for name, (_, mask) in losses.items() if mask is not None]
    if masked and (number := tf.distribute.get_strategy().num_replicas_in_sync) > 1:
        raise SpecError(
            f"the outputs {masked} of several have masks on {number} replicas, each with its own "
            "number of positions: expected one replica, or no masks. Write a model_fn that adds up "
            "the losses."
        )
    by_example = {f"{n}_loss": _by_example(loss, mask) for n, (loss, mask) in losses.items()}
    weighted = [v * factor for v, factor in zip(by_example.values(), factors, strict=True)]
    return tf.add_n(weighted), None, by_example


def _by_example(losses: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """Returns losses `[batch]` whose mean is that of `[batch, ...]` losses, weighted by a mask."""
    if mask is not None:
        mask = tf.broadcast_to(mask, tf.shape(losses))
        number = tf.cast(tf.size(mask), tf.float32)
        losses *= mask * tf.math.divide_no_nan(number, tf.reduce_sum(mask))
    return tf.reduce_mean(losses, list(range(1, losses.shape.rank)))


def _declare(
    metrics: dict[str, Any], output: _Output, *, prefix: str, weighted: bool = False
) -> None:
    """Adds the metrics of one output, or the weighted ones, with the names that Keras gives."""
    listed = output.weighted_metrics if weighted else output.metrics
    if not listed:
        return
    if not isinstance(listed, Mapping | list | tuple):
        listed = [listed]
    pairs = listed.items() if isinstance(listed, Mapping) else [(_name_of(m), m) for m in listed]
    mask = {} if output.mask is None else {"sample_weight": tf.cast(output.mask, tf.float32)}
    if weighted and output.weights is not None:
        weights = tf.cast(output.weights, tf.float32)
        if mask:
            weights = _spread(weights, output.mask) * mask["sample_weight"]
        mask = {"sample_weight": weights}
    for name, given in pairs:
        if weighted and f"{prefix}{name}" in metrics:
            name = f"weighted_{name}"
        if f"{prefix}{name}" in metrics:
            raise SpecError(
                f"metrics has {prefix + name!r} twice: expected different names. Set a metric's "
                "argument name."
            )
        is_of_keras = isinstance(given, str) or _is_of_keras(given)
        labels = output.labels  # As Keras passes them.
        if is_of_keras or labels is None:
            labels = output.aligned(is_sparse=output.kind == "sparse_categorical")
        if inspect.isfunction(given) and not is_of_keras:
            warn_of_joined(f"metric {name!r}", given, labels, output.value)
        factory = _factory(given, output)
        metrics[f"{prefix}{name}"] = metric(factory, labels, output.value, **mask)


def _is_of_keras(function: Callable[..., Any]) -> bool:
    return str(getattr(function, "__module__", "")).startswith("keras.")


def _factory(given: Any, output: _Output) -> Callable[[], keras.metrics.Metric]:
    """Returns a function of the metric: a metric object itself, which has settings of the user.

    Another metric must not be made here, where model_fn runs.
    """
    if isinstance(given, str) and given.lower() in ("accuracy", "acc"):
        return {
            "binary": keras.metrics.BinaryAccuracy,
            "sparse_categorical": keras.metrics.SparseCategoricalAccuracy,
            "categorical": keras.metrics.CategoricalAccuracy,
        }[output.kind]

    def make() -> keras.metrics.Metric:
        try:
            found = given() if isinstance(given, type) else keras.metrics.get(given)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"metrics has {repr_short(given)}, which Keras cannot make: expected a metric, its "
                f"name, or a function. {error}"
            ) from error
        is_metric = isinstance(found, keras.metrics.Metric)
        function = found if is_metric or output.mask is not None else _by_rows(found)
        return found if is_metric else keras.metrics.MeanMetricWrapper(function)

    return make


def _by_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a metric function whose one number counts by its rows on several replicas."""

    def call(labels: Any, outputs: Any) -> Any:
        value = tf.convert_to_tensor(function(labels, outputs))
        several = tf.distribute.get_strategy().num_replicas_in_sync > 1
        return tf.fill([tf.shape(outputs)[0]], value) if several and value.shape == () else value

    return call


def _name_of(given: Any) -> str:
    """Returns the name that Keras gives a metric."""
    name = given if isinstance(given, str) else getattr(given, "name", None)
    if name is None and inspect.isroutine(given):
        name = re.sub(r"\W+", "", given.__name__)  # As Keras: `lambda`, `mean_error`.
        name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
        name = re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
    if name is None:
        raise SpecError(
            f"metrics has {repr_short(given)}, which has no name: expected a metric, its name, or "
            "a dict. Set metrics={'auc': keras.metrics.AUC}."
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


def _mask_of(output: tf.Tensor) -> Any:
    """Returns the mask that Keras' layers gave an output, or None: Keras hands it to a layer."""
    masks = []

    def call(value: tf.Tensor, mask: Any = None) -> tf.Tensor:
        masks.append(mask)
        return value

    # `mask` says that the layer handles masks; `name` takes no number of the process.
    keras.layers.Lambda(call, mask=lambda _, mask: mask, autocast=False, name="mask")(output)
    return masks[0]


def _as_keras_passes(labels: Any, outputs: Any, *, squeezes: bool) -> tuple[Any, Any]:
    """Returns what Keras passes to a loss of the user: floats, whose ranks differ by no 1.

    For a Loss object Keras leaves `[n]` and `[n, 1]`, which broadcast to `[n, n]`.

    Args:
      labels: labels of the user, of any shape.
      outputs: output of the model.
      squeezes: whether an output `[..., 1]` loses its last axis, as for a function.
    """
    if not tf.is_tensor(labels):
        return labels, outputs
    if labels.dtype.is_integer or labels.dtype.is_bool:
        labels = tf.cast(labels, outputs.dtype)
    longer = outputs.shape.rank - labels.shape.rank
    if longer == 1 and outputs.shape[-1] == 1:
        if squeezes and labels.shape.rank > 1:
            return labels, tf.squeeze(outputs, -1)
        return labels[..., tf.newaxis], outputs
    if longer == -1 and labels.shape[-1] == 1:
        return tf.squeeze(labels, -1), outputs
    return labels, outputs


def _as_float32(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.float32) if value.dtype.is_floating else tf.identity(value)


def _spread(weights: Any, losses: tf.Tensor) -> tf.Tensor:
    """Returns weights `[batch]` or `[batch, 1]` with the rank of `[batch, ...]` losses."""
    weights = tf.cast(weights, tf.float32)
    if weights.shape.rank == losses.shape.rank + 1 and weights.shape[-1] == 1:
        weights = tf.squeeze(weights, axis=-1)
    missing = losses.shape.rank - weights.shape.rank
    return tf.reshape(weights, tf.concat([tf.shape(weights), [1] * missing], axis=0))
