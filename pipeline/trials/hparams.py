"""Tells TensorBoard's HParams tab which columns the trials of a sweep are compared by.

Each training writes its own hyperparameters, all that gin binds. One event file in the
sweep's folder says which of them were searched, and which metric counts. It is written
without TensorFlow, which a sweep's own process does without: a TFRecord file of `Event`
protocol buffers, whose fields have the numbers of TensorFlow's and tensorboard's own.
"""

import ast
import pathlib
import struct
import time
from collections.abc import Iterator, Sequence

from pipeline.trials.folder import writing
from pipeline.trials.goal import Goal
from pipeline.trials.search import Dimension

_FILE = "events.out.tfevents.{}.sweep"
# HParams' DataType.
_STRING, _BOOL, _FLOAT = 1, 2, 3


def write(
    folder: pathlib.Path, dimensions: Sequence[Dimension], goal: Goal, evaluation: str
) -> None:
    """Writes the file, where there is none yet.

    Args:
      folder: the sweep's folder.
      dimensions: what is searched.
      goal: what trials are judged by.
      evaluation: folder of the evaluation in a model_dir: "eval" or "eval_NAME".
    """
    if any(path.name.startswith("events.out") for path in folder.iterdir()):
        return
    content = b"".join(_messages(dimensions, goal, evaluation))
    plugin = _text(1, "hparams") + _message(2, _message(2, content))
    # An empty vector of floats: what is told is in the metadata.
    tensor = b"\x08\x01" + _message(2, _message(2, b"\x08\x00"))
    value = _text(1, "_hparams_/experiment") + _message(9, _message(1, plugin))
    value += _message(8, tensor)
    records = (
        _record(_double(1, time.time()) + _text(3, "brain.Event:2")),
        _record(_double(1, time.time()) + _message(5, _message(1, value))),
    )
    with writing(folder):
        path = folder / _FILE.format(int(time.time()))
        path.write_bytes(b"".join(records))


def _messages(
    dimensions: Sequence[Dimension], goal: Goal, evaluation: str
) -> Iterator[bytes]:
    """Yields the fields of an Experiment."""
    yield _double(3, time.time())
    for each in dimensions:
        info = _text(1, each.name) + bytes([4 << 3, _kind(each)])
        if not each.choices:
            low, high = each.bounds[:2]
            info += _message(6, _double(1, low) + _double(2, high))
        info += bytes([7 << 3, True])  # It differs from trial to trial.
        yield _message(4, info)
    name = _text(1, evaluation) + _text(2, goal.metric)
    yield _message(5, _message(1, name) + _text(3, goal.metric))


def _kind(each: Dimension) -> int:
    """Returns the type by which HParams compares values."""
    kinds = set(map(_kind_of_text, each.choices)) or {_FLOAT}
    return kinds.pop() if len(kinds) == 1 else _STRING


def _kind_of_text(text: str) -> int:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # A reference, such as @Adam.
        return _STRING
    if isinstance(value, bool):
        return _BOOL
    return _FLOAT if isinstance(value, (int, float)) else _STRING


def _message(field: int, content: bytes) -> bytes:
    """Returns a field of a protocol buffer that holds bytes or a message."""
    length, number = b"", len(content)
    while number > 127:
        length += bytes([number & 127 | 128])
        number >>= 7
    return bytes([field << 3 | 2]) + length + bytes([number]) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _double(field: int, number: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", number)


def _record(content: bytes) -> bytes:
    """Returns a record of a TFRecord file: length and content, each with a checksum."""
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    """Returns the masked CRC-32C of TFRecord files."""
    remainder = 0xFFFFFFFF
    for byte in content:
        remainder ^= byte
        for _ in range(8):
            remainder = remainder >> 1 ^ (0x82F63B78 if remainder & 1 else 0)
    crc = remainder ^ 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
