"""The batches that a loss went wrong on, written to `model_dir/bad_batches`.

    step-70/                   the step that went wrong
        model.ckpt-69            weights before it, a checkpoint like any other
        batch-71/element-0-of-2  first element that the batch's dataset yielded
        left_out.json            what is known of each batch

TensorFlow alone reads an element back, with its structure, ragged, sparse and string
tensors included: `next(iter(tf.data.Dataset.load(path)))`.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.checkpoints import checkpoint
from pipeline.feed.batch import LeftOut
from pipeline.mistakes.checks import components
from pipeline.model_dir import atomic_file, paths
from pipeline.process.refusals import RefusedValueError

FOLDER = "bad_batches"
_RECORDS = "left_out.json"
# Most numbers of examples that a message lists.
_MOST_LISTED = 8


@dataclasses.dataclass(frozen=True)
class BadStepFiles:
    """What lies in the folder of a step that went wrong.

    Attributes:
      folder: the folder.
      weights: path prefix of the checkpoint before the step.
      batches: elements of each batch that are there, by the batch's number.
      reasons: why each batch was left out.
      missing: elements that are not there, as other processes wrote them elsewhere.
    """

    folder: str
    weights: str
    batches: Mapping[int, Sequence[Any]]
    reasons: tuple[str, ...]
    missing: tuple[str, ...]

    @classmethod
    def read(cls, given: str | os.PathLike[str]) -> "BadStepFiles":
        """Reads the folder of a step; writes nothing.

        Args:
          given: path as a user gave it.

        Raises:
          ValueError: it is no such folder, or not all of it is there.
        """
        folder = found(given)
        weights = checkpoint.latest(folder)
        try:
            batches = read(folder)
        except (tf.errors.OpError, OSError, ValueError) as error:
            raise _unfinished(
                folder, f"a batch in it cannot be read ({error:.200})"
            ) from error
        if weights is None or not batches:
            raise _unfinished(folder, f"it has no {'batch' if weights else 'weights'}")
        return cls(folder, weights, batches, _reasons(folder), tuple(_missing(folder)))


def folder_of(model_dir: str, step: int) -> str:
    """Returns the folder of a step that went wrong."""
    return os.path.join(model_dir, FOLDER, f"step-{step}")


def model_dir_of(folder: str) -> str:
    """Returns the model_dir of a step's folder."""
    return os.path.dirname(os.path.dirname(folder))


def steps_in(model_dir: str) -> list[int]:
    """Returns the steps whose batches were written, in order."""
    folder = os.path.join(model_dir, FOLDER)
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    numbers = [name.rstrip("/").removeprefix("step-") for name in names]
    return sorted(int(number) for number in numbers if number.isdigit())


def found(given: str | os.PathLike[str]) -> str:
    """Returns the folder of a step that a user named, normalized.

    Raises:
      ValueError: there is none; names those that are there.
    """
    folder = paths.normal(given)
    name = os.path.basename(folder)
    if name.startswith("step-") and tf.io.gfile.isdir(folder):
        return folder
    near = (folder, os.path.dirname(folder), model_dir_of(folder))
    model_dir = next((place for place in near if steps_in(place)), None)
    if model_dir is None:
        raise RefusedValueError(
            f"bad_batch is {os.fspath(given)!r}, where no batches are that went wrong: "
            "write bad_batch='runs/1/bad_batches/step-70'. A training with "
            "RunConfig(on_nan='restore'), or 'record', writes such a folder."
        )
    steps = steps_in(model_dir)
    example = paths.shown(folder_of(model_dir, steps[0]))
    raise RefusedValueError(
        f"bad_batch is {os.fspath(given)!r}, which is no folder of a step: write "
        f"bad_batch={example!r}. Steps that are there: {', '.join(map(str, steps))}."
    )


def digest_of(elements: Sequence[Any]) -> str:
    """Returns 12 hexadecimal digits that tell these elements from all others."""
    digest = hashlib.sha256()
    for leaf in tf.nest.flatten(list(elements), expand_composites=True):
        array = np.asarray(leaf)
        content = array.tolist() if array.dtype == object else array.tobytes()
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(content if isinstance(content, bytes) else repr(content).encode())
    return digest.hexdigest()[:12]


def not_finite(element: Any) -> list[str]:
    """Returns where an element holds NaN or Inf: "features['x'], examples 3, 7".

    Args:
      element: features, or features and labels, of one batch.
    """
    features, labels = element if isinstance(element, tuple) else (element, None)
    found = []
    for name, leaf in components((features, labels)):
        values = getattr(leaf, "flat_values", getattr(leaf, "values", leaf))
        if not getattr(values, "dtype", tf.string).is_floating:
            continue
        if isinstance(leaf, tf.Tensor) and leaf.shape.rank:
            bad = ~np.isfinite(np.asarray(tf.cast(leaf, tf.float64)))
            rows = np.flatnonzero(bad.reshape(len(bad), -1).any(1)).tolist()
            if rows:
                found.append(f"{name}, {listed(rows)}")
        elif not np.isfinite(np.asarray(tf.cast(values, tf.float64))).all():
            found.append(name)
    return found


def listed(rows: Sequence[int]) -> str:
    """Returns examples in words: "example 3", "examples 3, 7"."""
    more = f" and {len(rows) - _MOST_LISTED} more" if len(rows) > _MOST_LISTED else ""
    numbers = ", ".join(map(str, rows[:_MOST_LISTED]))
    return f"example{'s' if len(rows) > 1 else ''} {numbers}{more}"


def write(folder: str, batch: LeftOut) -> str:
    """Writes what this process had of a batch.

    Args:
      folder: folder of the step.
      batch: batch that was left out.

    Returns:
      The folder of the batch.
    """
    path = os.path.join(folder, f"batch-{batch.number}")
    for number, element in enumerate(batch.elements, batch.first):
        if number >= batch.total:
            break  # Another process had the same elements, and writes them.
        place = os.path.join(path, f"element-{number}-of-{batch.total}")
        if tf.io.gfile.isdir(place):
            tf.io.gfile.rmtree(place)
        tf.data.Dataset.from_tensors(element).save(place)
    return path


def read(folder: str) -> dict[int, list[Any]]:
    """Returns the elements of a step's batches, by the batches' numbers, in order."""
    found: dict[int, list[Any]] = {}
    for name in sorted(tf.io.gfile.listdir(folder)):
        number = name.rstrip("/").removeprefix("batch-")
        if number.isdigit():
            path = os.path.join(folder, f"batch-{number}")
            parts = [part.rstrip("/") for part in tf.io.gfile.listdir(path)]
            parts.sort(key=lambda part: int(part.split("-")[1]))
            found[int(number)] = [
                next(iter(tf.data.Dataset.load(os.path.join(path, part))))
                for part in parts
            ]
    return dict(sorted(found.items()))


def describe(folder: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes down what is known of a step's batches."""
    path = os.path.join(folder, _RECORDS)
    atomic_file.write(path, f"{json.dumps(list(records), indent=1)}\n")


def _reasons(folder: str) -> tuple[str, ...]:
    """Returns why batches were left out, each reason once; none of a damaged file."""
    text = atomic_file.read(os.path.join(folder, _RECORDS))
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return tuple(dict.fromkeys(each["reason"] for each in json.loads(text or "[]")))
    return ()


def _missing(folder: str) -> Iterator[str]:
    """Yields what a batch's elements say of others that are not there."""
    for name in sorted(tf.io.gfile.listdir(folder)):
        if not name.startswith("batch-"):
            continue
        parts = tf.io.gfile.listdir(os.path.join(folder, name))
        numbers = [part.rstrip("/").split("-") for part in parts]
        total = max((int(number[3]) for number in numbers), default=0)
        for each in sorted({*range(total)} - {int(number[1]) for number in numbers}):
            yield f"element {each} of {name.rstrip('/')}"


def _unfinished(folder: str, why: str) -> RefusedValueError:
    return RefusedValueError(
        f"bad_batch is {folder!r}, and {why}: a training is writing it, or was killed "
        "while it did. Try again later, or run that training again."
    )
