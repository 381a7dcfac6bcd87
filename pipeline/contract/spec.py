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
from collections.abc import Mapping, Sequence, Set
from typing import Any

import tensorflow as tf

from pipeline.contract.metrics import check_name, checked_metrics
from pipeline.contract.summaries import Summary
from pipeline.contract.train_op import SpecError, TrainOp
from pipeline.mistakes import habits
from pipeline.mistakes.checks import kind_of


class ModeKeys:
    """The modes in which a model_fn is called."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"

    ALL = (TRAIN, EVAL, PREDICT)


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
        is not added unless it is given here. One that depends on the batch counts as
        a mean over it, by the part's sum of loss_weights.
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
      tensors: `{name: tensor}` for hooks, which read `run.report.tensors`: of the last
        step before a hook is called, in TRAIN. Where the first dimension is the batch,
        the examples of all replicas and micro-batches in the order of the input; else
        the first replica's. Where no hook wants them, they are not computed.
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
    tensors: Mapping[str, Any] | None = None

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
        object.__setattr__(self, "metrics", checked_metrics(self.metrics))
        object.__setattr__(self, "scalars", _checked_scalars(self.scalars))
        both = sorted(self.metrics.keys() & self.scalars.keys())
        if both:
            raise SpecError(
                f"metrics and scalars share the names {both}, under which both are "
                "reported: give each a name of its own."
            )
        taken = self.metrics.keys() | self.scalars.keys()
        object.__setattr__(self, "summaries", _checked_summaries(self.summaries, taken))
        taken |= self.summaries.keys()
        object.__setattr__(self, "tensors", _checked_tensors(self.tensors, taken))
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
        fewer = 0 < (shape.rank or 0) < (loss.shape.rank or 0)
        ambiguous = fewer and shape[0] in (None, loss.shape[0])
        fits = broadcast is not None and broadcast.is_compatible_with(loss.shape)
        if ambiguous or not fits:
            instead = (
                ": write weights[..., tf.newaxis], or weights[tf.newaxis] where they "
                "are none of examples"
            )
            raise SpecError(
                f"loss_weights of shape {shape} do not broadcast to the loss of shape "
                f"{loss.shape}{instead if ambiguous else ''}."
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


def _checked_scalars(scalars: Any) -> dict[str, Any]:
    if scalars is not None and not isinstance(scalars, Mapping):
        raise SpecError(f"scalars is {kind_of(scalars)}: write {{'norm': scalar}}.")
    checked = {}
    for name, value in (scalars or {}).items():
        check_name("scalars", name)
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
        check_name("summaries", name)
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


def _checked_tensors(tensors: Any, taken: Set[str]) -> dict[str, tf.Tensor]:
    """Returns the tensors by name, which none of the `taken` names is."""
    if tensors is not None and not isinstance(tensors, Mapping):
        raise SpecError(f"tensors is {kind_of(tensors)}: write {{'logits': logits}}.")
    for name in tensors or {}:
        check_name("tensors", name)
        if name in taken:
            raise SpecError(
                f"tensors has the name {name!r}, which metrics, scalars or summaries "
                "have: choose another."
            )
    return {name: _dense(name, value) for name, value in (tensors or {}).items()}


def _dense(name: str, value: Any) -> tf.Tensor:
    """Returns a tensor that can be handed out of a graph."""
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise SpecError(
            f"tensor {name!r} is {type(value).__name__}, which is no array: write "
            "x.to_tensor(), or tf.sparse.to_dense(x)."
        )
    try:
        # A tensor of another graph, which a layer has kept, shows itself here.
        value = tf.identity(value)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"tensor {name!r} is {kind_of(value)}, and is none that model_fn can hand "
            f"out here: {error}"
        ) from error
    if value.dtype in (tf.resource, tf.variant):
        raise SpecError(
            f"tensor {name!r} is of dtype {value.dtype.name}, which is no array: leave "
            "it out."
        )
    if value.shape.rank is None:
        raise SpecError(
            f"tensor {name!r} has a shape that cannot be known before it runs: write "
            "tf.ensure_shape(x, [None, 10])."
        )
    return value


def _check_export_outputs(outputs: Any) -> None:
    if not isinstance(outputs, Mapping) or not all(
        isinstance(value, Mapping) and value for value in outputs.values()
    ):
        raise SpecError(
            f"export_outputs is {outputs!r}: write "
            "{'serving_default': {'name': tensor}}."
        )
