# SPDX-License-Identifier: Apache-2.0
"""Writes the numbers of a training to files: tables, or lines of JSON."""

import abc
import csv
import io
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ..contract.hooks import MetricWriter, RunContext
from ..model_dir import storage_watchdog
from ..model_dir.files import write_atomic

_FOLDER = "metrics"  # Below model_dir.
_STEP, _TIME = "global_step", "wall_time"
Row = Mapping[str, float]


class FileWriter(MetricWriter, abc.ABC):
    """Writes one file for training and one for each evaluation: `metrics/train`, `metrics/eval`.

    Each row has a later step than the row before it. A write removes the rows of its step and of
    later ones, which belong to weights that a kill lost, or to a repeated evaluation.
    """

    _ending: str

    def begin(self, run: RunContext, hparams: Mapping[str, Any]) -> None:
        """Sets the folder."""
        self._folder = os.path.join(run.model_dir, _FOLDER)
        # Last step and columns of the files that were written to since.
        self._open: dict[str, tuple[int, list[str]]] = {}

    def write(self, step: int, values: Mapping[str, float], name: str) -> None:
        """Appends a row, or writes the file again if that is not enough."""
        path = os.path.join(self._folder, f"{name}{self._ending}")
        row = {_STEP: step, _TIME: time.time(), **values}
        storage_watchdog.call(path, self._write, path, row)

    def _write(self, path: str, row: Row) -> None:
        step = row[_STEP]
        last_step, columns = self._open.get(path, (step, []))
        if last_step < step and set(row) <= set(columns):
            with tf.io.gfile.GFile(path, "a") as file:
                file.write(self._text([row], columns))
        else:
            rows = [*(old for old in self._read(path) if old[_STEP] < step), row]
            columns = list(dict.fromkeys(column for each in rows for column in each))
            tf.io.gfile.makedirs(self._folder)
            write_atomic(path, self._header(columns) + self._text(rows, columns))
        self._open[path] = step, columns

    def _read(self, path: str) -> list[Row]:
        """Returns the rows of a file, without a half line that a kill left."""
        if not tf.io.gfile.exists(path):
            return []
        with tf.io.gfile.GFile(path, "rb") as file:
            text = file.read().decode(errors="replace")
        return list(self._rows(text[: text.rfind("\n") + 1]))

    @abc.abstractmethod
    def _header(self, columns: Sequence[str]) -> str:
        """Returns the beginning of a file."""

    @abc.abstractmethod
    def _text(self, rows: Sequence[Row], columns: Sequence[str]) -> str:
        """Returns the lines of some rows."""

    @abc.abstractmethod
    def _rows(self, text: str) -> Iterator[Row]:
        """Yields the rows of a file's text."""


class JsonLinesWriter(FileWriter):
    """Writes lines of JSON: `model_dir/metrics/train.jsonl`, `eval.jsonl`, `eval_NAME.jsonl`.

        {"global_step": 100, "wall_time": 1767222000.0, "loss": 0.312, ...}

    JSON has no NaN and infinity: they are the strings "nan", "inf" and "-inf".
    """

    _ending = ".jsonl"

    def _header(self, columns: Sequence[str]) -> str:
        return ""

    def _text(self, rows: Sequence[Row], columns: Sequence[str]) -> str:
        valid = [{k: v if math.isfinite(v) else str(v) for k, v in row.items()} for row in rows]
        return "".join(f"{json.dumps(row)}\n" for row in valid)

    def _rows(self, text: str) -> Iterator[Row]:
        for line in text.splitlines():
            row = json.loads(line)
            yield {k: float(v) if isinstance(v, str) else v for k, v in row.items()}


class CsvWriter(FileWriter):
    """Writes tables: `model_dir/metrics/train.csv`, `eval.csv`, `eval_NAME.csv`.

    The columns are global_step, wall_time in seconds since 1970, and the values. A value that
    appears later gets a column, which is empty in earlier rows.
    """

    _ending = ".csv"

    def _header(self, columns: Sequence[str]) -> str:
        return self._text([{column: column for column in columns}], columns)

    def _text(self, rows: Sequence[Row], columns: Sequence[str]) -> str:
        stream = io.StringIO()
        csv.DictWriter(stream, columns, lineterminator="\n").writerows(rows)
        return stream.getvalue()

    def _rows(self, text: str) -> Iterator[Row]:
        for row in csv.DictReader(io.StringIO(text)):
            yield {k: int(v) if k == _STEP else float(v) for k, v in row.items() if v}
