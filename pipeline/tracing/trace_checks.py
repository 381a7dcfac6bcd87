"""Looks in the trace of a model_fn for what would be lost or wrong without a word.

A trace shows more than the spec that model_fn returns: summaries that nobody writes,
sums over the batch in place of means, updates besides those of the TrainOps.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from pipeline.contract.checks import kind_of
from pipeline.contract.spec import EstimatorSpec, SpecError
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
            f"{tags[0]!r}: value}}), or metrics=, which are reported."
        )
    for field, scalar in _scalar_losses(spec):
        if summed := batch_sums.summed_by(scalar, rows):
            yield (
                f"{field} is a scalar that is summed over the batch (by {summed}), and "
                "a scalar counts as the mean over a replica's batch: on two replicas, "
                "or in two micro-batches, it would be half. Write "
                f"{_INSTEAD[field]}"
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


@contextlib.contextmanager
def no_updates(modules: Iterable[Any]) -> Iterator[None]:
    """Refuses an optimizer's updates in the block: its TrainOp would update again.

    Args:
      modules: modules, the optimizers among which may not be applied.

    Raises:
      SpecError: an optimizer is applied.
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
        yield
    finally:
        for key, optimizer in optimizers.items():
            # Without an attribute of the object, its class's method is there again.
            del optimizer.apply
            if own[key] is not None:
                optimizer.apply = own[key]


def _summaries(graph: tf.Graph) -> list[str]:
    """Returns the tags of the summaries that nobody would write."""
    written: dict[str, list[str]] = {}
    for op in graph.get_operations():
        if scope := _WRITES.fullmatch(op.name):
            written.setdefault(scope[1] or "a tensor", []).append(scope[2])
        elif op.type in _V1_SUMMARIES:
            written[op.name] = ["Const"]
    return [tag for tag, ops in written.items() if set(ops) == {"Const"}]
