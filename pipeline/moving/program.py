"""Reads a program: its text, and its syntax tree, which keeps comments and format."""

import ast
import dataclasses
import pathlib
import re
import warnings

import libcst as cst

from pipeline.process.refusals import RefusedValueError

# What Python 2 writes and Python 3 cannot read, a line at a time.
_PYTHON_2 = re.compile(
    r"^\s*print\s+[^\s=(.,)\]]|^\s*print\s*>>|^\s*except\s+[\w.() ,]+,\s*\w+\s*:"
    r"|^\s*raise\s+\w+\s*,|^\s*exec\s+[\"'\w]|\bur[\"']"
)


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that can be moved.

    Attributes:
      path: its file.
      module: its syntax tree.
    """

    path: pathlib.Path
    module: cst.Module


def read(path: str) -> Program:
    """Reads a program.

    Args:
      path: of a file with Python 3 in it.

    Raises:
      RefusedValueError: there is no such file, or it is no Python 3; says what to do
        first.
    """
    file = pathlib.Path(path)
    if file.suffix == ".ipynb":
        raise RefusedValueError(
            f"{path} is a notebook: write `jupyter nbconvert --to script {path}`, and "
            f"move {file.with_suffix('.py')}."
        )
    if not file.is_file():
        raise RefusedValueError(f"{path} is no file: write the path of a program.")
    data = file.read_bytes()
    try:
        with warnings.catch_warnings():
            # Of escapes in strings; they are the program's own affair.
            warnings.simplefilter("ignore")
            ast.parse(data)
        return Program(file, cst.parse_module(data))
    except (cst.ParserSyntaxError, SyntaxError, ValueError, LookupError) as bad:
        raise RefusedValueError(_unreadable(path, data, bad)) from bad


def _unreadable(path: str, data: bytes, error: Exception) -> str:
    """Returns what is wrong with a program that cannot be read, and what to do."""
    lines = data.decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        if _PYTHON_2.search(line):
            return (
                f"{path} line {number} is Python 2, {line.strip()!r}: make it Python 3 "
                f"first, by `2to3 -w {path}` of Python 3.12 or earlier, and see that "
                "it runs."
            )
    indents = {line[0] for line in lines if line[:1] in ("\t", " ")}
    if indents == {"\t", " "} and isinstance(error, TabError):
        return (
            f"{path} is indented by tabs and by spaces, which Python 3 does not read: "
            f"write `expand -t 4 {path} > spaces.py`, and move spaces.py."
        )
    where = getattr(error, "lineno", None) or "1"
    words = str(getattr(error, "msg", error)).partition("\n")[0]
    return (
        f"{path} line {where} is no Python 3 ({words}): write it so that `python -m "
        f"py_compile {path}` takes it."
    )
