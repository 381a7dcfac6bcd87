"""The metrics of a spec, and the names under which values of a spec are reported."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline.contract.train_op import SpecError
from pipeline.mistakes.checks import kind_of

# Names of the values that the driver reports itself, beside metrics and scalars.
_RESERVED = (
    "loss",
    "global_step",
    "global_step/sec",
    "examples/sec",
    "input_wait",
    "learning_rate",
)
_RESERVED_PREFIX = "learning_rate/"


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric to keep: its factory, and the tensors of one batch to update it with."""

    factory: Callable[[], keras.metrics.Metric]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def metric(factory: Callable[[], Any], *args: Any, **kwargs: Any) -> Metric:
    """Declares a metric: `metric(keras.metrics.SparseCategoricalAccuracy, y, p)`.

    The driver keeps its state, over all replicas and batches.

    Args:
      factory: function or class that makes a Keras metric; called without arguments.
      *args: tensors of this replica's batch for `update_state`.
      **kwargs: more of these by name, such as `sample_weight`.

    Raises:
      SpecError: `factory` is a metric that was already built, or cannot be called.
    """
    if isinstance(factory, keras.metrics.Metric) or not callable(factory):
        raise SpecError(
            f"metric() takes a factory first and got {kind_of(factory)}: write "
            "metric(keras.metrics.SparseCategoricalAccuracy, labels, logits), or "
            "metric(lambda: keras.metrics.AUC(num_thresholds=50), labels, p)."
        )
    return Metric(factory, args, dict(kwargs))


@dataclasses.dataclass(frozen=True)
class HostMetric:
    """A metric of all examples at once: its function, and the tensors of one batch."""

    fn: Callable[..., Any]
    tensors: tuple[tf.Tensor, ...]


def host_metric(fn: Callable[..., Any], *tensors: Any) -> HostMetric:
    """Declares a metric that is no sum over batches: `host_metric(f1, labels, ids)`.

    After an evaluation `fn` is called once, in Python, with all of its examples: a
    CRF's F1, BLEU, an FID. Each process holds the tensors of the whole evaluation in
    memory until then, so hand in ids rather than logits. TRAIN leaves it out.

    Args:
      fn: takes a NumPy array for each tensor, `[examples, ...]` in the order of the
        input; strings are bytes. Returns a number or an array, the same in each
        process.
      *tensors: tensors `[batch, ...]` of this replica's batch, of the same shape in
        each batch but for the first dimension.

    Raises:
      SpecError: `fn` cannot be called, or there is no tensor with a batch dimension.
    """
    if isinstance(fn, type) or not callable(fn) or not tensors:
        raise SpecError(
            f"host_metric() takes a function and tensors, and got {kind_of(fn)} and "
            f"{len(tensors)} tensors: write host_metric(f1, labels, predicted), where "
            "def f1(labels, predicted) takes NumPy arrays and returns a number."
        )
    return HostMetric(fn, tuple(_with_batch(tensor) for tensor in tensors))


def checked_metrics(metrics: Any) -> dict[str, Metric | HostMetric]:
    """Returns `EstimatorSpec.metrics`, a mean for each tensor.

    Args:
      metrics: metrics or tensors by name, or None.

    Raises:
      SpecError: one of them is none, or has no name that can be reported.
    """
    if not isinstance(metrics, Mapping) and metrics is not None:
        raise SpecError(f"metrics is {kind_of(metrics)}: write {{'auc': metric(...)}}.")
    checked = {}
    for name, value in (metrics or {}).items():
        check_name("metrics", name)
        if isinstance(value, (keras.metrics.Metric, tuple)):
            raise SpecError(
                f"metric {name!r} is {kind_of(value)}; the driver keeps the state: "
                "write metric(keras.metrics.SparseCategoricalAccuracy, labels, logits)."
            )
        if not isinstance(value, (Metric, HostMetric)):
            value = _mean_of(name, value)
        checked[name] = value
    return checked


def reserved(name: str) -> bool:
    """Returns whether the driver reports a value of its own under `name`."""
    return name in _RESERVED or name.startswith(_RESERVED_PREFIX)


def check_name(field: str, name: Any) -> None:
    """Checks the name of a metric or scalar, under which it is reported.

    Args:
      field: field of EstimatorSpec that has the name.
      name: the name.

    Raises:
      SpecError: the name is the driver's own, or no log shows it as it is.
    """
    if not isinstance(name, str):
        raise SpecError(f"{field} has the name {kind_of(name)}: write a string.")
    if reserved(name):
        raise SpecError(
            f"{field} has the name {name!r}, which the driver reports itself "
            f"({', '.join(_RESERVED)}, {_RESERVED_PREFIX}...): choose another."
        )
    if not name or name != name.strip() or not name.isprintable():
        raise SpecError(
            f"{field} has the name {name!r}, which no log or TensorBoard shows as it "
            "is: write words and slashes, 'accuracy/top_5'."
        )


def _with_batch(tensor: Any) -> tf.Tensor:
    """Returns a dense tensor with a batch dimension.

    Raises:
      SpecError: the value is none.
    """
    if isinstance(tensor, (tf.RaggedTensor, tf.SparseTensor)):
        raise SpecError(
            f"host_metric() got {type(tensor).__name__}, which has no fixed shape: "
            "write x.to_tensor(shape=[None, 128]), or tf.sparse.to_dense(x)."
        )
    try:
        tensor = tf.convert_to_tensor(tensor)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"host_metric() got {kind_of(tensor)}, not a tensor: hand in tensors "
            "[batch, ...]."
        ) from error
    if tensor.shape.rank == 0:
        raise SpecError(
            "host_metric() got a scalar, and examples are gathered: hand in tensors "
            "[batch, ...]."
        )
    return tensor


def _mean_of(name: str, value: Any) -> Metric:
    try:
        value = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"metric {name!r} is {kind_of(value)}: write metric(factory, ...) or a "
            "tensor to take the mean of."
        ) from error
    return Metric(keras.metrics.Mean, (value,), {})
