# SPDX-License-Identifier: Apache-2.0
"""Makes a step again that training has skipped, and finds where its numbers went wrong.

read the batches and the weights before the step
which of them are not finite already?
run model_fn eagerly, with a check of the result of each operation
if all are finite: the largest losses and gradients, and the weights after the update
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..checkpoint import files
from ..checkpoint.checkpoints import Checkpoints
from ..contract.spec import EstimatorSpec, ModeKeys
from ..data import bad_batch as bad_batches
from ..data.batch import Batch, as_pair, relaxed
from ..distribute.names import parts_of, variable_of, variables_of
from ..estimator.estimator import Estimator
from ..loop.train_state import TrainState
from ..run import tracebacks
from ..train import indexed_slices, losses
from ..train.step import BoundModelFn
from ..train.update import Gradients, Update

_DETECTED = "!!! Detected"  # Of the message of `enable_check_numerics`.
_MOST = 5  # Of losses and of gradients.
_MOST_LINES = 12
_MOST_CHARACTERS = 160


def replay(estimator: Estimator, bad_batch: str | os.PathLike[str]) -> list[str]:
    """Makes a step of `model_dir/bad_batches` again, on one device and without a loss scale.

    It writes nothing, and the Estimator keeps its values. Each batch of a replica, or of
    gradient accumulation, is a step by itself. The first operation whose result has a NaN or Inf is
    reported, also an Inf that a mask would hide later. No other training may run in this process.

    Args:
      estimator: Estimator of the same model.
      bad_batch: folder of the step.

    Returns:
      Lines to print.

    Raises:
      CheckpointMismatchError: the weights are of another model.
      UserValueError: the folder is not complete, or not one of a step.
    """
    found = bad_batches.read(bad_batch)
    model = estimator.on_one_device()
    state, model_fn = model.state, model.in_mode(ModeKeys.TRAIN)
    element_spec = as_pair(found.datasets[0].element_spec)
    model.build(ModeKeys.TRAIN, tf.nest.map_structure(relaxed, element_spec))
    checkpoints = Checkpoints(found.folder, state.variables(), asynchronous=False)
    path = files.latest(found.folder)
    lines = [f"replay of {found.folder}", f"skipped because {found.reason}"]
    for index, dataset in enumerate(found.datasets):
        checkpoints.restore(path)
        state.restored(path)
        lines.append(f"batch {index + 1} of {len(found.datasets)}:")
        lines += [f"  {line}" for line in _lines(state, model_fn, next(iter(dataset)))]
    return lines


def _lines(state: TrainState, model_fn: BoundModelFn, element: Any) -> Iterator[str]:
    """Yields the findings of a step with the element as batch."""
    names = {
        id(part): name
        for name, variable in variables_of(state.modules).items()
        for part in parts_of(variable)
    }
    for place in [*bad_batches.nonfinite(element), *_nonfinite(state)]:
        yield f"NaN or Inf before the step: {place}"
    step = tf.constant(state.step, tf.int64)
    try:
        with _checked():
            spec, gradients = _gradients(model_fn, Batch(*as_pair(element)), step)
    except Exception as error:
        if _DETECTED not in str(error):
            raise
        yield from _operation(error)
        return
    yield "loss and gradients are finite"
    yield from _largest_losses(spec)
    yield from _largest_gradients(spec, gradients, names)
    for op, values in zip(spec.train_op, gradients, strict=True):
        Update(op, None).apply(values, step)
    for name in _nonfinite(state):
        yield f"NaN or Inf after the update: {name}"


@contextlib.contextmanager
def _checked() -> Iterator[None]:
    """Makes operations in the block fail whose result has a NaN or Inf."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)  # A tf.function would be one operation.
    tf.debugging.enable_check_numerics()
    try:
        yield
    finally:
        tf.debugging.disable_check_numerics()
        tf.config.run_functions_eagerly(before)


def _gradients(
    model_fn: BoundModelFn, batch: Batch, step: tf.Tensor
) -> tuple[EstimatorSpec, list[Gradients]]:
    """Returns the spec of a batch, and the gradients of its train ops."""
    with tf.GradientTape(persistent=True) as tape, losses.per_replica_means():
        spec = model_fn(batch.features, batch.labels, step)
        total = losses.total_loss(spec, batch)
        parts = [losses.objective(spec, op, batch, total) for op in spec.train_op]
    found = []
    for op, part in zip(spec.train_op, parts, strict=True):
        variables = [variable_of(variable) for variable in op.variables]
        values = tape.gradient(part.value, variables) if op.gradients is None else op.gradients
        found.append(
            {
                i: indexed_slices.each_row_once(each)
                for i, each in enumerate(values)
                if each is not None
            }
        )
    return spec, found


def _operation(error: Exception) -> Iterator[str]:
    """Yields the operation that failed, its inputs, and the user's lines that led to it."""
    message = str(error)
    message = message[message.index(_DETECTED) :].replace("!!!", "")
    for line in list(filter(str.strip, message.split("\n")))[:_MOST_LINES]:
        yield line.rstrip()[:_MOST_CHARACTERS]
    yield from tracebacks.lines(tracebacks.of_error(error))


def _nonfinite(state: TrainState) -> list[str]:
    """Returns the names of the variables that have NaN or Inf."""
    return [
        name
        for name, variable in state.variables().items()
        if isinstance(variable, tf.Variable) and variable.dtype.is_floating
        if not tf.reduce_all(tf.math.is_finite(variable.read_value()))
    ]


def _largest_losses(spec: EstimatorSpec) -> Iterator[str]:
    """Yields the examples with the largest losses."""
    loss = np.asarray(tf.cast(spec.loss, tf.float32))
    if not loss.ndim:
        yield f"loss {loss:.5g}"
        return
    loss = loss.reshape(len(loss), -1).mean(axis=1)
    for index in np.argsort(-loss)[:_MOST]:
        yield f"loss {loss[index]:.5g} of example {index}"


def _largest_gradients(
    spec: EstimatorSpec, gradients: Sequence[Gradients], names: Mapping[int, str]
) -> Iterator[str]:
    """Yields the variables with the largest norms of gradients."""
    norms = [
        (float(tf.norm(tf.cast(indexed_slices.values_of(value), tf.float32))), op.variables[index])
        for op, values in zip(spec.train_op, gradients, strict=True)
        for index, value in values.items()
    ]
    for norm, variable in sorted(norms, key=lambda pair: -pair[0])[:_MOST]:
        yield f"gradient norm {norm:.5g} of {names[id(variable_of(variable))]}"
