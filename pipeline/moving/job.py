"""Moves one file: reads it, tells of it, writes what came of it."""

import ast
import dataclasses
import pathlib
from collections.abc import Sequence

from pipeline.moving import move as move_lib
from pipeline.moving import program, report
from pipeline.moving.move import Move
from pipeline.process.refusals import RefusedValueError


@dataclasses.dataclass(frozen=True)
class Job:
    """One program's move.

    Attributes:
      move: the move.
      lines: what to say of it.
    """

    move: Move
    lines: Sequence[str]

    def write(self, output: str | None = None) -> pathlib.Path:
        """Writes the new program, and returns its path.

        Args:
          output: path of the file; None for PROGRAM_moved.py beside the program.

        Raises:
          RefusedValueError: there is such a file.
        """
        path = self.move.program.path
        target = path.with_name(f"{path.stem}_moved.py") if output is None else output
        target = pathlib.Path(target)
        ast.parse(self.move.text)  # A fault of this project's would be found here.
        try:
            with target.open("xb") as file:
                file.write(self.move.text)
        except FileExistsError as error:
            raise RefusedValueError(
                f"{target} is there: remove it, or write --output=another.py."
            ) from error
        except OSError as error:
            raise RefusedValueError(
                f"{target} cannot be written ({error.strerror}): write --output=PATH "
                "with another one."
            ) from error
        return target


def of_file(path: str) -> Job:
    """Reads a program, and moves it.

    Args:
      path: of the program.

    Raises:
      RefusedValueError: it cannot be read as Python 3.
    """
    moved = move_lib.of(program.read(path))
    return Job(moved, tuple(report.lines(moved)))
