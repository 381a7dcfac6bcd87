"""Runs commands of the project for the pictures."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
_ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


@contextlib.contextmanager
def folder() -> Iterator[pathlib.Path]:
    """Yields a temporary folder."""
    with tempfile.TemporaryDirectory() as path:
        yield pathlib.Path(path)


def start(*arguments: Any, output: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """Starts `python -m ARGUMENTS...` with both outputs in one pipe or file."""
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=ROOT,
        env=_ENVIRONMENT,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(*arguments: Any) -> str:
    """Returns the output of `python -m ARGUMENTS...`.

    Raises:
      RuntimeError: it failed; with the last lines of its output.
    """
    process = start(*arguments)
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{arguments} exited with {process.returncode}:\n{output[-3000:]}")
    return output


def run_program(name: str) -> Any:
    """Returns what a program of `programs.py` wrote to its file."""
    with folder() as path:
        run("docs.pictures.programs", name, path)
        return result(path)


def result(path: pathlib.Path) -> Any:
    """Returns what a program wrote to its folder at its end."""
    return json.loads((path / "result.json").read_text(encoding="utf-8"))


def launch(name: str, path: pathlib.Path, *flags: str) -> tuple[str, ...]:
    """Returns the arguments that start a program of `programs.py` as a cluster."""
    module = ("--module=docs.pictures.programs", "--", name, str(path))
    return ("gin_estimator.launch", *flags, *module)


def lines(file: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the records of a file of JSON lines; none if it does not exist yet."""
    if not file.exists():
        return []
    complete = file.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in complete.splitlines()]
