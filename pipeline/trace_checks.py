"""What the trace of a model_fn shows that would be lost or wrong without a word."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.checks import kind_of
from pipeline.model_fn import EstimatorSpec, SpecError

# Where `tf.summary` writes; without a default writer all it leaves is a constant.
_WRITES = re.compile(r"(?:(.*)/)?write_summary(?:_\d+)?/(.*)")
# The same of `tf.compat.v1.summary`, whose operations nobody runs.
_V1_SUMMARIES = (
    "ScalarSummary",
    "HistogramSummary",
    "ImageSummary",
    "AudioSummary",
    "TensorSummaryV2",
)
# Operations that make no mean of a sum.
_KEEP_A_SUM = (
    "Identity",
    "StopGradient",
    "EnsureShape",
    "CheckNumerics",
    "Cast",
    "Neg",
    "Add",
    "AddV2",
    "AddN",
    "Sub",
    "Reshape",
    "Squeeze",
)


def remarks(graph: tf.Graph, spec: EstimatorSpec, rows: int | None) -> Iterator[str]:
    """What is to be said of a trace, in one line each.

    Args:
      graph: that model_fn was traced into.
      spec: what it returned, of symbolic tensors.
      rows: examples in the batch; None where the shapes do not tell.

    Raises:
      SpecError: predictions that no step could return.
    """
    _check_predictions(spec.predictions)
    tags = _summaries(graph)
    if tags:
        yield (
            f"tf.summary of {', '.join(tags)} in model_fn is dropped, as steps are "
            "compiled and no writer is open: write EstimatorSpec(..., scalars={"
            f"{tags[0]!r}: value}}), or metrics=, which are reported."
        )
    summed = _sum_over_batch(spec.loss, rows)
    if summed is not None:
        yield (
            f"loss is a scalar that is summed over the batch (by {summed}), and a "
            "scalar counts as the mean over a replica's batch: on two replicas, or in "
            "two micro-batches, it would be half. Return the losses by example, "
            "[batch, ...], whose mean is minimised, and raise the learning rate "
            "instead."
        )


def _check_predictions(predictions: Any) -> None:
    for value in [] if predictions is None else tf.nest.flatten(predictions):
        try:
            tf.nest.map_structure(tf.convert_to_tensor, value, expand_composites=True)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"predictions holds {kind_of(value)}, not a tensor: give each a "
                "leading batch dimension, predictions={'logits': logits}."
            ) from error


@contextlib.contextmanager
def no_updates(modules: Iterable[Any]) -> Iterator[None]:
    """Refuses updates inside: model_fn's own would come besides those of its TrainOps.

    Args:
      modules: whose optimizers may not be applied.

    Raises:
      SpecError: by the optimizer that is.
    """

    def refuse(*_: Any, **__: Any) -> None:
        raise SpecError(
            "it applies gradients by an optimizer itself, and the driver does that, "
            "over all replicas: write train_op=TrainOp(optimizer, "
            "network.trainable_variables) instead."
        )

    # One may have several names, and an `apply` of its own.
    optimizers = {
        id(m): m for m in modules if isinstance(m, keras.optimizers.Optimizer)
    }
    own = {key: vars(each).get("apply") for key, each in optimizers.items()}
    for optimizer in optimizers.values():
        optimizer.apply = refuse
    try:
        yield
    finally:
        for key, optimizer in optimizers.items():
            del optimizer.apply
            if own[key] is not None:
                optimizer.apply = own[key]


def _summaries(graph: tf.Graph) -> list[str]:
    written: dict[str, list[str]] = {}
    for op in graph.get_operations():
        if scope := _WRITES.fullmatch(op.name):
            written.setdefault(scope[1] or "a tensor", []).append(scope[2])
        elif op.type in _V1_SUMMARIES:
            written[op.name] = ["Const"]
    return [tag for tag, ops in written.items() if set(ops) == {"Const"}]


def _sum_over_batch(loss: Any, rows: int | None) -> str | None:
    """The operation by which a scalar loss is summed over the batch, or None.

    A quotient is taken for a mean, and so is a product with a small number.
    """
    if not tf.is_symbolic_tensor(loss) or loss.shape.rank != 0:
        return None
    left, seen = [loss], set()
    while left:
        tensor = left.pop()
        op = tensor.op
        if id(op) in seen or not tensor.dtype.is_floating:
            continue
        seen.add(id(op))
        if op.type in ("Sum", "L2Loss") and _takes_batch(op, rows):
            return op.name
        if op.type in _KEEP_A_SUM:
            left += op.inputs
        elif op.type == "Mul":
            left += _scaled(*op.inputs)
    return None


def _takes_batch(op: tf.Operation, rows: int | None) -> bool:
    """Whether the first dimension that `op` adds up is that of the batch."""
    values = op.inputs[0]
    if not values.shape.rank or values.shape[0] not in (None, rows):
        return False
    axes = 0 if op.type == "L2Loss" else tf.get_static_value(op.inputs[1])
    if axes is None or not np.isin(axes, (0, -values.shape.rank)).any():
        return False
    return _depends_on_input(values)


def _depends_on_input(tensor: tf.Tensor) -> bool:
    """Whether it does on an argument of the trace, unlike a weight."""
    left, seen = [tensor.op], set()
    while left:
        op = left.pop()
        if id(op) in seen:
            continue
        seen.add(id(op))
        if op.type == "Placeholder" and op.outputs[0].dtype != tf.resource:
            return True
        left += [each.op for each in op.inputs]
    return False


def _scaled(first: tf.Tensor, second: tf.Tensor) -> list[tf.Tensor]:
    """The other factor where one is a constant that is no 1 / batch."""
    for factor, other in ((first, second), (second, first)):
        value = tf.get_static_value(factor)
        if value is not None and value.ndim == 0 and abs(value) >= 0.5:
            return [other]
    return []
