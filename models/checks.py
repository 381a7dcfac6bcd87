"""Checks and prepares features, labels and network outputs for the model_fns here.

A wrong shape would often broadcast into a wrong loss; here it is an error that names
the shapes.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipeline import SpecError
from pipeline.mistakes.checks import kind_of


def network_input(features: Any, feature_key: str | None = None) -> Any:
    """Returns the part of `features` that the network takes.

    Args:
      features: a tensor, or a dict of tensors.
      feature_key: the entry of the dict to take. None: the only entry of a dict of one;
        anything else is returned as it is.

    Raises:
      SpecError: there is no such entry, or the images are still uint8.
    """
    if feature_key is not None:
        if not isinstance(features, Mapping) or feature_key not in features:
            held = sorted(features) if isinstance(features, Mapping) else "no dict"
            raise SpecError(
                f"feature_key is {feature_key!r} and features hold {held}: name one of "
                "these, or leave feature_key out."
            )
        features = features[feature_key]
    elif isinstance(features, Mapping) and len(features) == 1:
        (features,) = features.values()
    if getattr(features, "dtype", None) == tf.uint8:
        raise SpecError(
            f"features are uint8 of shape {features.shape}; a network takes floats: "
            "scale them in input_fn, tf.cast(image, tf.float32) / 255."
        )
    return features


def are_images(value: Any) -> bool:
    """Returns whether a value can be shown as pictures, `[batch, height, width, c]`."""
    shape = getattr(value, "shape", None)
    if not tf.is_tensor(value) or shape.rank != 4 or not value.dtype.is_floating:
        return False
    return shape[1:].is_fully_defined() and shape[3] in (1, 3, 4) and shape[1] > 1


def network_output(outputs: Any, *, inputs: Any, rank: int | None = None) -> tf.Tensor:
    """Returns a network's output in float32, in which losses are computed.

    Args:
      outputs: the network's output, in any floating dtype.
      inputs: the network's input, for the message.
      rank: the rank that the caller needs, with the batch dimension; None for any from
        1.

    Raises:
      SpecError: the output is not one tensor of that rank.
    """
    if not tf.is_tensor(outputs):
        raise SpecError(
            f"the network returned {kind_of(outputs)}, not one tensor: give a network "
            "of one output, or write a model_fn of your own."
        )
    good = outputs.shape.rank == rank if rank else outputs.shape.rank
    if not good:
        wanted = "[batch, units]" if rank == 2 else "[batch, ...]"
        raise SpecError(
            f"the network turned features of shape {getattr(inputs, 'shape', '?')} "
            f"into {outputs.shape}, and {wanted} is needed: end it in "
            "keras.layers.Flatten() and keras.layers.Dense(units)."
        )
    return tf.cast(outputs, tf.float32)


def labels_of(labels: Any, mode: str) -> tf.Tensor:
    """Returns `labels` as one tensor of known rank.

    Args:
      labels: a tensor or a value that converts to one, or a dict of one entry.
      mode: one of `ModeKeys`, for the message.

    Raises:
      SpecError: labels are None, several tensors, or a tensor of unknown rank.
    """
    if labels is None:
        raise SpecError(
            f"mode {mode!r} needs labels and got None: return (features, labels) from "
            "input_fn."
        )
    if isinstance(labels, Mapping) and len(labels) == 1:
        (labels,) = labels.values()
    if isinstance(labels, Mapping):
        raise SpecError(
            f"labels hold {sorted(labels)}, and one tensor is needed: return one of "
            "these as labels from input_fn, or write a model_fn of your own."
        )
    labels = tf.convert_to_tensor(labels)
    if labels.shape.rank is None:
        raise SpecError(
            "labels have no known rank: call labels.set_shape([None]) in input_fn."
        )
    return labels
