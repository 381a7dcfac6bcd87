"""Says of programs of tf.estimator, line by line, what to write instead.

    python -m pipeline.moving program.py
    python -m pipeline.moving program.py --write                  # and program_moved.py
    python -m pipeline.moving program.py --write --output=new.py

For each line it prints what is there, the line to write and the row of the table in
docs/from_tf_estimator.md; at the end what is mechanical, what needs a decision, and
what has no equal. --write replaces names that mean the same, and nothing else: above
each statement that is left to you there is a comment, # MOVING: and what to write. No
file is overwritten.

Exit codes: 0 where all programs were read; 2 for what is refused: a flag, a notebook, a
program of Python 2, a file that is there.
"""

import importlib
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from pipeline.moving import table
from pipeline.process import exit_codes
from pipeline.process.refusals import Refusal


def define() -> flags.FlagValues:
    """Returns the flags of this command."""
    values = flags.FlagValues()
    own = {"flag_values": values, "module_name": __package__}
    flags.DEFINE_boolean("write", False, "Write the mechanical part.", **own)
    flags.DEFINE_string(
        "output", None, "The file to write. Default: PROGRAM_moved.py.", **own
    )
    flags.DEFINE_boolean("help", False, "Say what this command does.", **own)
    flags.DEFINE_boolean(
        "pages", False, "Write the table into docs/, where its pages stand.", **own
    )
    return values


def main(argv: Sequence[str] | None = None) -> int:
    """Reads programs, and says of each what to write.

    Args:
      argv: name of the program, flags, paths; None for this process's.

    Returns:
      The exit code.
    """
    try:
        return _main(list(sys.argv if argv is None else argv))
    except flags.Error as error:
        return exit_codes.failed(exit_codes.words_of(error))
    except Refusal as error:
        return exit_codes.failed(str(error))


def _main(argv: list[str]) -> int:
    options = define()
    paths = options(argv)[1:]
    if options.help:
        return _say(f"{__doc__}\n{options.get_help()}")
    if options.pages:
        table.write_pages(pathlib.Path())
        return 0
    if not paths:
        raise flags.Error(
            f"no program is given: write python -m {__package__} program.py."
        )
    if options.output and (len(paths) > 1 or not options.write):
        raise flags.Error(
            f"--output={options.output} is for one program, with --write: leave it out."
        )
    for path in paths:
        moved = _job().of_file(path)
        _say("\n".join(moved.lines))
        if options.write:
            target = moved.write(options.output)
            _say(f"  wrote {target}")
    return 0


def _say(text: str) -> int:
    """Writes to stdout; what stdout cannot show is shown as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        sys.stdout.write(f"{shown}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Of `| head`: nobody reads on, and Python would say so once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _job() -> Any:
    """Imports what needs libcst: a mistyped flag is answered without it."""
    try:
        return importlib.import_module(f"{__package__}.job")
    except ModuleNotFoundError as error:
        if error.name != "libcst":
            raise
        raise flags.Error(
            "libcst is not installed, which reads programs: pip install libcst, or "
            "gin-estimator[moving]."
        ) from error


if __name__ == "__main__":
    sys.exit(main())
