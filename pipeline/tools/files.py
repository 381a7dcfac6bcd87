"""Writes the numbers of a training to files: tables, or lines of JSON.

There is a file for training, and one for each evaluation.
"""

import csv
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline.contract.hooks import Run, Tool
from pipeline.model_dir import atomic_file

Row = dict[str, Any]

# Below model_dir.
_FOLDER = "metrics"
_STEP, _TIME = "global_step", "wall_time"


class _FileTool(Tool):
    """Writes rows to files in model_dir: of each step one row, whatever was killed.

    Subclasses say what a file looks like. All rows are of the weights that training
    went on with: those of later steps go where a run goes on from a checkpoint.
    """

    _ending = ""

    def __init__(self) -> None:
        """Takes nothing: the run says where the files are."""
        self._folder = ""
        # By path: the last row's step, and the names of the columns.
        self._last: dict[str, tuple[int, list[str]]] = {}

    def begin(self, run: Run, hparams: Mapping[str, Any]) -> None:
        del hparams  # They are in config.gin, and in TensorBoard.
        self._folder = os.path.join(run.model_dir, _FOLDER)
        self._last = {}
        names = []
        if tf.io.gfile.isdir(self._folder):
            names = sorted(tf.io.gfile.listdir(self._folder))
        for name in names:
            if name.endswith(self._ending):
                self._keep(os.path.join(self._folder, name), run.step + 1)

    def write(self, step: int, values: Mapping[str, float], name: str) -> None:
        path = os.path.join(self._folder, f"{name}{self._ending}")
        row = {_STEP: step, _TIME: time.time(), **values}
        last, columns = self._last.get(path, (-1, []))
        if step <= last or self._new(row, columns):
            rows = [*self._keep(path, step), row]
            columns = list(dict.fromkeys(column for each in rows for column in each))
            atomic_file.write(path, self._text(rows, columns))
        else:
            tf.io.gfile.makedirs(self._folder)
            with tf.io.gfile.GFile(path, "a") as file:
                file.write(self._lines([row], columns))
        self._last[path] = step, columns

    def _keep(self, path: str, before: int) -> list[Row]:
        """Takes the rows of a step and later ones out of a file; returns the others."""
        text = atomic_file.read(path) or ""
        # A process that was killed leaves half a line at most.
        found = self._rows(text[: text.rfind("\n") + 1])
        rows = [row for row in found if row[_STEP] < before]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        kept = self._text(rows, columns)
        if kept != text:
            atomic_file.write(path, kept)
        self._last[path] = (rows[-1][_STEP] if rows else -1), columns
        return rows

    def _text(self, rows: Sequence[Row], columns: Sequence[str]) -> str:
        """Returns the whole text of a file."""
        return self._lines(rows, columns)

    def _new(self, row: Row, columns: Sequence[str]) -> bool:
        """Returns whether a row has columns for which the file has no place."""
        raise NotImplementedError

    def _lines(self, rows: Sequence[Row], columns: Sequence[str]) -> str:
        """Returns the text of some rows."""
        raise NotImplementedError

    def _rows(self, text: str) -> list[Row]:
        """Returns the rows of a text of whole lines."""
        raise NotImplementedError


class JsonLinesTool(_FileTool):
    """Writes lines of JSON: `model_dir/metrics/train.jsonl`, `eval.jsonl` and so on.

        {"global_step": 100, "wall_time": 1767222000.0, "loss": 0.312, ...}

    What is no number is NaN, Infinity or -Infinity, as Python's json reads it.
    """

    _ending = ".jsonl"

    def _new(self, row: Row, columns: Sequence[str]) -> bool:
        return False

    def _lines(self, rows: Sequence[Row], columns: Sequence[str]) -> str:
        return "".join(f"{json.dumps(row)}\n" for row in rows)

    def _rows(self, text: str) -> list[Row]:
        return [json.loads(line) for line in text.splitlines()]


class CsvTool(_FileTool):
    """Writes tables: `model_dir/metrics/train.csv`, `eval.csv` and so on.

    The first line names the columns: global_step, wall_time in seconds since 1970, and
    the values. A value that comes up later gets a column, in which earlier rows are
    empty.
    """

    _ending = ".csv"

    def _new(self, row: Row, columns: Sequence[str]) -> bool:
        return not set(row) <= set(columns)

    def _text(self, rows: Sequence[Row], columns: Sequence[str]) -> str:
        header = {column: column for column in columns}
        return self._lines([header, *rows], columns) if rows else ""

    def _lines(self, rows: Sequence[Row], columns: Sequence[str]) -> str:
        stream = io.StringIO()
        csv.DictWriter(stream, columns, lineterminator="\n").writerows(rows)
        return stream.getvalue()

    def _rows(self, text: str) -> list[Row]:
        return [
            {k: int(v) if k == _STEP else float(v) for k, v in row.items() if v}
            for row in csv.DictReader(io.StringIO(text))
        ]
