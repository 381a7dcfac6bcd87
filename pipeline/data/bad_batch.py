# SPDX-License-Identifier: Apache-2.0
"""The batches of a step that training skips, in a folder that plain TensorFlow reads.

step-70/                    the step whose loss was not finite
    model.ckpt-69             the weights before it, a checkpoint
    batches/000-000           process and number of an element, by tf.data.Dataset.load
    bad_batch.json            step and reason; written last
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..contract.paths import normal
from ..errors import UserValueError
from ..model_dir.files import read_json, write_atomic
from .batch import components_of

_FOLDER = "bad_batches"
_RECORD = "bad_batch.json"
_BATCHES = "batches"
_MOST_EXAMPLES = 8  # In a message.


@dataclasses.dataclass(frozen=True)
class BadBatch:
    """The batches of one step.

    Attributes:
      folder: their folder, which also has the checkpoint before the step.
      step: global step after the step.
      reason: why they were skipped.
      datasets: one dataset for each element that a process took from its input, with one element.
    """

    folder: str
    step: int
    reason: str
    datasets: Sequence[tf.data.Dataset]


def folder_of(model_dir: str, step: int, number: int = 0) -> str:
    """Returns the folder of a step; `number` batches were skipped at the same step before."""
    suffix = f"-{number + 1}" if number else ""
    return os.path.join(model_dir, _FOLDER, f"step-{step}{suffix}")


def write_elements(folder: str, process: int, elements: Sequence[Any]) -> None:
    """Writes the elements that a process took from its input."""
    for index, element in enumerate(elements):
        path = os.path.join(folder, _BATCHES, f"{process:03d}-{index:03d}")
        tf.data.Dataset.from_tensors(element).save(path)


def write_record(folder: str, step: int, reason: str) -> None:
    """Completes a folder: until then `read` refuses it."""
    write_atomic(os.path.join(folder, _RECORD), json.dumps({"step": step, "reason": reason}))


def read(folder: str | os.PathLike[str]) -> BadBatch:
    """Reads a folder.

    Args:
      folder: path of the folder of a step.

    Returns:
      The batches of the step.

    Raises:
      UserValueError: it is not such a folder, or incomplete.
    """
    path = normal(folder, "bad_batch")
    record = read_json(os.path.join(path, _RECORD), lambda found: (found["step"], found["reason"]))
    if record is None:
        parents = (path, os.path.join(path, _FOLDER), os.path.dirname(path))
        known = next(filter(None, map(_complete, parents)), [])
        example = known[0] if known else os.path.join("runs", "1", _FOLDER, "step-70")
        raise UserValueError(
            f"bad_batch is {path!r}: expected a folder that RunConfig(on_nan='restore') or "
            f"'dump' has written to its end, {known or 'and found none'}. Set "
            f"bad_batch={example!r}."
        )
    batches = os.path.join(path, _BATCHES)
    names = sorted(name.rstrip("/") for name in tf.io.gfile.listdir(batches))
    datasets = [tf.data.Dataset.load(os.path.join(batches, name)) for name in names]
    return BadBatch(path, *record, datasets)


def nonfinite(element: Any) -> list[str]:
    """Returns where an element has NaN or Inf: `features['x'], examples 3, 7`."""
    found = []
    for name, leaf in components_of(element):
        is_ragged = isinstance(leaf, tf.RaggedTensor)
        values = leaf.flat_values if is_ragged else getattr(leaf, "values", leaf)
        if not values.dtype.is_floating:
            continue
        bad = tf.where(~tf.math.is_finite(values)).numpy()
        if len(bad) and values is leaf and leaf.shape.rank:
            rows = sorted({*bad[:, 0].tolist()})
            more = f" and {len(rows) - _MOST_EXAMPLES} more" if len(rows) > _MOST_EXAMPLES else ""
            found.append(f"{name}, examples {', '.join(map(str, rows[:_MOST_EXAMPLES]))}{more}")
        elif len(bad):
            found.append(name)
    return found


def _complete(folder: str) -> list[str]:
    """Returns the complete folders of steps in a folder."""
    return sorted(map(os.path.dirname, tf.io.gfile.glob(os.path.join(folder, "step-*", _RECORD))))
