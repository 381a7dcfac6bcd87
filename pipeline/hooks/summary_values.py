"""Turns summaries into what TensorBoard's plugins read: images, histograms, curves.

`tf.summary` does the same, and needs the tensorboard package.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contract.summaries import (
    HISTOGRAM_BITS,
    ConfusionMatrix,
    Histogram,
    Image,
    Kind,
    Number,
    PrCurve,
    Seen,
    Text,
)
from pipeline.hooks import drawing

# How TensorBoard keeps a summary's values.
_TENSOR, _BLOBS = 2, 3
# Buckets of a histogram, about, in what is written.
_BUCKETS = 60
# Classes of a confusion matrix whose table is written in full.
_MOST_IN_TABLE = 30
# Confusions that are listed where the table is not.
_MOST_LISTED = 20
# Rounding that a picture's values may lie out of range.
_TOLERANCE = 1e-2


def values(tag: str, seen: Seen) -> list[Any]:
    """Returns the values of an event, `Summary.Value` protocol buffers.

    Args:
      tag: name of the summary.
      seen: the summary.
    """
    return list(_VALUES[type(seen.kind)](tag, seen.kind, seen.state))


def remark(tag: str, seen: Seen) -> str | None:
    """Returns what is wrong with the numbers of a summary; None if nothing is.

    Args:
      tag: name of the summary.
      seen: the summary.
    """
    kind, state = seen.kind, seen.state
    if isinstance(kind, Image) and state["pixels"].dtype != np.uint8:
        pixels = state["pixels"][_rows(state)]
        lacks = pixels.size - np.isfinite(pixels).sum()
        low, high = kind.value_range or (-np.inf, np.inf)
        margin = _TOLERANCE * (high - low) if kind.value_range else 0
        found = pixels[np.isfinite(pixels)]
        if lacks:
            return f"image {tag!r} holds {lacks} values that are NaN or infinite."
        if found.size and (found.min() < low - margin or found.max() > high + margin):
            return (
                f"image {tag!r} has values from {found.min():.4g} to "
                f"{found.max():.4g}, and shows those from {low:g} to {high:g}: write "
                f"image(x, value_range=({found.min():.2g}, {found.max():.2g})), or "
                "value_range=None."
            )
    if isinstance(kind, Histogram):
        *_, lacks = _buckets(_counts(state))
        if lacks:
            return (
                f"histogram {tag!r} leaves out {lacks} values that are NaN or infinite."
            )
    if isinstance(kind, PrCurve) and (out := _counts(state)[-1]):
        return (
            f"pr_curve {tag!r} leaves out {out} pairs: labels are to be 0 or 1, and "
            "probabilities in [0, 1]: write tf.sigmoid(logits)."
        )
    if isinstance(kind, ConfusionMatrix) and (out := _counts(state)[-1]):
        return (
            f"confusion_matrix {tag!r} leaves out {out} pairs, of class numbers out of "
            f"0 to {kind.num_classes - 1}: write num_classes=..., the number of all."
        )
    return None


def _rows(state: Any) -> np.ndarray:
    """Returns which rows of a state are there, bool `[most]`."""
    return np.asarray(state["score"]) > -np.inf


def _counts(state: Any) -> np.ndarray:
    """Returns counts that were added up, or those of the one row that was kept."""
    counts = np.asarray(state["counts"])
    return counts[0] if "score" in state else counts


def _value(tag: str, plugin: str, tensor: Any, *, blobs: bool = False) -> Any:
    proto = tf.compat.v1.Summary.Value(tag=tag)
    proto.tensor.CopyFrom(tf.make_tensor_proto(tensor))
    proto.metadata.plugin_data.plugin_name = plugin
    proto.metadata.data_class = _BLOBS if blobs else _TENSOR
    return proto


def _pictures(tag: str, pictures: Sequence[np.ndarray]) -> Iterator[Any]:
    """Yields one value of all pictures; none where there are none."""
    if not pictures:
        return
    height, width, _ = pictures[0].shape
    encoded = [tf.io.encode_png(picture).numpy() for picture in pictures]
    sizes = [str(width).encode(), str(height).encode()]
    yield _value(tag, "images", [*sizes, *encoded], blobs=True)


def _image(tag: str, kind: Image, state: Any) -> Iterator[Any]:
    pictures = []
    for row in np.flatnonzero(_rows(state)):
        picture = _bytes_of(state["pixels"][row], kind.value_range)
        lines = [
            f"{word} {_in_words(state[f'labels/{word}'][row], kind.class_names)}"
            for word, _ in kind.words
        ]
        if lines or kind.columns:
            picture = drawing.captioned(picture, lines)
        pictures.append(picture)
    if kind.columns and pictures:
        pictures = [drawing.side_by_side(pictures, kind.columns)]
    yield from _pictures(tag, pictures)


def _bytes_of(
    pixels: np.ndarray, value_range: tuple[float, float] | None
) -> np.ndarray:
    """Returns a picture's pixels from 0 to 255."""
    if pixels.dtype == np.uint8 and value_range is not None:
        return pixels
    pixels = np.nan_to_num(pixels.astype(np.float32))
    low, high = value_range or (pixels.min(), pixels.max())
    scaled = (pixels - low) / max(high - low, np.finfo(np.float32).tiny)
    return np.round(np.clip(scaled, 0, 1) * 255).astype(np.uint8)


def _in_words(value: Any, names: Sequence[str]) -> str:
    if isinstance(value, np.floating):
        return f"{value:.3g}"
    return names[value] if 0 <= value < len(names) else str(value)


def _text(tag: str, kind: Text, state: Any) -> Iterator[Any]:
    del kind
    texts = list(state["text"][_rows(state)])
    if texts:
        yield _value(tag, "text", texts)


def _histogram(tag: str, kind: Histogram, state: Any) -> Iterator[Any]:
    del kind
    lefts, rights, counts, _ = _buckets(_counts(state))
    if len(counts):
        yield _value(tag, "histograms", np.stack([lefts, rights, counts], 1))


def _buckets(
    counts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Returns edges and counts of buckets that lie side by side.

    Args:
      counts: number of values, by the first `HISTOGRAM_BITS` bits of a float32.

    Returns:
      Left edges, right edges and counts, float64; and the number of values that are no
      finite numbers.
    """
    half = len(counts) // 2
    shift = 32 - HISTOGRAM_BITS
    lefts = (np.arange(half, dtype=np.uint32) << shift).view(np.float32)
    num = int(np.isfinite(lefts).sum())
    lacks = int(counts[num:half].sum() + counts[half + num :].sum())
    # The bit of the sign makes the second half of the numbers, from -0 down.
    positive, negative = counts[:num], counts[half : half + num][::-1]
    amounts = np.concatenate([negative, positive]).astype(np.float64)
    limits = np.append(lefts[:num], np.finfo(np.float32).max).astype(np.float64)
    borders = np.concatenate([-limits[::-1], limits[1:]])
    there = np.flatnonzero(amounts)
    if not len(there):
        return borders[:0], borders[:0], amounts[:0], lacks
    first, last = there[0], there[-1] + 1
    # Neighbours become one bucket where they are narrow: counts stay what they are.
    width = (borders[last] - borders[first]) / _BUCKETS
    cuts = [first]
    for place in range(first + 1, last):
        if borders[place] - borders[cuts[-1]] >= width:
            cuts.append(place)
    sums = np.add.reduceat(amounts[:last], cuts)
    return borders[cuts], borders[[*cuts[1:], last]], sums, lacks


def _pr_curve(tag: str, kind: PrCurve, state: Any) -> Iterator[Any]:
    # Those at or above each threshold.
    zeros, ones = _counts(state)[:-1].reshape(2, -1)[:, ::-1].cumsum(1)[:, ::-1]
    true_positive, false_positive = ones, zeros
    true_negative, false_negative = zeros[0] - zeros, ones[0] - ones
    precision = true_positive / np.maximum(true_positive + false_positive, 1)
    recall = true_positive / np.maximum(true_positive + false_negative, 1)
    rows = [true_positive, false_positive, true_negative, false_negative]
    table = np.stack([*rows, precision, recall]).astype(np.float32)
    proto = _value(tag, "pr_curves", table)
    # PrCurvePluginData of one field, num_thresholds.
    content = b"\x10" + _varint(kind.num_thresholds)
    proto.metadata.plugin_data.content = content
    yield proto


def _varint(number: int) -> bytes:
    """Returns a number as protocol buffers hold it: seven bits a byte, least first."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _confusion_matrix(tag: str, kind: ConfusionMatrix, state: Any) -> Iterator[Any]:
    size = kind.num_classes
    counts = _counts(state)[:-1].reshape(size, size)
    names = kind.class_names or tuple(map(str, range(size)))
    yield from _pictures(tag, [drawing.matrix(counts, names)])
    table = _table if size <= _MOST_IN_TABLE else _list
    text = table(counts, [name.replace("|", "\\|") for name in names])
    yield _value(f"{tag}/table", "text", [text.encode()])


def _table(counts: np.ndarray, names: Sequence[str]) -> str:
    """Returns the matrix as Markdown, with the part of each class that was found."""
    lines = [
        f"| true \\ predicted | {' | '.join(names)} | recall |",
        f"|---|{'---:|' * (len(names) + 1)}",
    ]
    for number, name in enumerate(names):
        row = counts[number]
        recall = f"{row[number] / row.sum():.1%}" if row.sum() else ""
        lines.append(f"| **{name}** | {' | '.join(map(str, row))} | {recall} |")
    return "\n".join(lines)


def _list(counts: np.ndarray, names: Sequence[str]) -> str:
    """Returns the most frequent confusions as Markdown."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    lines = ["| true | predicted | number |", "|---|---|---:|"]
    for place in np.argsort(-wrong, axis=None, kind="stable")[:_MOST_LISTED]:
        row, column = divmod(int(place), len(names))
        if wrong[row, column]:
            cells = names[row], names[column], wrong[row, column]
            lines.append("| {} | {} | {} |".format(*cells))
    return "\n".join(lines)


def _number(tag: str, kind: Number, state: Any) -> Iterator[Any]:
    del kind
    for value in state["value"][_rows(state)]:
        yield tf.compat.v1.Summary.Value(tag=tag, simple_value=float(value))


_VALUES: dict[type[Kind], Callable[..., Iterator[Any]]] = {
    Image: _image,
    Text: _text,
    Histogram: _histogram,
    PrCurve: _pr_curve,
    ConfusionMatrix: _confusion_matrix,
    Number: _number,
}
