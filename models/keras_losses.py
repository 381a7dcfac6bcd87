"""Keras' losses before their reduction, as one loss of a batch."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline import SpecError


def masks_of(outputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Returns the masks that Keras' layers left on outputs, by name.

    They say which steps of a sequence count, as `mask_zero` of an embedding does.
    """
    # Keras has no public name for it; its own losses read the same attribute.
    masks = {name: getattr(x, "_keras_mask", None) for name, x in outputs.items()}
    return {name: mask for name, mask in masks.items() if mask is not None}


def total_loss(
    losses: Mapping[str, Any],
    factors: Mapping[str, float | None],
    labels: Mapping[str, Any],
    outputs: Mapping[str, tf.Tensor],
    *,
    weights: tf.Tensor | None,
    masks: Mapping[str, tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns the losses of a batch, and their weights, as an EstimatorSpec has them.

    Args:
      losses: loss of each output, None for none.
      factors: factor of each output's loss, None for 1.
      labels: labels of each output.
      outputs: float32 outputs by name.
      weights: weights of the examples, `[batch]`; None for 1.
      masks: masks by the outputs' names.

    Returns:
      The only output's losses `[batch, ...]` and weights that broadcast to them; or for
      several outputs the sum of their means for each example, `[batch]`.

    Raises:
      SpecError: a loss or labels do not fit, or one of several outputs is masked.
    """
    used = {name: loss for name, loss in losses.items() if loss is not None}
    values = {n: _losses(n, used[n], labels[n], outputs[n]) for n in used}
    values = {n: _times(value, factors[n]) for n, value in values.items()}
    if not values:
        # Regularization is all: each example's own loss is 0.
        first = next(iter(outputs.values()))
        return tf.zeros(tf.shape(first)[:1]), None
    if len(values) == 1:
        ((name, value),) = values.items()
        return value, _weights(value, weights, masks.get(name))
    masked = sorted(set(masks) & set(values))
    if masked:
        raise SpecError(
            f"the outputs {masked} are masked, and there are several with a loss: "
            "write a model_fn that says how their means are weighed."
        )
    return tf.add_n([_by_example(value) for value in values.values()]), weights


def _losses(name: str, loss: Any, labels: Any, outputs: tf.Tensor) -> tf.Tensor:
    """Returns one output's losses `[batch, ...]`."""
    if labels is None:
        raise SpecError(
            f"the output {name!r} has a loss and no labels: return labels for it from "
            "input_fn, or write None for its loss."
        )
    try:
        function = keras.losses.get(loss)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{loss!r} is no loss: write loss='mse', or keras.losses.Huber()."
        ) from error
    if isinstance(function, type):
        function = function()
    if getattr(function, "reduction", None) == "sum":
        raise SpecError(
            f"the loss of the output {name!r} has reduction='sum', which grows with "
            "the batch: leave reduction out, and multiply the learning rate."
        )
    is_sparse = "sparse" in getattr(function, "name", str(loss)).lower()
    labels = aligned(name, labels, outputs, is_sparse=is_sparse)
    if isinstance(function, keras.losses.Loss):
        function = function.call  # The losses before their mean.
    losses = function(labels, outputs)
    if losses.shape.rank == 0:
        raise SpecError(
            f"the loss of the output {name!r} is a scalar: return one loss an example, "
            "keras.ops.mean(..., axis=-1)."
        )
    return tf.cast(losses, tf.float32)


def aligned(
    name: str, labels: Any, outputs: tf.Tensor, *, is_sparse: bool = False
) -> tf.Tensor:
    """Returns labels of the outputs' rank, or of one less where they are classes.

    Args:
      name: name of the output, for messages.
      labels: labels of any rank.
      outputs: the output.
      is_sparse: whether labels are numbers of classes.

    Raises:
      SpecError: one would be broadcast to the other.
    """
    labels = tf.convert_to_tensor(labels)
    if labels.shape.rank == outputs.shape.rank - 1 and outputs.shape[-1] == 1:
        labels = labels[..., tf.newaxis]
    elif labels.shape.rank == outputs.shape.rank + 1 and labels.shape[-1] == 1:
        labels = tf.squeeze(labels, -1)
    wanted = outputs.shape[: labels.shape.rank]
    if is_sparse and labels.shape.rank == outputs.shape.rank:
        wanted = outputs.shape[:-1].concatenate([1])
    same = labels.shape.rank == outputs.shape.rank or is_sparse
    if not same or not labels.shape.is_compatible_with(wanted):
        raise SpecError(
            f"the output {name!r} has shape {outputs.shape} and its labels "
            f"{labels.shape}: reshape the labels in input_fn, or change the last "
            "layer's units."
        )
    return labels


def _times(value: tf.Tensor, factor: float | None) -> tf.Tensor:
    return value if factor is None else value * factor


def _by_example(losses: tf.Tensor) -> tf.Tensor:
    """Returns the mean of each example's losses, `[batch]`."""
    axes = list(range(1, losses.shape.rank))
    return tf.reduce_mean(losses, axes) if axes else losses


def _weights(losses: tf.Tensor, weights: Any, mask: Any) -> tf.Tensor | None:
    """Returns weights that broadcast to losses, of examples and of a mask."""
    found = []
    for each in (weights, mask):
        if each is not None:
            each = tf.cast(each, tf.float32)
            more = losses.shape.rank - each.shape.rank
            found.append(tf.reshape(each, [*tf.unstack(tf.shape(each)), *[1] * more]))
    return None if not found else found[0] if len(found) == 1 else found[0] * found[1]
