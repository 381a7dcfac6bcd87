# SPDX-License-Identifier: Apache-2.0
"""The command lines of the launcher and of sweeps: FLAGS -- ARGUMENTS OF EACH PROCESS."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from ..errors import EXIT_REFUSED
from ..run import durations
from ..run.suggestions import near

PACKAGE = __package__.rpartition(".")[0]
MAIN = f"{PACKAGE}.main"
COMMAND = "gin-estimator"


class Parser(argparse.ArgumentParser):
    """Reads the flags in front of `--`; a wrong one ends the process with code 2."""

    def __init__(self, name: str, description: str, example: str) -> None:
        """Takes the name of the subcommand, and the flags of an example."""
        super().__init__(
            prog=f"{COMMAND} {name}",
            usage="%(prog)s [FLAGS] -- ARGUMENTS OF EACH PROCESS",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.example = f"Example: {self.prog} {example}"

    def split(self, argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
        """Returns the flags in front of `--`, and the arguments after it."""
        argv = list(sys.argv if argv is None else argv)
        index = argv.index("--") if "--" in argv else len(argv)
        return self.parse_args(argv[1:index]), argv[index + 1 :]

    def error(self, message: str) -> NoReturn:
        """Ends the process with the message and the example."""
        hint = ""
        if "unrecognized arguments" in message:
            unknown = message.partition(": ")[2].split()[0].partition("=")[0]
            hint = near(unknown.lstrip("-"), self._flags(), prefix="--")
            message += f". Flags of {COMMAND}, or a program and its flags, are written after --"
        self.exit(EXIT_REFUSED, f"error: {message}.{hint} {self.example}\n")

    def _flags(self) -> list[str]:
        return [name[2:] for action in self._actions for name in action.option_strings]


def whole(least: int) -> Callable[[str], int]:
    """Returns a parser of integers of at least `least`."""

    def number(text: str) -> int:  # argparse: "invalid number value".
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    return number


def seconds(text: str) -> float:
    """Returns a duration, such as 30 or 8h, in seconds."""
    try:
        return durations.seconds(text if text[-1:].isalpha() else float(text), "duration")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
