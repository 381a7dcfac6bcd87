"""The record of evaluations: one line of JSON each, `eval[_NAME]/evaluations.jsonl`.

Whoever evaluates along a training appends to it: the training itself, or the evaluator
beside it. The training reads what an evaluator has appended, and so does whoever asks
later how the run went. A process that is killed leaves half a line at most.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

FILE = "evaluations.jsonl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One evaluation.

    Attributes:
      step: global step of the weights.
      time: end of the evaluation, in seconds since 1970.
      metrics: floats and arrays by name, as `Estimator.evaluate` returns them.
      checkpoint: file name of the checkpoint, `model.ckpt-20`; None for weights that
        were evaluated while they were live, and are in none.
      identity: digest of that checkpoint, which tells it from another one of its step;
        None where its files were not there yet.
      stop: reasons for which a hook of the evaluation asked training to stop.
    """

    step: int
    time: float
    metrics: Mapping[str, Any]
    checkpoint: str | None = None
    identity: str | None = None
    stop: Sequence[str] = ()


def append(folder: str, evaluated: Evaluated) -> None:
    """Appends an evaluation to the record.

    Args:
      folder: folder of the evaluation's events, which one process at a time writes.
      evaluated: evaluation that was made.
    """
    tf.io.gfile.makedirs(folder)
    path = os.path.join(folder, FILE)
    # The half line of a process that was killed ends here, and stays by itself.
    begin = "\n" if _last_byte(path) not in (b"", b"\n") else ""
    with tf.io.gfile.GFile(path, "a") as file:
        file.write(f"{begin}{as_line(evaluated)}\n")


def as_line(evaluated: Evaluated) -> str:
    """Returns an evaluation as one line of JSON."""
    fields = {**dataclasses.asdict(evaluated), "metrics": dict(evaluated.metrics)}
    # What an evaluation has not is not spoken of.
    for name in ("stop", "identity"):
        if not fields[name]:
            del fields[name]
    return json.dumps(fields, default=lambda value: value.tolist())


def parsed(text: str) -> list[Evaluated]:
    """Returns the evaluations of a text, in its order; passes over damaged lines.

    Args:
      text: lines that `as_line` returned.
    """
    found = []
    for line in text.splitlines():
        try:
            fields = json.loads(line)
            metrics = {
                name: np.asarray(value) if isinstance(value, list) else value
                for name, value in fields["metrics"].items()
            }
            fields["step"].bit_length()  # An int, or the line is none of ours.
            found.append(Evaluated(**{**fields, "metrics": metrics}))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def read(folder: str) -> list[Evaluated]:
    """Returns the evaluations of the weights that training went on with, by step.

    Of two evaluations of a step the later one counts. Where an evaluation follows
    others of later steps, training had gone back, and what these evaluated is lost.

    Args:
      folder: folder of the evaluation's events.
    """
    found: list[Evaluated] = []
    for each in parsed(appended(folder)[0]):
        found = [earlier for earlier in found if earlier.step < each.step]
        found.append(each)
    return found


def appended(folder: str, after: int = 0) -> tuple[str, int]:
    """Returns the whole lines after a place in the record, and the place after them.

    Args:
      folder: folder of the evaluation's events.
      after: place in bytes; where the record is shorter, it is another one, and is read
        from its beginning.
    """
    path = os.path.join(folder, FILE)
    length = _length(path)
    after = after if after <= length else 0
    if length == after:
        return "", after
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(after)
        whole = file.read()
    # A line may be being written: it is read next time.
    whole = whole[: whole.rfind(b"\n") + 1]
    return whole.decode(errors="replace"), after + len(whole)


def _length(path: str) -> int:
    try:
        return tf.io.gfile.stat(path).length
    except tf.errors.NotFoundError:
        return 0


def _last_byte(path: str) -> bytes:
    length = _length(path)
    if not length:
        return b""
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(length - 1)
        return file.read(1)
