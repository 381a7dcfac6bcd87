# SPDX-License-Identifier: Apache-2.0
"""Writes the report of a run: what it reached, and what it spent its time on.

    gin-estimator report runs/digits
    gin-estimator report gs://bucket/run --output=report.html
    gin-estimator report runs/digits --text
    gin-estimator report runs/digits-sweep

The report is one HTML file without scripts and network: loss and evaluations, a timeline over all
attempts, goodput, which is the share of the wall time in steps that counted, exports, and what
changed between attempts. A training may be running; its last seconds are not written yet. The
report of a sweep that has ended is the table of its trials, and the metric over each value.

Exit codes: 0, the report is written; 2, the folder has no history, or the file cannot be written.
"""

import argparse
import contextlib
import csv
import importlib
import io
import json
import os
import pathlib
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from .cli import job_output, report_page
from .contract import paths
from .errors import UserError, UserValueError
from .launcher.flags import COMMAND
from .model_dir import phases
from .model_dir.evaluation_results import EVALUATIONS, parse
from .run import log

_PAGE = "report.html"
_CONFIG = "config.gin"
_TRIALS = "trials.csv"  # Of a sweep, at its end.
# Written by `model_dir/claim.py`, which renews it; another host's claim is void after this time.
_CLAIM, _CLAIM_SECS = "training.claim", 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Writes a report.

    Args:
      argv: name of the program, flags and the directory; None for those of this process.

    Returns:
      The exit code.
    """
    log.open_standard_streams()
    options = _parser().parse_args(list(sys.argv if argv is None else argv)[1:])
    try:
        folder = paths.normal(options.model_dir)
        if trials := _Files(folder).read(_TRIALS):
            rows = list(csv.reader(io.StringIO(trials.decode(), newline="")))
            lines = job_output.aligned(report_page.rounded(rows))
            page = report_page.sweep_page(folder, rows)
        else:
            report = read(folder)
            lines, page = report_page.text_lines(report), report_page.page(report)
        if options.text:
            for line in lines:
                job_output.say(line)
        else:
            path = options.output or f"{folder}/{_PAGE}"
            _write(path, page)
            job_output.say(f"report {path}")
        return 0
    except UserError as error:
        return job_output.failed(error, debug=False)


def read(model_dir: str) -> report_page.Report:
    """Returns the report of a model_dir.

    Raises:
      UserValueError: it has no history.
    """
    files = _Files(model_dir)
    lines = phases.parse(files.read(phases.HISTORY) or b"")
    if not lines:
        raise UserValueError(
            f"MODEL_DIR is {model_dir}: expected the directory of a training, with "
            f"{phases.HISTORY}, or of a sweep that has ended. Set that of a run with checkpoints."
        )
    evaluations = {
        name: parse(files.read(f"{name}/{EVALUATIONS}") or b"")
        for name in files.names("")
        if name == "eval" or name.startswith("eval_")
    }
    exports = {
        name: [f"{model_dir}/export/{name}/{each}" for each in sorted(stamps, key=int)]
        for name in files.names("export")
        if (stamps := list(filter(str.isdigit, files.names(f"export/{name}"))))
    }
    config = files.read(_CONFIG)
    return report_page.Report(
        model_dir,
        phases.times(lines),
        is_running=files.is_claimed(),
        evaluations={name: each for name, each in evaluations.items() if each},
        exports=exports,
        config=None if config is None else config.decode(errors="replace"),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{COMMAND} report",
        usage="%(prog)s MODEL_DIR [FLAGS]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="Directory of the run.")
    parser.add_argument("--output", help=f"File to write. Default: MODEL_DIR/{_PAGE}.")
    parser.add_argument("--text", action="store_true", help="Print tables, and write no file.")
    return parser


class _Files:
    """Reads a folder; one in a bucket by TensorFlow, whose import takes seconds."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._gfile: Any = _gfile(folder)

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None without it."""
        path = f"{self._folder}/{name}"
        if self._gfile is None:
            return pathlib.Path(path).read_bytes() if os.path.isfile(path) else None
        return self._gfile.GFile(path, "rb").read() if self._gfile.exists(path) else None

    def names(self, name: str) -> list[str]:
        """Returns the names in a folder, sorted; none without it."""
        path = f"{self._folder}/{name}".rstrip("/")
        if self._gfile is None:
            return sorted(os.listdir(path)) if os.path.isdir(path) else []
        found = self._gfile.listdir(path) if self._gfile.isdir(path) else []
        return sorted(each.rstrip("/") for each in found)

    def is_claimed(self) -> bool:
        """Returns whether a training holds the folder."""
        content = self.read(_CLAIM)
        if not content:
            return False
        with contextlib.suppress(ValueError, KeyError, TypeError):  # It is being written.
            claim = json.loads(content)
            if claim["host"] == socket.gethostname():
                return _is_alive(int(claim["pid"]))
        if self._gfile is not None:
            renewed = self._gfile.stat(f"{self._folder}/{_CLAIM}").mtime_nsec / 1e9
            return time.time() - renewed < _CLAIM_SECS
        with contextlib.suppress(FileNotFoundError):  # The training has just ended.
            return time.time() - os.stat(f"{self._folder}/{_CLAIM}").st_mtime < _CLAIM_SECS
        return False


def _is_alive(pid: int) -> bool:
    """Returns whether a process of this host exists; signal 0 does nothing."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _gfile(path: str) -> Any:
    """Returns TensorFlow's files for a URL; None for a local path."""
    return importlib.import_module("tensorflow").io.gfile if "://" in path else None


def _write(path: str, text: str) -> None:
    if (gfile := _gfile(path)) is not None:
        with gfile.GFile(path, "w") as file:
            file.write(text)
        return
    with job_output.output(path) as write:
        write(text.rstrip("\n"))


if __name__ == "__main__":
    sys.exit(main())
