"""EstimatorSpec and its parts, checked at the line of model_fn that makes them.

def model_fn(features, labels, mode, network, optimizer):
    logits = network(features, training=mode == ModeKeys.TRAIN)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"logits": logits})
    return EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
        train_op=TrainOp(optimizer, network.trainable_variables),
        metrics={
            "accuracy": metric(
                keras.metrics.SparseCategoricalAccuracy, labels, logits
            )
        },
    )
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import keras
import tensorflow as tf

from pipeline.contract.summaries import Summary
from pipeline.contract.train_op import SpecError, TrainOp
from pipeline.mistakes import habits
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


class ModeKeys:
    """The modes in which a model_fn is called."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"

    ALL = (TRAIN, EVAL, PREDICT)


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


@habits.estimator_spec
@dataclasses.dataclass(frozen=True)
class EstimatorSpec:
    """The answer of a model_fn: what to minimise, to measure, to predict.

    Attributes:
      mode: the mode that model_fn was called with.
      loss: per-example losses `[batch, ...]`, or a scalar that is the mean over
        this replica's batch. Floating point. Required in TRAIN and EVAL.
      loss_weights: token masks or example weights, broadcastable to `loss`. The
        minimised loss is sum(loss * weights) / sum(weights), over all replicas.
      regularization_losses: scalars, added once over all replicas; `network.losses`
        is not added unless it is given here.
      train_op: a `TrainOp`, or a list of them, applied in order. All gradients come
        from one forward pass, before any update, unless an op is `sequential`.
        Required in TRAIN.
      metrics: `{name: metric(factory, ...)}`, or `{name: tensor}` for a mean; in EVAL
        also `{name: host_metric(fn, ...)}`.
      predictions: nest of tensors with a leading batch dimension. Required in
        PREDICT.
      export_outputs: `{signature name: dict of tensors}` for a SavedModel; None
        exports `predictions` as `serving_default`.
      scalars: `{name: scalar}`, reported for the last step: the mean over replicas
        and micro-batches, each counted by its examples.
      summaries: `{name: image(x)}`, or `histogram`, `text`, `pr_curve`,
        `confusion_matrix`, for TensorBoard: of the step that ends each
        `RunConfig.save_summary_steps`, and of all examples of an evaluation. What only
        they need is computed at no other step.
      eval_metric_ops: tf.estimator's name for `metrics`.

    Raises:
      SpecError: the mode requires a field that is missing, or one has a wrong type.
    """

    # The order of the first six is tf.estimator's, whose users give them by position.
    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: dataclasses.InitVar[Mapping[str, Any] | None] = None
    export_outputs: Mapping[str, Mapping[str, Any]] | None = None
    _: dataclasses.KW_ONLY
    loss_weights: Any = None
    regularization_losses: Sequence[Any] | None = None
    metrics: Mapping[str, Any] | None = None
    scalars: Mapping[str, Any] | None = None
    summaries: Mapping[str, Summary] | None = None

    def __post_init__(self, eval_metric_ops: Mapping[str, Any] | None) -> None:
        if self.mode not in ModeKeys.ALL:
            raise SpecError(
                f"mode is {self.mode!r}, not one of {ModeKeys.ALL}: pass on the `mode` "
                "that model_fn was called with."
            )
        if eval_metric_ops is not None:
            if self.metrics is not None:
                raise SpecError(
                    "both metrics and eval_metric_ops are given; they are one field "
                    "under two names: keep metrics."
                )
            object.__setattr__(self, "metrics", eval_metric_ops)
        self._check_required()
        if self.loss is not None:
            object.__setattr__(
                self, "loss", _checked_loss(self.loss, self.loss_weights)
            )
        regularization = self.regularization_losses
        if tf.is_tensor(regularization):
            regularization = [regularization]
        object.__setattr__(self, "regularization_losses", list(regularization or ()))
        object.__setattr__(
            self, "train_op", _checked_train_ops(self.mode, self.train_op)
        )
        object.__setattr__(self, "metrics", _checked_metrics(self.metrics))
        object.__setattr__(self, "scalars", _checked_scalars(self.scalars))
        both = sorted(self.metrics.keys() & self.scalars.keys())
        if both:
            raise SpecError(
                f"metrics and scalars share the names {both}, under which both are "
                "reported: give each a name of its own."
            )
        taken = self.metrics.keys() | self.scalars.keys()
        object.__setattr__(self, "summaries", _checked_summaries(self.summaries, taken))
        if self.export_outputs is not None:
            _check_export_outputs(self.export_outputs)

    def _check_required(self) -> None:
        needs = {
            ModeKeys.TRAIN: ("loss", "train_op"),
            ModeKeys.EVAL: ("loss",),
            ModeKeys.PREDICT: ("predictions",),
        }[self.mode]
        missing = [name for name in needs if getattr(self, name) is None]
        if missing:
            examples = {
                "loss": "loss=keras.losses.sparse_categorical_crossentropy(...)",
                "train_op": "train_op=TrainOp(optimizer, network.trainable_variables)",
                "predictions": "predictions={'logits': logits}",
            }
            raise SpecError(
                f"mode {self.mode!r} needs {' and '.join(missing)}: write "
                f"EstimatorSpec(mode, {', '.join(examples[n] for n in missing)})."
            )


def _checked_loss(loss: Any, weights: Any) -> tf.Tensor:
    try:
        loss = tf.convert_to_tensor(loss)
    except (TypeError, ValueError) as error:
        raise SpecError(f"loss is {kind_of(loss)}, not a tensor: {error}") from error
    if not loss.dtype.is_floating:
        raise SpecError(
            f"loss has dtype {loss.dtype.name}; it must be floating point: write "
            "tf.cast(loss, tf.float32)."
        )
    if weights is not None and loss.shape.rank == 0:
        raise SpecError(
            "loss_weights are given with a scalar loss, which has already been "
            "averaged: return per-example losses, "
            "keras.losses.SparseCategoricalCrossentropy(reduction='none')."
        )
    if weights is not None:
        shape = tf.convert_to_tensor(weights).shape
        try:
            broadcast = tf.broadcast_static_shape(loss.shape, shape)
        except ValueError:
            broadcast = None
        # One weight for each example would broadcast over the last dimension instead.
        ambiguous = (loss.shape.rank or 0) > 1 and shape.rank == 1 and shape[0] is None
        fits = broadcast is not None and broadcast.is_compatible_with(loss.shape)
        if ambiguous or not fits:
            raise SpecError(
                f"loss_weights of shape {shape} do not broadcast to the loss of shape "
                f"{loss.shape}"
                + (": write weights[:, tf.newaxis]." if ambiguous else ".")
            )
    return loss


def _checked_train_ops(mode: str, train_op: Any) -> tuple[TrainOp, ...]:
    # `dataclasses.replace` hands in the () that EVAL and PREDICT have of this class.
    if train_op is None or (mode != ModeKeys.TRAIN and train_op == ()):
        return ()
    ops = tuple(train_op) if isinstance(train_op, (list, tuple)) else (train_op,)
    for op in ops:
        if not isinstance(op, TrainOp):
            raise SpecError(
                f"train_op is {kind_of(op)}, not a TrainOp: write "
                "train_op=TrainOp(optimizer, network.trainable_variables)."
            )
    if not ops:
        raise SpecError("train_op is an empty list: give at least one TrainOp.")
    return ops


def _checked_metrics(metrics: Any) -> dict[str, Metric | HostMetric]:
    if not isinstance(metrics, Mapping) and metrics is not None:
        raise SpecError(f"metrics is {kind_of(metrics)}: write {{'auc': metric(...)}}.")
    checked = {}
    for name, value in (metrics or {}).items():
        _check_name("metrics", name)
        if isinstance(value, (keras.metrics.Metric, tuple)):
            raise SpecError(
                f"metric {name!r} is {kind_of(value)}; the driver keeps the state: "
                "write metric(keras.metrics.SparseCategoricalAccuracy, labels, logits)."
            )
        if not isinstance(value, (Metric, HostMetric)):
            value = _mean_of(name, value)
        checked[name] = value
    return checked


def _mean_of(name: str, value: Any) -> Metric:
    try:
        value = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"metric {name!r} is {kind_of(value)}: write metric(factory, ...) or a "
            "tensor to take the mean of."
        ) from error
    return Metric(keras.metrics.Mean, (value,), {})


def _checked_scalars(scalars: Any) -> dict[str, Any]:
    if scalars is not None and not isinstance(scalars, Mapping):
        raise SpecError(f"scalars is {kind_of(scalars)}: write {{'norm': scalar}}.")
    checked = {}
    for name, value in (scalars or {}).items():
        _check_name("scalars", name)
        try:
            value = tf.cast(value, tf.float32)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            raise SpecError(
                f"scalar {name!r} is {kind_of(value)}, not a number: give a scalar "
                "tensor."
            ) from error
        if value.shape.rank not in (0, None):
            raise SpecError(
                f"scalar {name!r} has shape {value.shape}: write tf.reduce_mean(x)."
            )
        checked[name] = tf.ensure_shape(value, [])
    return checked


def _checked_summaries(summaries: Any, taken: Set[str]) -> dict[str, Summary]:
    """Returns the summaries by name, which none of the `taken` names is."""
    if summaries is not None and not isinstance(summaries, Mapping):
        raise SpecError(
            f"summaries is {kind_of(summaries)}: write {{'samples': image(x)}}."
        )
    for name, value in (summaries or {}).items():
        _check_name("summaries", name)
        if not isinstance(value, Summary):
            raise SpecError(
                f"summary {name!r} is {kind_of(value)}: write image(x), histogram(x), "
                "text(x), pr_curve(labels, probabilities) or confusion_matrix(labels, "
                "predictions, num_classes); a number goes to scalars= or metrics=."
            )
        if name in taken:
            raise SpecError(
                f"summaries has the name {name!r}, which metrics or scalars have, and "
                "TensorBoard would show one of them: choose another."
            )
    return dict(summaries or {})


def _check_export_outputs(outputs: Any) -> None:
    if not isinstance(outputs, Mapping) or not all(
        isinstance(value, Mapping) and value for value in outputs.values()
    ):
        raise SpecError(
            f"export_outputs is {outputs!r}: write "
            "{'serving_default': {'name': tensor}}."
        )


def reserved(name: str) -> bool:
    """Returns whether the driver reports a value of its own under `name`."""
    return name in _RESERVED or name.startswith(_RESERVED_PREFIX)


def _check_name(field: str, name: Any) -> None:
    """Checks the name of a metric or scalar, under which it is reported."""
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
