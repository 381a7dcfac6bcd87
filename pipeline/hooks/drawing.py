# SPDX-License-Identifier: Apache-2.0
"""Draws the arrays of summaries as TensorBoard's plugins read them.

Each function takes the name of a summary and its arrays `[rows, ...]` by name, and yields the
values of an event: `Summary.Value` protocol buffers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Buckets of histograms by size: from the smallest on, each is 2 % wider than the one before.
SMALLEST, GROWTH, NUM_SIZES = 1e-20, 1.02, 4650

# How TensorBoard stores values: `DataClass` of its summary.proto.
_TENSOR, _BLOBS = 2, 3
_NUM_BARS = 30
_MAX_IN_TABLE = 50
_MIN_PIXELS = 256

Arrays = Mapping[str, np.ndarray]


def num_left_out(arrays: Arrays) -> int:
    """Returns the number of values that a summary leaves out."""
    counts = arrays.get("counts")
    return 0 if counts is None else int(counts[0, -1])


def _value(tag: str, plugin: str, tensor: Any, data_class: int = _TENSOR) -> Any:
    value = tf.compat.v1.Summary.Value(tag=tag, tensor=tf.make_tensor_proto(tensor))
    value.metadata.plugin_data.plugin_name = plugin
    value.metadata.data_class = data_class
    return value


def _pictures(tag: str, pictures: Sequence[np.ndarray]) -> Any:
    height, width, _ = pictures[0].shape
    sizes = [str(width).encode(), str(height).encode()]
    encoded = [tf.io.encode_png(picture).numpy() for picture in pictures]
    return _value(tag, "images", [*sizes, *encoded], _BLOBS)


def image(tag: str, arrays: Arrays) -> Iterator[Any]:
    """Yields the pictures `pixels`; nothing for none."""
    if len(pictures := arrays["pixels"]):
        yield _pictures(tag, pictures)


def text(tag: str, arrays: Arrays) -> Iterator[Any]:
    """Yields the texts; nothing for none."""
    # TensorBoard fails on bytes that are not UTF-8.
    if texts := [text.decode("utf-8", "replace") for text in arrays["text"]]:
        yield _value(tag, "text", texts)


def histogram(tag: str, arrays: Arrays) -> Iterator[Any]:
    """Yields bars of the values that have a count."""
    counts = arrays["counts"][0, :-1]
    [found] = np.nonzero(counts)
    if not len(found):
        return
    sizes = SMALLEST * GROWTH ** np.arange(NUM_SIZES + 1)
    lefts = np.concatenate([-sizes[:0:-1], [0.0], sizes[:-1]])
    rights = np.concatenate([-sizes[-2::-1], [0.0], sizes[1:]])
    limits = lefts[found[0]], rights[found[-1]]
    middles = (lefts + rights) / 2
    bars, edges = np.histogram(middles, _NUM_BARS, range=limits, weights=counts)
    yield _value(tag, "histograms", np.stack([edges[:-1], edges[1:], bars], axis=1))


def pr_curve(tag: str, arrays: Arrays) -> Iterator[Any]:
    """Yields precision and recall at each threshold."""
    zeros, ones = arrays["counts"][0, :-1].reshape(2, -1)
    # With a probability of at least each threshold.
    false_positives, true_positives = (each[::-1].cumsum()[::-1] for each in (zeros, ones))
    true_negatives, false_negatives = zeros.sum() - false_positives, ones.sum() - true_positives
    precision = true_positives / np.maximum(true_positives + false_positives, 1)
    recall = true_positives / np.maximum(ones.sum(), 1)
    counts = [true_positives, false_positives, true_negatives, false_negatives]
    curve = np.stack([*counts, precision, recall]).astype(np.float32)
    value = _value(tag, "pr_curves", curve)
    # PrCurvePluginData: its field 2 is the number of thresholds.
    value.metadata.plugin_data.content = b"\x10" + _varint(len(ones))
    yield value


def _varint(number: int) -> bytes:
    """Returns a number as protocol buffers encode it: seven bits a byte, the lowest first."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def confusion_matrix(tag: str, arrays: Arrays, *, class_names: Sequence[str]) -> Iterator[Any]:
    """Yields a picture, a row for each true class and dark for many, and a table."""
    size = len(class_names)
    counts = arrays["counts"][0, :-1].reshape(size, size)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    cell = np.ones([-(-_MIN_PIXELS // size)] * 2)
    pixels = np.kron(np.round(255 * (1 - shares)), cell).astype(np.uint8)
    yield _pictures(tag, [pixels[..., np.newaxis]])
    if size <= _MAX_IN_TABLE:
        yield _value(f"{tag}/table", "text", [_table(counts, class_names).encode()])


def _table(counts: np.ndarray, class_names: Sequence[str]) -> str:
    """Returns the matrix as Markdown, with the recall of each class."""
    names = [name.replace("|", "\\|") for name in class_names]
    lines = [
        f"| true, predicted | {' | '.join(names)} | recall |",
        f"|---|{'---:|' * (len(names) + 1)}",
    ]
    for index, (name, row) in enumerate(zip(names, counts, strict=True)):
        recall = f"{row[index] / row.sum():.1%}" if row.sum() else ""
        lines.append(f"| **{name}** | {' | '.join(map(str, row))} | {recall} |")
    return "\n".join(lines)
