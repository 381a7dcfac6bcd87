"""Looks in the trace of a model_fn for what would be lost or wrong without a word.

A trace shows more than the spec that model_fn returns: summaries that nobody writes,
sums over the batch in place of means, each example beside each other one by mistake,
updates besides those of the TrainOps.
"""

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.contract.spec import EstimatorSpec
from pipeline.contract.train_op import SpecError
from pipeline.mistakes.checks import kind_of
from pipeline.tracing import batch_sums

# Operations of `tf.summary`; without a default writer all that is left is a constant.
_WRITES = re.compile(r"(?:(.*)/)?write_summary(?:_\d+)?/(.*)")
# Operations of `tf.compat.v1.summary`, which nobody runs.
_V1_SUMMARIES = (
    "ScalarSummary",
    "HistogramSummary",
    "ImageSummary",
    "AudioSummary",
    "TensorSummaryV2",
)
# Operations by element, with which `[n]` and `[n, 1]` make `[n, n]`.
_BY_ELEMENT = ("Sub", "SquaredDifference", "Mul")
# What makes `[n, 1]` on purpose, for pairs of examples; and vectors of no batch.
_ON_PURPOSE = ("ExpandDims", "Reshape")
_NO_BATCH = ("ReadVariableOp", "Const")
# The line to write in place of a sum over the batch, by field.
_INSTEAD = {
    "loss": "loss=per_example, [batch, ...], as it is before that sum: its mean over "
    "all replicas is minimised.",
    "TrainOp.loss": "TrainOp(..., loss=per_example), [batch, ...], as it is before "
    "that sum: its mean over all replicas is minimised.",
    "regularization_losses": "what each example has as a part of loss=per_example + "
    "penalty, [batch, ...], whose mean over all replicas is minimised.",
}


def remarks(graph: tf.Graph, spec: EstimatorSpec, rows: int | None) -> Iterator[str]:
    """Yields warnings about a trace, a sentence or two each.

    Args:
      graph: graph that model_fn was traced into.
      spec: spec that model_fn returned, of symbolic tensors.
      rows: examples in the batch; None where the shapes do not tell.

    Raises:
      SpecError: the predictions hold an object that is no tensor.
    """
    _check_predictions(spec.predictions)
    tags = _summaries(graph)
    if tags:
        yield (
            f"tf.summary of {', '.join(tags)} in model_fn is dropped, as steps are "
            "compiled and no writer is open: write EstimatorSpec(..., scalars={"
            f"{tags[0]!r}: value}}), or metrics=, which are reported; pictures, "
            f"histograms and texts go to summaries={{{tags[0]!r}: histogram(x)}}."
        )
    for field, scalar in _scalar_losses(spec):
        if summed := batch_sums.summed_by(scalar, rows):
            yield (
                f"{field} is a scalar that is summed over the batch (by {summed}), and "
                "a scalar counts as the mean over a replica's batch: on two replicas, "
                "or in two micro-batches, it would be half. Write "
                f"{_INSTEAD[field]}"
            )
    for op in _crossed(graph, rows):
        shapes = " and ".join(str(each.shape.as_list()) for each in op.inputs)
        yield (
            f"the operation {op.name} is of {shapes}: it is computed of each example "
            "with each other one, and a loss of it is none of the examples. Write "
            "predictions[:, 0], or labels[:, None], so that both have one shape; or "
            "x[:, None] where each with each is meant."
        )


def _scalar_losses(spec: EstimatorSpec) -> Iterator[tuple[str, Any]]:
    yield "loss", spec.loss
    yield from (("TrainOp.loss", op.loss) for op in spec.train_op)
    yield from (("regularization_losses", term) for term in spec.regularization_losses)


def _check_predictions(predictions: Any) -> None:
    for value in [] if predictions is None else tf.nest.flatten(predictions):
        try:
            # The parts of ragged and sparse tensors are tensors, too.
            tf.nest.map_structure(tf.convert_to_tensor, value, expand_composites=True)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"predictions holds {kind_of(value)}, not a tensor: give each a "
                "leading batch dimension, predictions={'logits': logits}."
            ) from error


def stray_error(names: Sequence[str | None]) -> SpecError:
    """Returns what to raise where model_fn creates variables that are in no module.

    Args:
      names: of the variables.
    """
    of_optimizer = {"iteration", "iterations", "learning_rate"} & set(names)
    kind = "optimizer" if of_optimizer else "layer"
    module = "optimizer" if of_optimizer else "network"
    return SpecError(
        f"model_fn created the variables {[n or 'unnamed' for n in names]} itself; "
        f"they would be in no checkpoint. Build the {kind} in a factory and hand it "
        f"in: Estimator(modules={{{module!r}: make_{module}}})."
    )


def refuse_variable(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Raises `stray_error`; a creator, for `tf.variable_creator_scope`.

    Args:
      next_creator: creator that would make the variable.
      **kwargs: arguments of the variable.

    Raises:
      SpecError: always.
    """
    raise stray_error([kwargs.get("name")])


def without_variables(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, refusing variables: those of the modules are there by then.

    Args:
      model_fn: function that makes none; one that did would make some at each step.
    """

    @functools.wraps(model_fn)
    def checked(*arguments: Any) -> Any:
        with tf.variable_creator_scope(refuse_variable):
            return model_fn(*arguments)

    return checked


@contextlib.contextmanager
def no_updates(
    modules: Iterable[Any], *, owns: Callable[[Any], bool]
) -> Iterator[None]:
    """Refuses updates in the block: the driver would update again, or not at all.

    Args:
      modules: modules, the optimizers among which may not be applied.
      owns: tells whether a Keras variable is one of the modules' by then.

    Raises:
      SpecError: an optimizer is applied, or a Keras metric called that is no module's.
    """

    def refuse(*_: Any, **__: Any) -> None:
        raise SpecError(
            "it applies gradients by an optimizer itself, and the driver does that, "
            "over all replicas: write train_op=TrainOp(optimizer, "
            "network.trainable_variables) instead."
        )

    # An optimizer may be a module under several names, and have an `apply` of its own.
    optimizers = {
        id(m): m for m in modules if isinstance(m, keras.optimizers.Optimizer)
    }
    own = {key: vars(each).get("apply") for key, each in optimizers.items()}
    for optimizer in optimizers.values():
        optimizer.apply = refuse
    try:
        with _no_metrics(owns):
            yield
    finally:
        for key, optimizer in optimizers.items():
            # Without an attribute of the object, its class's method is there again.
            del optimizer.apply
            if own[key] is not None:
                optimizer.apply = own[key]


@contextlib.contextmanager
def _no_metrics(owns: Callable[[Any], bool]) -> Iterator[None]:
    """Refuses Keras metrics in the block, but those that a layer has for itself."""
    kind = keras.metrics.Metric
    add_variable, call = kind.add_variable, kind.__call__

    def call_owned(metric: keras.metrics.Metric, *args: Any, **kwargs: Any) -> Any:
        if not all(owns(variable) for variable in metric.variables):
            raise _metric_error(metric)
        return call(metric, *args, **kwargs)

    def add_in_layer(metric: keras.metrics.Metric, *args: Any, **kwargs: Any) -> Any:
        try:
            return add_variable(metric, *args, **kwargs)
        except SpecError as error:
            # By `stray_error`, which knows of no metric.
            raise _metric_error(metric) from error

    kind.add_variable, kind.__call__ = add_in_layer, call_owned
    try:
        yield
    finally:
        kind.add_variable, kind.__call__ = add_variable, call


def _metric_error(metric: keras.metrics.Metric) -> SpecError:
    """Returns what to raise where model_fn has a metric of its own."""
    kind = type(metric)
    known = getattr(keras.metrics, kind.__name__, None) is kind
    name = f"keras.metrics.{kind.__name__}" if known else kind.__name__
    taken = [*inspect.signature(kind.update_state).parameters][1:]
    values = ", ".join(each for each in taken if each != "sample_weight")
    return SpecError(
        f"it has a metric {kind.__name__} of its own, whose state would be in no "
        "checkpoint, and of one replica: the driver keeps the state. Write "
        f"metrics={{'name': metric({name}, {values})}}."
    )


def _summaries(graph: tf.Graph) -> list[str]:
    """Returns the tags of the summaries that nobody would write."""
    written: dict[str, list[str]] = {}
    for op in graph.get_operations():
        if scope := _WRITES.fullmatch(op.name):
            written.setdefault(scope[1] or "a tensor", []).append(scope[2])
        elif op.type in _V1_SUMMARIES:
            written[op.name] = ["Const"]
    return [tag for tag, ops in written.items() if set(ops) == {"Const"}]


def _crossed(graph: tf.Graph, rows: int | None) -> Iterator[tf.Operation]:
    """Yields operations of `[n]` and `[n, 1]`: of each example with each, by mistake.

    Args:
      graph: graph of the trace.
      rows: examples in the batch; None where the shapes do not tell.
    """
    for op in graph.get_operations():
        if op.type in _BY_ELEMENT and all(x.shape.rank for x in op.inputs):
            vector, column = sorted(op.inputs, key=lambda each: each.shape.rank)
            if (
                vector.shape.as_list() == [rows]
                and column.shape.as_list() == [rows, 1]
                and rows != 1
                and vector.op.type not in _NO_BATCH
                and not _is_on_purpose(column.op)
            ):
                yield op


def _is_on_purpose(op: tf.Operation) -> bool:
    has_new_axis = op.type == "StridedSlice" and op.get_attr("new_axis_mask")
    return op.type in _ON_PURPOSE or bool(has_new_axis)
