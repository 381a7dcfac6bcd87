# SPDX-License-Identifier: Apache-2.0
"""Pictures, distributions, texts and curves for TensorBoard.

    EstimatorSpec(
        mode,
        loss=loss,
        summaries={
            "worst": ge.summary.image(images, 9, highest=loss),
            "confusion": ge.summary.confusion_matrix(labels, classes, num_classes=10),
        },
    )

Each function takes the tensors of one batch and returns a few rows or counts of them, as tensors.
TensorFlow computes these only in steps that fetch summaries. `drawing` makes pictures and curves
of their arrays.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ..contract.checks import is_int, is_number, repr_short
from ..contract.summaries import Summary
from ..errors import SpecError
from . import drawing

_MAX_CLASSES = 1000


def image(
    x: Any,
    max_outputs: int = 4,
    *,
    highest: Any = None,
    value_range: tuple[float, float] | None = (0.0, 1.0),
) -> Summary:
    """Declares pictures: the first ones, or those with the highest scores.

    Args:
      x: uint8, or floats in `value_range`, `[batch, height, width, channels]` with 1, 3 or 4
        channels, or `[batch, height, width]`.
      max_outputs: number of pictures.
      highest: scores `[batch]`, such as losses; None for the first pictures.
      value_range: floats that are black and white; None for the range of each picture.

    Returns:
      A value for `EstimatorSpec.summaries`; of an evaluation, of all of its examples.

    Raises:
      SpecError: a shape, dtype or option is not one of these.
    """
    pixels = _tensor("image", x)
    pixels = pixels[..., tf.newaxis] if pixels.shape.rank == 3 else pixels
    shape = pixels.shape[1:] if pixels.shape.rank == 4 else tf.TensorShape(None)
    is_valid = pixels.dtype == tf.uint8 or pixels.dtype.is_floating
    if not (is_valid and shape.is_fully_defined() and shape[-1] in (1, 3, 4)):
        raise SpecError(
            f"image() got {_described(pixels)}: expected uint8 or floats [batch, height, width, "
            "channels] of a known size with 1, 3 or 4 channels. Set "
            "tf.ensure_shape(x, [None, 28, 28, 1])."
        )
    if value_range is not None:
        _check_range(value_range)
    most, rows = _count("image", "max_outputs", max_outputs), {}
    if highest is None:
        pixels = pixels[:most]
    else:
        number = tf.minimum(most, tf.shape(pixels)[0])
        rows["score"], places = tf.math.top_k(_scores(highest), number)
        pixels = tf.gather(pixels, places)
    if pixels.dtype.is_floating:
        pixels = _bytes(tf.cast(pixels, tf.float32), value_range)
    return Summary({**rows, "pixels": pixels}, drawing.image, most)


def text(x: Any, max_outputs: int = 4) -> Summary:
    """Declares texts in Markdown: the first ones of strings `[batch]`, or one string."""
    strings = _tensor("text", x)
    if strings.dtype != tf.string or strings.shape.rank not in (0, 1):
        raise SpecError(
            f"text() got {_described(strings)}: expected strings [batch]. Set "
            "tf.strings.as_string(x)."
        )
    most = _count("text", "max_outputs", max_outputs) if strings.shape.rank else 1
    return Summary({"text": tf.reshape(strings, [-1])[:most]}, drawing.text, most)


def histogram(x: Any) -> Summary:
    """Declares the distribution of all finite values of a tensor, or of a variable."""
    values = _tensor("histogram", x)
    if not (values.dtype.is_floating or values.dtype.is_integer) or values.shape.rank == 0:
        raise SpecError(
            f"histogram() got {_described(values)}: expected numbers with a dimension. Set "
            "EstimatorSpec(scalars=...) for a scalar."
        )
    values = tf.reshape(tf.cast(values, tf.float32), [-1])
    smallest, num_sizes = drawing.SMALLEST, drawing.NUM_SIZES
    size = tf.math.log(tf.maximum(tf.abs(values), smallest)) - math.log(smallest)
    size = tf.minimum(tf.floor(size / math.log(drawing.GROWTH)), num_sizes - 1)
    is_zero = tf.abs(values) < smallest
    place = num_sizes + tf.where(is_zero, 0.0, tf.sign(values) * (1 + size))
    out = 2 * num_sizes + 1
    place = tf.where(tf.math.is_finite(values), place, out)
    # A variable has the same values on all replicas.
    most = 1 if isinstance(x, keras.Variable | tf.Variable) else None
    return Summary({"counts": _counted(place, out + 1)}, drawing.histogram, most)


def pr_curve(labels: Any, probabilities: Any, num_thresholds: int = 201) -> Summary:
    """Declares the curve of precision by recall, for TensorBoard's tab PR Curves.

    Args:
      labels: 0 and 1, or bools, of any shape.
      probabilities: probabilities of 1, of the same shape.
      num_thresholds: number of thresholds from 0 to 1; at least 2.

    Returns:
      A value for `EstimatorSpec.summaries`.
    """
    labels, probabilities = _pair("pr_curve", labels, probabilities)
    if not probabilities.dtype.is_floating:
        raise SpecError(
            f"pr_curve() got the probabilities {_described(probabilities)}: expected floats from 0 "
            "to 1. Set tf.sigmoid(logits)."
        )
    number = _count("pr_curve", "num_thresholds", num_thresholds, least=2)
    labels, probabilities = (tf.cast(each, tf.float32) for each in (labels, probabilities))
    fits = (probabilities >= 0) & (probabilities <= 1) & ((labels == 0) | (labels == 1))
    place = tf.floor(tf.where(fits, probabilities, 0.0) * (number - 1)) + labels * number
    place = tf.where(fits, place, 2.0 * number)
    return Summary({"counts": _counted(place, 2 * number + 1)}, drawing.pr_curve)


def confusion_matrix(
    labels: Any, predictions: Any, num_classes: int, class_names: Sequence[str] = ()
) -> Summary:
    """Declares the table of true and predicted classes, and a picture of it.

    Args:
      labels: class numbers of any shape.
      predictions: class numbers of the same shape.
      num_classes: number of classes.
      class_names: names of the classes; empty for their numbers.

    Returns:
      A value for `EstimatorSpec.summaries`.
    """
    labels, predictions = _pair("confusion_matrix", labels, predictions)
    for each in (labels, predictions):
        if not (each.dtype.is_integer or each.dtype.is_bool):
            raise SpecError(
                f"confusion_matrix() got {_described(each)}: expected class numbers. Set "
                "tf.argmax(logits, axis=-1)."
            )
    size = _count("confusion_matrix", "num_classes", num_classes, most=_MAX_CLASSES)
    names = tuple(map(str, class_names)) or tuple(map(str, range(size)))
    if len(names) != size:
        raise SpecError(
            f"confusion_matrix() got {len(names)} class_names for {size} classes: expected one "
            "for each class."
        )
    labels, predictions = (tf.cast(each, tf.int64) for each in (labels, predictions))
    fits = (labels >= 0) & (labels < size) & (predictions >= 0) & (predictions < size)
    place = tf.where(fits, labels * size + predictions, size**2)
    draw = functools.partial(drawing.confusion_matrix, class_names=names)
    return Summary({"counts": _counted(place, size**2 + 1)}, draw)


def _counted(place: tf.Tensor, number: int) -> tf.Tensor:
    """Returns how often each index occurs, int64 `[1, number]`."""
    place = tf.cast(tf.reshape(place, [-1]), tf.int32)
    counts = tf.math.unsorted_segment_sum(tf.ones_like(place, tf.int64), place, number)
    return tf.reshape(counts, [1, number])


def _check_range(value_range: Any) -> None:
    low, high = value_range
    if not (is_number(low) and is_number(high) and low < high):
        raise SpecError(f"image(value_range={value_range!r}): expected a pair such as (0, 1).")


def _bytes(pixels: tf.Tensor, value_range: tuple[float, float] | None) -> tf.Tensor:
    """Returns floats as uint8; those that are not finite are black."""
    is_finite = tf.math.is_finite(pixels)
    if value_range is None:
        zeros = tf.where(is_finite, pixels, 0)
        low, high = (f(zeros, [1, 2, 3], keepdims=True) for f in (tf.reduce_min, tf.reduce_max))
    else:
        low, high = value_range
    scaled = tf.where(is_finite, tf.math.divide_no_nan(pixels - low, high - low), 0)
    return tf.cast(tf.round(255 * tf.clip_by_value(scaled, 0, 1)), tf.uint8)


def _scores(highest: Any) -> tf.Tensor:
    """Returns a float32 score for each picture; NaN counts as the highest."""
    score = _tensor("image", highest)
    if score.shape.rank != 1 or not score.dtype.is_floating:
        raise SpecError(
            f"image() got highest of {_described(score)}: expected floats [batch]. Set a loss for "
            "each example."
        )
    score = tf.cast(score, tf.float32)
    return tf.where(tf.math.is_nan(score), math.inf, score)


def _tensor(function: str, value: Any) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{function}() got {repr_short(value)}: expected a tensor.") from error


def _pair(function: str, first: Any, second: Any) -> tuple[tf.Tensor, tf.Tensor]:
    first, second = _tensor(function, first), _tensor(function, second)
    if not first.shape.is_compatible_with(second.shape) or first.shape.rank == 0:
        raise SpecError(
            f"{function}() got the shapes {first.shape} and {second.shape}: expected equal ones, "
            "[batch] or more. Set tf.squeeze(x, axis=-1)."
        )
    return first, second


def _count(function: str, name: str, value: Any, *, least: int = 1, most: int | None = None) -> int:
    if not is_int(value) or value < least or (most is not None and value > most):
        words = f"an int >= {least}" if most is None else f"an int from {least} to {most}"
        raise SpecError(f"{function}({name}={repr_short(value)}): expected {words}.")
    return int(value)


def _described(tensor: tf.Tensor) -> str:
    return f"{tensor.dtype.name} {tensor.shape}"
