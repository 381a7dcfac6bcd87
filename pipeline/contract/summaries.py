"""What TensorBoard is to show beside numbers: pictures, distributions, texts, curves.

    EstimatorSpec(
        mode,
        loss=loss,
        summaries={
            "mistakes": image(pixels, max_outputs=9, highest=loss),
            "logits": histogram(logits),
            "classes": confusion_matrix(labels, tf.argmax(logits, -1), num_classes=10),
        },
    )

A summary is declared with one batch's tensors. `pipeline.tracing.summary_states` puts
batches together, `pipeline.hooks.summary_values` shows them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contract.train_op import SpecError
from pipeline.mistakes.checks import checked_names, is_int, is_number, kind_of

# Classes whose pairs are counted at the most: a million numbers.
_MOST_CLASSES = 1000
# Float32s that differ only after the first of these bits are counted together, which
# makes buckets 1.6 to 3.1 percent wide.
HISTOGRAM_BITS = 14


@dataclasses.dataclass(frozen=True)
class Kind:
    """The kind of a summary with its options, the same for every batch."""

    @property
    def most(self) -> int | None:
        """The number of rows that are kept; None where all batches are added up."""
        return None

    @property
    def fields(self) -> dict[str, tf.TensorSpec]:
        """What is kept: specs by name, of one row where rows are kept."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Image(Kind):
    """Pictures of a batch.

    Attributes:
      max_outputs: number of pictures.
      shape: height, width and channels.
      dtype: 'uint8' or 'float32'.
      value_range: values of black and white; None for each picture's own.
      words: words before each value of a caption, and the values' dtypes.
      class_names: names of the classes that captions give by number.
      columns: pictures side by side in one; None for pictures by themselves.
    """

    max_outputs: int
    shape: tuple[int, ...]
    dtype: str
    value_range: tuple[float, float] | None
    words: tuple[tuple[str, str], ...]
    class_names: tuple[str, ...]
    columns: int | None

    @property
    def most(self) -> int | None:
        return self.max_outputs

    @property
    def fields(self) -> dict[str, tf.TensorSpec]:
        labels = {f"labels/{w}": tf.TensorSpec([], dtype) for w, dtype in self.words}
        return {"pixels": tf.TensorSpec(self.shape, self.dtype), **labels}


@dataclasses.dataclass(frozen=True)
class Text(Kind):
    """Texts of a batch, `max_outputs` of them."""

    max_outputs: int

    @property
    def most(self) -> int | None:
        return self.max_outputs

    @property
    def fields(self) -> dict[str, tf.TensorSpec]:
        return {"text": tf.TensorSpec([], tf.string)}


@dataclasses.dataclass(frozen=True)
class Histogram(Kind):
    """The distribution of values; `once` if of a variable, the same on all replicas."""

    once: bool

    @property
    def most(self) -> int | None:
        return 1 if self.once else None

    @property
    def fields(self) -> dict[str, tf.TensorSpec]:
        return {"counts": tf.TensorSpec([2**HISTOGRAM_BITS], tf.int64)}


@dataclasses.dataclass(frozen=True)
class PrCurve(Kind):
    """Precision and recall at each of `num_thresholds` thresholds."""

    num_thresholds: int

    @property
    def fields(self) -> dict[str, tf.TensorSpec]:
        # The last one counts pairs that are out of range.
        return {"counts": tf.TensorSpec([2 * self.num_thresholds + 1], tf.int64)}


@dataclasses.dataclass(frozen=True)
class ConfusionMatrix(Kind):
    """Counts of pairs of a true and a predicted class, which may have names."""

    num_classes: int
    class_names: tuple[str, ...]

    @property
    def fields(self) -> dict[str, tf.TensorSpec]:
        # The last one counts pairs that are out of range.
        return {"counts": tf.TensorSpec([self.num_classes**2 + 1], tf.int64)}


@dataclasses.dataclass(frozen=True)
class Number(Kind):
    """A number that is the same on all replicas; the driver's own, such as a norm."""

    @property
    def most(self) -> int | None:
        return 1

    @property
    def fields(self) -> dict[str, tf.TensorSpec]:
        return {"value": tf.TensorSpec([], tf.float32)}


@dataclasses.dataclass(frozen=True)
class Summary:
    """A summary of one batch: its kind, and the tensors to compute it from, by name."""

    kind: Kind
    tensors: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Seen:
    """A summary that was taken: its kind, and what was kept, as arrays by field."""

    kind: Kind
    state: Mapping[str, np.ndarray]


def image(
    x: Any,
    max_outputs: int = 4,
    *,
    highest: Any = None,
    labels: Mapping[str, Any] | None = None,
    class_names: Sequence[str] = (),
    value_range: tuple[float, float] | None = (0, 1),
    columns: int | None = None,
) -> Summary:
    """Declares pictures: the first of the batch, or those with the highest values.

    Args:
      x: `[batch, height, width, channels]` with 1, 3 or 4 channels, or `[batch, height,
        width]`: uint8, or floats in `value_range`.
      max_outputs: number of pictures.
      highest: numbers `[batch]`, such as the loss, whose greatest tell the pictures; in
        an evaluation those of all examples. None: the first examples.
      labels: words and class numbers or floats `[batch]`, to be written below each
        picture: `{'is': labels, 'taken for': classes}`.
      class_names: names to write in place of class numbers.
      value_range: values that are shown as black and as white; None for the least and
        the greatest of each picture.
      columns: pictures side by side in one that holds all of them; None shows each by
        itself.

    Raises:
      SpecError: a tensor has another shape or dtype, or an option is out of range.
    """
    pixels = _tensor("image", x)
    if pixels.shape.rank == 3:
        pixels = pixels[..., tf.newaxis]
    shape = tuple(pixels.shape[1:]) if pixels.shape.rank == 4 else ()
    if not shape or None in shape or shape[-1] not in (1, 3, 4):
        raise SpecError(
            f"image() got {_described(pixels)}: write [batch, height, width, channels] "
            "of 1, 3 or 4 channels, all but the batch known beforehand, "
            "tf.ensure_shape(x, [None, 28, 28, 1])."
        )
    if pixels.dtype.is_floating:
        pixels = tf.cast(pixels, tf.float32)
    elif pixels.dtype != tf.uint8:
        raise SpecError(
            f"image() got {_described(pixels)}: write tf.cast(x, tf.uint8) for values "
            "from 0 to 255, or floats from 0 to 1."
        )
    if value_range is not None and not _is_range(value_range):
        raise SpecError(
            f"value_range of image() is {value_range!r}: write (0, 1), or None for "
            "each picture's own."
        )
    tensors = {"pixels": pixels}
    if highest is not None:
        tensors["score"] = _by_example("highest", highest, tf.float32)
    words = []
    for word, value in (labels or {}).items():
        value = _tensor("image", value)
        dtype = tf.float32 if value.dtype.is_floating else tf.int64
        tensors[f"labels/{word}"] = _by_example(repr(word), value, dtype)
        words.append((str(word), dtype.name))
    kind = Image(
        _count("max_outputs of image()", max_outputs),
        shape,
        pixels.dtype.name,
        None if value_range is None else tuple(map(float, value_range)),
        tuple(words),
        checked_names("class_names of image()", class_names),
        None if columns is None else _count("columns of image()", columns),
    )
    return Summary(kind, tensors)


def histogram(x: Any) -> Summary:
    """Declares the distribution of all values of a tensor, or of a variable.

    Values are counted in buckets of 3 percent at the most. Counts of tensors add up
    over replicas and an evaluation's batches; a variable's values count once.

    Args:
      x: tensor of numbers, of any shape; or a variable.

    Raises:
      SpecError: it holds no numbers, or is a scalar.
    """
    values = _tensor("histogram", x)
    if not (values.dtype.is_floating or values.dtype.is_integer):
        raise SpecError(
            f"histogram() got {_described(values)}: write tf.cast(x, tf.float32)."
        )
    if values.shape.rank == 0:
        raise SpecError("histogram() got a scalar: write scalars={'name': x}.")
    once = isinstance(x, (keras.Variable, tf.Variable))
    return Summary(Histogram(once), {"values": tf.cast(values, tf.float32)})


def text(x: Any, max_outputs: int = 4) -> Summary:
    """Declares texts in Markdown: the first of the batch.

    Args:
      x: strings `[batch]`, or one for all of the batch.
      max_outputs: number of texts.

    Raises:
      SpecError: it holds no strings, or is a matrix.
    """
    strings = _tensor("text", x)
    if strings.dtype != tf.string or strings.shape.rank not in (0, 1):
        raise SpecError(
            f"text() got {_described(strings)}: write strings [batch], "
            "tf.strings.as_string(x)."
        )
    most = _count("max_outputs of text()", max_outputs)
    if strings.shape.rank == 0:
        strings, most = strings[tf.newaxis], 1
    return Summary(Text(most), {"text": strings})


def pr_curve(labels: Any, probabilities: Any, num_thresholds: int = 201) -> Summary:
    """Declares the curve of precision against recall, for TensorBoard's *PR Curves*.

    Args:
      labels: 0 or 1, or bools, `[batch]` or of any other shape.
      probabilities: probabilities of a 1, in [0, 1], of the labels' shape.
      num_thresholds: thresholds, evenly from 0 to 1.

    Raises:
      SpecError: the two differ in shape, the probabilities are no floats, or there are
        fewer than two thresholds.
    """
    labels, probabilities = _pair("pr_curve", labels, probabilities)
    if not probabilities.dtype.is_floating:
        raise SpecError(
            f"pr_curve() got the probabilities {_described(probabilities)}: write "
            "tf.sigmoid(logits), floats in [0, 1]."
        )
    if _count("num_thresholds of pr_curve()", num_thresholds) < 2:
        raise SpecError("num_thresholds of pr_curve() is 1: write 2 or more.")
    tensors = {
        "labels": tf.cast(labels, tf.float32),
        "probabilities": tf.cast(probabilities, tf.float32),
    }
    return Summary(PrCurve(int(num_thresholds)), tensors)


def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: int,
    class_names: Sequence[str] = (),
) -> Summary:
    """Declares the matrix of true against predicted classes, as picture and as table.

    Args:
      labels: class numbers `[batch]`, or of any other shape.
      predictions: class numbers of the labels' shape.
      num_classes: number of the classes.
      class_names: their names, in the order of their numbers.

    Raises:
      SpecError: the two differ in shape or are no class numbers, or there is not one
        name a class.
    """
    labels, predictions = _pair("confusion_matrix", labels, predictions)
    for name, value in (("labels", labels), ("predictions", predictions)):
        if not value.dtype.is_integer and value.dtype != tf.bool:
            raise SpecError(
                f"confusion_matrix() got the {name} {_described(value)}: write class "
                "numbers, tf.argmax(logits, -1)."
            )
    number = _count("num_classes of confusion_matrix()", num_classes)
    if number > _MOST_CLASSES:
        raise SpecError(
            f"num_classes of confusion_matrix() is {number}: write {_MOST_CLASSES} or "
            "less, of classes that are put into groups."
        )
    names = checked_names("class_names of confusion_matrix()", class_names)
    if names and len(names) != number:
        raise SpecError(
            f"class_names of confusion_matrix() has {len(names)} entries for "
            f"{number} classes: write one name a class."
        )
    tensors = {
        "labels": tf.cast(labels, tf.int64),
        "predictions": tf.cast(predictions, tf.int64),
    }
    return Summary(ConfusionMatrix(number, names), tensors)


def _tensor(function: str, value: Any) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{function}() got {kind_of(value)}, not a tensor: {error}"
        ) from error


def _described(value: tf.Tensor) -> str:
    return f"{value.dtype.name} {value.shape}"


def _pair(function: str, first: Any, second: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two tensors of the same shape, `[batch, ...]`."""
    first, second = _tensor(function, first), _tensor(function, second)
    if not first.shape.is_compatible_with(second.shape) or first.shape.rank == 0:
        raise SpecError(
            f"{function}() got shapes {first.shape} and {second.shape}, which are to "
            "be the same, [batch] or [batch, ...]: write tf.squeeze(x, -1)."
        )
    return first, second


def _by_example(name: str, value: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns a tensor of one number an example."""
    value = _tensor("image", value)
    if value.shape.rank == 2 and value.shape[1] == 1:
        value = tf.squeeze(value, 1)
    if value.shape.rank != 1 or value.dtype in (tf.string, tf.bool):
        raise SpecError(
            f"image() got {name} of {_described(value)}: write one number an example, "
            "[batch]."
        )
    return tf.cast(value, dtype)


def _count(name: str, value: Any) -> int:
    if not is_int(value) or value < 1:
        raise SpecError(f"{name} is {value!r}: write an int > 0.")
    return int(value)


def _is_range(value: Any) -> bool:
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    return is_pair and all(map(is_number, value)) and value[0] < value[1]
