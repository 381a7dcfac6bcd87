# SPDX-License-Identifier: Apache-2.0
"""The return value of a model_fn: `EstimatorSpec` and metrics."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..errors import SpecError
from .checks import repr_short
from .old_names import reject_unknown_arguments
from .summaries import Summary
from .train_op import TrainOp


class ModeKeys:
    """The three modes in which a model_fn is called."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclasses.dataclass(frozen=True)
class Metric:
    """A Keras metric class or factory, and the arguments of its `update_state`."""

    factory: Callable[[], keras.metrics.Metric]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def metric(factory: Callable[[], keras.metrics.Metric], *args: Any, **kwargs: Any) -> Metric:
    """Declares a metric: `metric(keras.metrics.SparseCategoricalAccuracy, labels, logits)`."""
    if isinstance(factory, keras.metrics.Metric) or not callable(factory):
        raise SpecError(
            f"metric() got {repr_short(factory)}: expected a class or a function that returns a "
            "metric. Write metric(keras.metrics.AUC, labels, probabilities)."
        )
    return Metric(factory, args, kwargs)


@dataclasses.dataclass(frozen=True)
class NumpyMetric:
    """A Python function of whole arrays, and the tensors that it gets."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def numpy_metric(function: Callable[..., Any], *args: Any, **kwargs: Any) -> NumpyMetric:
    """Declares a metric that a Python function computes once for each evaluation.

    `numpy_metric(f1_score, labels, classes)` calls `f1_score` with NumPy arrays of all evaluated
    examples, in the order of the input, on each strategy. It is not computed in TRAIN.

    Args:
      function: returns a number or an array of numbers.
      *args: tensors `[batch, ...]`, whose examples have equal shapes; strings come as bytes.
      **kwargs: the same, passed by name.

    Returns:
      A value for `EstimatorSpec.metrics`.

    Raises:
      SpecError: `function` is not callable, or an argument is not a tensor with a batch dimension.
    """
    if not callable(function):
        raise SpecError(
            f"numpy_metric() got {repr_short(function)}: expected a function of arrays. Write "
            "numpy_metric(f1_score, labels, classes)."
        )
    return NumpyMetric(function, args, kwargs)


@reject_unknown_arguments
@dataclasses.dataclass(frozen=True)
class EstimatorSpec:
    """The result of one call of a model_fn on one replica's batch.

    Attributes:
      mode: the mode in which model_fn was called.
      predictions: nest of tensors `[batch, ...]`.
      loss: per-example losses `[batch, ...]`, or a scalar, the mean over the batch.
      train_op: the updates of a training step.
      eval_metric_ops: another name of `metrics`, as in tf.estimator; empty afterwards.
      export_outputs: outputs of each signature of an export, `{signature: {name: tensor}}`;
        None for the predictions as `serving_default`.
      loss_weights: weights of the per-example losses, of a shape that broadcasts.
      loss_reduction: "mean" minimizes the weighted mean of the losses over the global batch; "sum"
        their weighted sum, as the canned estimators of tf.compat.v1 do. A scalar loss is then the
        sum over this replica's batch, and the reported loss is the mean of the steps' sums.
      regularization_losses: scalars that are added to the mean loss once. Regularizers of a network
        have no effect without it, of which the trace of a training warns.
      metrics: metrics by name; for a plain tensor, its mean is reported.
      scalars: scalars by name, means over this replica's batch. Hooks get their means over
        the examples of the last step.
      tensors: tensors `[batch, ...]` by name, for hooks with `wants_tensors`.
      summaries: results of `image`, `text`, `histogram`, `pr_curve` and `confusion_matrix` by
        name. TensorBoard shows those of every `RunConfig.save_summary_steps`-th step, and of whole
        evaluations, which then make each step in a call.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: TrainOp | Sequence[TrainOp] | None = ()
    eval_metric_ops: Mapping[str, Any] | None = None
    export_outputs: Mapping[str, Mapping[str, Any]] | None = None
    _: dataclasses.KW_ONLY
    loss_weights: Any = None
    loss_reduction: str = "mean"
    regularization_losses: Sequence[Any] = ()
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    scalars: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tensors: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    summaries: Mapping[str, Summary] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in _REQUIRED:
            raise SpecError(
                f"EstimatorSpec.mode is {repr_short(self.mode)}: expected 'train', 'eval' or "
                "'infer'. Set it to the argument `mode` of model_fn."
            )
        self._set_train_op()
        self._set_metrics()
        for field in _REQUIRED[self.mode]:
            value = getattr(self, field)
            if value is None or isinstance(value, tuple) and not value:
                raise SpecError(
                    f"EstimatorSpec.{field} is None in mode {self.mode!r}: expected a value. Set "
                    f"EstimatorSpec(mode, {_EXAMPLES[field]})."
                )
        self._check_loss()
        scalars = {name: _scalar(name, value) for name, value in _items("scalars", self.scalars)}
        object.__setattr__(self, "scalars", scalars)
        self._check_summaries()
        _check_names(self.metrics, self.scalars, self.tensors, self.summaries)
        self._check_outputs()

    def _set_train_op(self) -> None:
        """Makes `train_op` a tuple of checked ops; empty outside of TRAIN."""
        ops = self.train_op
        ops = () if ops is None else (ops,) if isinstance(ops, TrainOp) else ops
        if self.mode != ModeKeys.TRAIN:
            ops = ()
        if not isinstance(ops, Iterable) or tf.is_tensor(ops):
            ops = (ops,)
        ops = tuple(ops)
        for op in ops:
            if not isinstance(op, TrainOp):
                raise SpecError(
                    f"EstimatorSpec.train_op is {repr_short(op)}: expected a TrainOp. Set "
                    f"{_EXAMPLES['train_op']}."
                )
            op.check()
        if len({id(op.optimizer) for op in ops}) < len(ops):
            raise SpecError(
                "two TrainOps have the same optimizer, which would count two updates in a step: "
                "expected a different optimizer in each TrainOp."
            )
        object.__setattr__(self, "train_op", ops)

    def _set_metrics(self) -> None:
        """Makes `metrics` Metric and NumpyMetric objects, also from `eval_metric_ops`."""
        if self.eval_metric_ops and self.metrics:
            raise SpecError(
                "EstimatorSpec has metrics and eval_metric_ops, two names of one argument: "
                "expected one of them. Leave out eval_metric_ops."
            )
        declared = self.eval_metric_ops or self.metrics
        metrics = {name: _declared(name, value) for name, value in _items("metrics", declared)}
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "eval_metric_ops", None)

    def _check_loss(self) -> None:
        if self.loss_reduction not in ("mean", "sum"):
            raise SpecError(
                f"EstimatorSpec.loss_reduction is {repr_short(self.loss_reduction)}: expected "
                "'mean' or 'sum'. Set loss_reduction='sum'."
            )
        if self.loss is None:
            return
        loss = _tensor("loss", self.loss)
        if not loss.dtype.is_floating:
            raise SpecError(
                f"EstimatorSpec.loss has dtype {loss.dtype.name}: expected a floating-point "
                "tensor. Set loss=tf.cast(loss, tf.float32)."
            )
        if self.loss_weights is None:
            return
        weights = _tensor("loss_weights", self.loss_weights).shape
        if loss.shape.rank is None or weights.rank in (None, 0):
            return
        if loss.shape.rank == 0:
            raise SpecError(
                f"EstimatorSpec.loss_weights has shape {weights}, and the loss is a scalar: "
                "expected a loss for each weight. Set loss to the losses by example, [batch, ...]."
            )
        # NumPy would broadcast [batch] along the last dimension, and not along the batch.
        if weights.rank != loss.shape.rank:
            remedy = "[..., tf.newaxis]" * (loss.shape.rank - weights.rank)
            raise SpecError(
                f"EstimatorSpec.loss_weights has shape {weights}, and the loss {loss.shape}: "
                f"expected equal ranks. Set loss_weights=weights{remedy or '[:, 0]'}."
            )
        for size, of_loss in zip(weights, loss.shape, strict=True):
            if size not in (None, 1, of_loss) and of_loss is not None:
                raise SpecError(
                    f"EstimatorSpec.loss_weights has shape {weights}, which does not broadcast to "
                    f"the loss, {loss.shape}: expected one weight for each loss."
                )

    def _check_summaries(self) -> None:
        for name, value in _items("summaries", self.summaries):
            if not isinstance(value, Summary):
                raise SpecError(
                    f"EstimatorSpec.summaries[{name!r}] is {repr_short(value)}: expected a "
                    f"summary. Set summaries={{{name!r}: histogram(x)}}, or metrics or scalars for "
                    "numbers."
                )

    def _check_outputs(self) -> None:
        """Checks that predictions, tensors and exports are tensors."""
        for field in ("predictions", "tensors"):
            for value in tf.nest.flatten(getattr(self, field)):
                if value is not None:
                    _tensor(field, value)
        outputs = {} if self.export_outputs is None else self.export_outputs
        for signature, tensors in _items("export_outputs", outputs):
            if not isinstance(tensors, Mapping):
                raise SpecError(
                    f"EstimatorSpec.export_outputs[{signature!r}] is {repr_short(tensors)}: "
                    "expected a dict. Set export_outputs={'serving_default': {'logits': logits}}."
                )
            for value in tensors.values():
                _tensor("export_outputs", value)


_REQUIRED = {
    ModeKeys.TRAIN: ("loss", "train_op"),
    ModeKeys.EVAL: ("loss",),
    ModeKeys.PREDICT: ("predictions",),
}
_EXAMPLES = {
    "loss": "loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True)",
    "train_op": "train_op=TrainOp(optimizer, network.trainable_variables)",
    "predictions": "predictions={'logits': logits}",
    "loss_weights": "loss_weights=weights",
    "tensors": "tensors={'logits': logits}",
    "export_outputs": "export_outputs={'serving_default': {'logits': logits}}",
}
# Names of results that the driver adds.
_RESERVED = ("loss", "global_step", "learning_rate")


def _items(field: str, values: Any) -> Iterable[tuple[str, Any]]:
    if values is None:
        return ()
    if not isinstance(values, Mapping):
        raise SpecError(
            f"EstimatorSpec.{field} is {repr_short(values)}: expected a dict. Set "
            f"{field}={{'name': value}}."
        )
    return values.items()


def _declared(name: str, value: Any) -> Metric | NumpyMetric:
    """Returns a metric of a spec; the mean of a plain tensor."""
    if isinstance(value, Metric | NumpyMetric):
        return value
    if isinstance(value, keras.metrics.Metric | tuple):
        kind = type(value).__name__ if not isinstance(value, tuple) else "AUC"
        raise SpecError(
            f"EstimatorSpec.metrics[{name!r}] is {repr_short(value)}: expected a declaration, "
            f"since the driver keeps the state. Set {{{name!r}: metric(keras.metrics.{kind}, "
            "labels, predicted)}."
        )
    _tensor(f"metrics[{name!r}]", value, "{'name': metric(keras.metrics.AUC, labels, predicted)}")
    return Metric(keras.metrics.Mean, (value,), {})


def _scalar(name: str, value: Any) -> tf.Tensor:
    tensor = _tensor(f"scalars[{name!r}]", value, f"scalars={{{name!r}: tf.reduce_mean(value)}}")
    if tensor.shape.rank not in (None, 0):
        raise SpecError(
            f"EstimatorSpec.scalars[{name!r}] has shape {tensor.shape}: expected a scalar. Set "
            f"scalars={{{name!r}: tf.reduce_mean(value)}}."
        )
    return value if tensor.shape.rank == 0 else tf.ensure_shape(tensor, [])


def _tensor(field: str, value: Any, example: str = "") -> Any:
    """Returns a value as a tensor; a ragged or sparse one as it is.

    Raises:
      SpecError: it is not a tensor.
    """
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        return value
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        raise SpecError(
            f"EstimatorSpec.{field} is {repr_short(value)}: expected a tensor. Set "
            f"{example or _EXAMPLES.get(field, f'{field}=value')}."
        ) from None


def _check_names(*groups: Mapping[str, Any]) -> None:
    """Checks that the results of a step have usable names, each once."""
    names = [name for group in groups for name in group]
    for name in names:
        if not (isinstance(name, str) and name and name == name.strip() and name.isprintable()):
            expected = "a printable name"
        elif name in _RESERVED or name.startswith("learning_rate/"):
            expected = "another name, since this is one of the driver's results"
        elif names.count(name) > 1:
            expected = "each name once in metrics, scalars, tensors and summaries"
        else:
            continue
        raise SpecError(
            f"EstimatorSpec has a metric, scalar, tensor or summary called {repr_short(name)}: "
            f"expected {expected}. Set a name such as 'accuracy'."
        )
