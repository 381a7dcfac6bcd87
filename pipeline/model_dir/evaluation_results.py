# SPDX-License-Identifier: Apache-2.0
"""An evaluation, its line in the record, and which of several is best.

Nothing here imports TensorFlow: a sweep reads the records of its trials.
"""

import dataclasses
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..contract.old_names import hint
from ..errors import UserValueError

EVALUATIONS = "evaluations.jsonl"

# How names of metrics end.
_LOWER = ("loss", "error", "mae", "mse", "rmse", "perplexity")
_HIGHER = ("accuracy", "auc", "precision", "recall", "f1", "iou")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One evaluation.

    Attributes:
      step: global step of the weights.
      metrics: floats and arrays by name.
      checkpoint: file name of the evaluated checkpoint, `model.ckpt-20`; None for weights
        that are in no checkpoint.
      stop: reasons for which hooks of the evaluation asked to end training.
      run_id: id of the run that the checkpoint belongs to; None in records of the old release.
      time: start of the evaluation in seconds since 1970.
    """

    step: int
    metrics: Mapping[str, Any]
    checkpoint: str | None = None
    stop: Sequence[str] = ()
    run_id: str | None = None
    time: float = dataclasses.field(default_factory=time.time)


def to_json(evaluated: Evaluated) -> str:
    """Returns an evaluation as one line of JSON."""
    fields = {**dataclasses.asdict(evaluated), "metrics": _as_json(evaluated.metrics)}
    return json.dumps(fields, allow_nan=False)


def from_json(line: str) -> Evaluated:
    """Returns the evaluation of a line.

    Raises:
      Exception: the line is damaged.
    """
    fields = json.loads(line)
    metrics = {n: _from_json(value) for n, value in fields["metrics"].items()}
    return Evaluated(**{**fields, "metrics": metrics, "step": int(fields["step"])})


def parse(content: bytes, *, run_id: str | None = None) -> list[Evaluated]:
    """Returns the evaluations of a record.

    Lines that are damaged or still being written are skipped. An evaluation that follows
    others of the same or later steps replaces these: training went back.

    Args:
      content: lines of a record.
      run_id: id of the run whose evaluations to return; None for all.
    """
    found: list[Evaluated] = []
    for line in content.decode(errors="replace").split("\n"):
        try:
            each = from_json(line)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        if run_id is not None and each.run_id not in (None, run_id):
            continue
        found = [earlier for earlier in found if earlier.step < each.step]
        found.append(each)
    return found


def best(
    evaluations: Iterable[Evaluated], metric: str, k: int = 1, *, higher_is_better: bool
) -> list[Evaluated]:
    """Returns the k best evaluations of checkpoints, the best first.

    Of equal values the earlier step is better; NaN never counts.

    Args:
      evaluations: evaluations to choose from.
      metric: name of the metric.
      k: number of evaluations.
      higher_is_better: whether larger values are better.
    """
    sign = -1 if higher_is_better else 1
    candidates = [
        each
        for each in evaluations
        if each.checkpoint
        and isinstance(each.metrics.get(metric), (int, float))
        and not math.isnan(each.metrics[metric])
    ]
    return sorted(candidates, key=lambda e: (sign * e.metrics[metric], e.step))[:k]


def higher_is_better(
    metric: str,
    given: bool | None,
    owner: str,
    remedy: str = "higher_is_better to True or False",
) -> bool:
    """Returns the direction of a metric: as given, or as the end of its name shows.

    Args:
      metric: name of the metric.
      given: whether larger values are better; None for unknown.
      owner: class whose argument it is, for the error.
      remedy: argument and values to set, for the error.

    Raises:
      UserValueError: the direction is not known.
    """
    if given is not None:
        return given
    name = metric.lower()
    if name.endswith(_HIGHER) == name.endswith(_LOWER):
        raise UserValueError(
            f"{owner}.metric is {metric!r}, whose direction is not known: set {owner}.{remedy}."
        )
    return name.endswith(_HIGHER)


def check_metric(name: str, metric: str, metrics: Iterable[str]) -> None:
    """Checks before an evaluation that it will have a metric.

    Args:
      name: name in the message: "KeepBest.metric".
      metric: name of the metric.
      metrics: names of the metrics; a metric of several results has `NAME/RESULT`.

    Raises:
      UserValueError: it is not one of them.
    """
    if not {*metrics, "loss"} & {metric, *metric.split("/")}:
        raise _unknown(name, metric, {*metrics, "loss"})


def value_of(name: str, metric: str, metrics: Mapping[str, Any]) -> float:
    """Returns the value of a metric of an evaluation.

    Raises:
      UserValueError: it is missing or is not one number.
    """
    if metric not in metrics or np.ndim(metrics[metric]):
        raise _unknown(name, metric, [n for n, value in metrics.items() if not np.ndim(value)])
    return float(metrics[metric])


def _unknown(name: str, metric: str, metrics: Iterable[str]) -> UserValueError:
    known = sorted({*metrics} - {"global_step"})
    return UserValueError(
        f"{name} is {metric!r}: expected a number among the metrics of the evaluation, {known}."
        f"{hint(metric, known, {})}"
    )


def _as_json(value: Any) -> Any:
    """Returns a value in which NaN and infinity, which JSON does not have, are texts."""
    if isinstance(value, Mapping):
        return {name: _as_json(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _as_json(value.tolist())
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return np.asarray(value, float)
    return float(value) if isinstance(value, str) else value
