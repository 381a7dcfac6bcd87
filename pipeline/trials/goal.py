"""The goal of a sweep: a metric of an evaluation, and whether higher is better.

Values come from the record that a training keeps of its evaluations, see
`model_dir.evaluation_record`. It is read here without TensorFlow, which a sweep's own
process does without.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

from pipeline.process import refusals
from pipeline.process.refusals import RefusedValueError

# The record of one evaluation, in model_dir/eval or model_dir/eval_NAME.
RECORD = "evaluations.jsonl"
_FOLDER = "eval"
# The marker of a training's end, and its reasons of ends that were in order, see
# `model_dir.end_marker`.
_ENDED, _WELL = "training_ended.json", ("finished", "stopped")

LAST, BEST = "last", "best"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Goal:
    """What a trial is judged by.

    Attributes:
      metric: name of the metric.
      maximize: whether higher is better.
      evaluation: name of the EvalSpec; None for the only one that there is.
      value: `LAST`, a trial's last evaluation counts, or `BEST`.
    """

    metric: str
    maximize: bool
    evaluation: str | None = None
    value: str = LAST

    @property
    def direction(self) -> str:
        """'maximize' or 'minimize'."""
        return "maximize" if self.maximize else "minimize"

    def result(self, curve: Sequence[tuple[int, float]]) -> tuple[int, float] | None:
        """Returns the step and the value that a trial counts by.

        Args:
          curve: values by step, in the order of steps.

        Returns:
          Of equal bests the first; None where no value is a number.
        """
        if self.value == LAST:
            curve = curve[-1:]
        known = [point for point in curve if not math.isnan(point[1])]
        sign = 1 if self.maximize else -1
        return max(known, key=lambda point: sign * point[1], default=None)

    def curve(self, model_dir: pathlib.Path) -> list[tuple[int, float]]:
        """Returns the metric's values that a trial has reached up to now, by step.

        Args:
          model_dir: folder of the trial; may not be there yet.

        Raises:
          ValueError: the evaluations are others, or have no such metric.
        """
        folder = self.folder(model_dir)
        return [] if folder is None else self._points(read(model_dir / folder / RECORD))

    def folder(self, model_dir: pathlib.Path) -> str | None:
        """Returns the name of the evaluation's folder; None where there is none yet.

        Args:
          model_dir: folder of the trial.

        Raises:
          ValueError: there are several evaluations, and the goal names none of them.
        """
        found = [path.parent.name for path in _records(model_dir)]
        if self.evaluation:
            wanted = f"{_FOLDER}_{self.evaluation}"
            return wanted if wanted in found else None
        if len(found) > 1:
            names = [name for name in map(_name, found) if name]
            raise RefusedValueError(
                f"there are the evaluations {', '.join(names)}: add "
                f"--evaluation={names[0]}, the name of the EvalSpec."
            )
        return found[0] if found else None

    def stamp(self, model_dir: pathlib.Path) -> object:
        """Returns what differs once `curve` may be another: files and their sizes.

        Args:
          model_dir: folder of the trial.
        """
        states = [(path, path.stat()) for path in _records(model_dir)]
        return [(path, state.st_size, state.st_mtime_ns) for path, state in states]

    def check_ended(self, model_dir: pathlib.Path) -> None:
        """Checks that a trial that has ended well was evaluated.

        Args:
          model_dir: folder of the trial.

        Raises:
          ValueError: it never was, or not by that name.
        """
        names = [_name(path.parent.name) for path in _records(model_dir)]
        if self.evaluation and self.evaluation not in names:
            known = [name for name in names if name]
            raise RefusedValueError(
                f"--evaluation={self.evaluation}: the trial has no such evaluation."
                f"{refusals.near(self.evaluation, known)} Its evaluations are "
                f"{', '.join(known) or 'without names'}: "
                + ("choose one." if known else "leave --evaluation out.")
            )
        if not names:
            raise RefusedValueError(
                f"{model_dir} has no evaluation, by which a sweep compares its trials: "
                "add EvalSpec.input_fn to the gin file, and leave out --job."
            )

    def _points(self, lines: Sequence[dict[str, Any]]) -> list[tuple[int, float]]:
        points = []
        for line in lines:
            metrics = line["metrics"]
            if self.metric not in metrics:
                known = sorted(metrics)
                raise RefusedValueError(
                    f"--metric={self.metric}: the evaluation has no such metric."
                    f"{refusals.near(self.metric, known)} It has {', '.join(known)}."
                )
            value = metrics[self.metric]
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise RefusedValueError(
                    f"--metric={self.metric} is {value!r:.60} at step {line['step']}: "
                    "choose a metric that is one number."
                )
            points.append((line["step"], float(value)))
        return points


def has_ended(model_dir: pathlib.Path, curve: Sequence[tuple[int, float]]) -> bool:
    """Whether a training has come to its end, and so has its last evaluation.

    A training that was killed, or is to go on, leaves no marker of its end.

    Args:
      model_dir: folder of the training.
      curve: values of its evaluations, by step.
    """
    try:
        fields = json.loads((model_dir / _ENDED).read_text(encoding="utf-8"))
        well, saved = fields["reason"] in _WELL, fields["checkpoint_step"] or 0
        # An evaluator job may be behind.
        return well and bool(curve) and curve[-1][0] >= saved
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the lines of a record by step, as `evaluation_record.read` does.

    Args:
      path: file of the record.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return []
    found: list[dict[str, Any]] = []
    # The last line may be being written.
    for line in text.split("\n")[:-1]:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            fields = json.loads(line)
            if isinstance(fields["metrics"], dict) and isinstance(fields["step"], int):
                # Training may have gone back: what was later is lost.
                found = [each for each in found if each["step"] < fields["step"]]
                found.append(fields)
    return found


def _records(model_dir: pathlib.Path) -> list[pathlib.Path]:
    # No pattern of the whole path: it may hold brackets.
    return sorted(
        path / RECORD
        for path in (model_dir.iterdir() if model_dir.is_dir() else ())
        if (path.name == _FOLDER or path.name.startswith(f"{_FOLDER}_"))
        and (path / RECORD).is_file()
    )


def _name(folder: str) -> str | None:
    return folder.removeprefix(_FOLDER).removeprefix("_") or None
