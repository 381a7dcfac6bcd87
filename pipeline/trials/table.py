"""What is said of a sweep's trials: a line each, a table, and a file of it."""

import csv
import io
import math
from collections.abc import Iterator, Sequence

from pipeline.trials.goal import Goal
from pipeline.trials.search import Dimension
from pipeline.trials.study import Row, State

_NONE = "-"


def number(value: float) -> str:
    """Writes a metric's value in six digits, without zeros at the end."""
    return f"{value:.6g}"


def lines(
    rows: Sequence[Row], dimensions: Sequence[Dimension], goal: Goal
) -> Iterator[str]:
    """Yields the lines of a table of trials, the best one first.

    Args:
      rows: the trials.
      dimensions: what is searched.
      goal: what trials are judged by.
    """
    sign = 1 if goal.maximize else -1

    def rank(row: Row) -> tuple[bool, float, int]:
        ended = row.state is State.DONE
        return not ended, -sign * row.result if ended else 0.0, row.number

    head = ["trial", "state", goal.metric, "step", *(each.name for each in dimensions)]
    cells = [head]
    for row in sorted(rows, key=rank):
        result = _NONE if row.result is None else number(row.result)
        values = (
            _short(each, row.values[each.name]) if each.name in row.values else _NONE
            for each in dimensions
        )
        step = _NONE if row.step is None else str(row.step)
        cells.append([str(row.number), row.state.value, result, step, *values])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def as_csv(rows: Sequence[Row], dimensions: Sequence[Dimension], goal: Goal) -> str:
    """Returns the table by number of the trial, for other programs: whole numbers.

    Args:
      rows: the trials.
      dimensions: what is searched.
      goal: what trials are judged by.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [each.name for each in dimensions]
    writer.writerow(["trial", "state", goal.metric, "step", *names, "reason"])
    for row in rows:
        values = [
            each.text(row.values[each.name]) if each.name in row.values else ""
            for each in dimensions
        ]
        result = "" if row.result is None else repr(row.result)
        step = "" if row.step is None else row.step
        writer.writerow(
            [row.number, row.state.value, result, step, *values, row.reason]
        )
    return text.getvalue()


def point(goal: Goal, step: int, value: float) -> str:
    """Returns 'accuracy 0.9812 at step 500'."""
    shown = "NaN" if math.isnan(value) else number(value)
    return f"{goal.metric} {shown} at step {step}"


def values(row_values, dimensions: Sequence[Dimension]) -> str:
    """Returns 'LEARNING_RATE=0.00123, cnn.dropout=0.21', in digits for people."""
    return ", ".join(
        f"{each.name}={_short(each, row_values[each.name])}" for each in dimensions
    )


def _short(each: Dimension, value) -> str:
    text = each.text(value)
    return f"{value:.4g}" if isinstance(value, float) and len(text) > 6 else text
