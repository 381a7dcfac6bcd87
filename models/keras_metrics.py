"""Keras' metrics, as `compile` names them, as metrics of an EstimatorSpec."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline import SpecError, metric

from .keras_losses import aligned


class SavedMetric:
    """A metric as `compile` has kept it, which is made where its state is wanted.

    Attributes:
      name: its name.
    """

    def __init__(self, saved: Mapping[str, Any]) -> None:
        """Makes nothing yet.

        Args:
          saved: what Keras has saved of it.
        """
        self._saved = saved
        self.name: str = saved["config"]["name"]

    def __call__(self) -> keras.metrics.Metric:
        """Returns a new metric, the mean of it where it is a loss.

        Raises:
          SpecError: Keras does not know its class.
        """
        try:
            made = keras.saving.deserialize_keras_object(self._saved)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"the model was compiled with the metric {self.name!r}, which Keras "
                "cannot make again: decorate its class with "
                "@keras.saving.register_keras_serializable(), or hand it to "
                f"keras_model_fn. Keras says: {error}"
            ) from error
        if isinstance(made, keras.metrics.Metric):
            return made
        return keras.metrics.MeanMetricWrapper(made, name=self.name)


def read_metrics(saved: Any) -> Any:
    """Returns metrics in the form that `compile` was given, without making any.

    Args:
      saved: what Keras has saved of the argument: one metric, or a list or dict.

    Raises:
      ValueError: it names a function that Keras does not know; so does TypeError.
    """
    if isinstance(saved, (list, tuple)):
        return [read_metrics(each) for each in saved]
    if not isinstance(saved, Mapping):
        return saved
    if "class_name" not in saved:
        return {name: read_metrics(each) for name, each in saved.items()}
    config = saved.get("config")
    if isinstance(config, Mapping) and "name" in config:
        return SavedMetric(saved)
    return keras.saving.deserialize_keras_object(saved)


def metrics_of(
    metrics: Mapping[str, Any],
    labels: Mapping[str, Any],
    outputs: Mapping[str, tf.Tensor],
    *,
    masks: Mapping[str, tf.Tensor],
) -> dict[str, Any]:
    """Returns the metrics of all outputs, named as Keras names them.

    Args:
      metrics: metrics of each output: one, a list, or None.
      labels: labels of each output.
      outputs: float32 outputs by name.
      masks: masks by the outputs' names; a masked step counts for nothing.

    Raises:
      SpecError: a metric is none, two have one name, or labels are missing.
    """
    declared: dict[str, Any] = {}
    for output, given in metrics.items():
        if given is None:
            continue
        for name, each in _named(given):
            if labels[output] is None:
                raise SpecError(
                    f"the output {output!r} has the metric {each!r} and no labels: "
                    "return labels for it from input_fn."
                )
            factory = _factory_of(each, labels[output], outputs[output])
            name = name if len(metrics) == 1 else f"{output}_{name}"
            if name in declared:
                raise SpecError(
                    f"two metrics are named {name!r}: write a dict of names and "
                    "metrics, metrics={'auc': keras.metrics.AUC}."
                )
            pair = _paired(output, factory, labels[output], outputs[output])
            weight = {"sample_weight": masks[output]} if output in masks else {}
            declared[name] = metric(factory, *pair, **weight)
    return declared


def _named(given: Any) -> list[tuple[str, Any]]:
    """Returns metrics with their names, of a dict, a list, or one."""
    if isinstance(given, Mapping):
        return list(given.items())
    several = isinstance(given, Sequence) and not isinstance(given, str)
    return [(_name_of(each), each) for each in (given if several else [given])]


def _name_of(given: Any) -> str:
    """Returns the name that Keras gives a metric."""
    if isinstance(given, str):
        return given
    name = getattr(given, "name", None) or getattr(given, "__name__", None)
    # A class has its name only when it is made, and here is no place to make it.
    if name is None or isinstance(given, type):
        raise SpecError(
            f"{given!r} has no name: write a dict, metrics={{'auc': {name or given}}}."
        )
    return name


def _factory_of(
    given: Any, labels: tf.Tensor, outputs: tf.Tensor
) -> Callable[[], keras.metrics.Metric]:
    """Returns a function that makes a metric, as its variables are not made here."""
    if isinstance(given, str) and given.lower() in ("accuracy", "acc"):
        return _accuracy(labels, outputs)
    if isinstance(given, SavedMetric):
        return given
    if isinstance(given, keras.metrics.Metric):
        config = given.get_config()
        return lambda: type(given).from_config(config)
    return lambda: _made(given)


def _made(given: Any) -> keras.metrics.Metric:
    """Returns the metric of a name, a class, or a function of labels and outputs."""
    try:
        found = given() if isinstance(given, type) else keras.metrics.get(given)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{given!r} is no metric: write metrics=['accuracy'], or "
            "{'auc': keras.metrics.AUC}."
        ) from error
    if isinstance(found, keras.metrics.Metric):
        return found
    return keras.metrics.MeanMetricWrapper(found)


def _accuracy(
    labels: tf.Tensor, outputs: tf.Tensor
) -> Callable[[], keras.metrics.Metric]:
    """Returns the accuracy that fits: of two classes, of numbers, or of shares."""
    if outputs.shape[-1] == 1:
        return keras.metrics.BinaryAccuracy
    is_sparse = labels.shape.rank < outputs.shape.rank or labels.shape[-1] == 1
    if is_sparse:
        return keras.metrics.SparseCategoricalAccuracy
    return keras.metrics.CategoricalAccuracy


def _paired(output: str, factory: Any, labels: Any, outputs: tf.Tensor) -> Any:
    """Returns labels and outputs as a metric's `update_state` takes them."""
    wide = outputs.shape.rank > 1 and outputs.shape[-1] != 1
    sparse = wide and (labels.shape.rank < outputs.shape.rank or labels.shape[-1] == 1)
    return aligned(output, labels, outputs, is_sparse=bool(sparse)), outputs
