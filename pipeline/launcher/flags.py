# SPDX-License-Identifier: Apache-2.0
"""The flags of the launcher, and command lines of the form FLAGS -- ARGUMENTS OF EACH PROCESS."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from ..contract import paths
from ..errors import EXIT_REFUSED
from ..run import durations
from ..run.suggestions import near

PACKAGE = __package__.rpartition(".")[0]
MAIN = f"{PACKAGE}.main"
COMMAND = "gin-estimator"
# Images by the first part of the type of a TPU.
TPU_IMAGES = {
    **dict.fromkeys(("v2", "v3", "v4"), "tpu-ubuntu2204-base"),
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
_OF_A_TPU = ("zone", "bucket", "project", "name", "spot", "install", "print_commands")
_OF_A_CLUSTER = (
    "workers",
    "min_workers",
    "retry_secs",
    "ps",
    "evaluator",
    "data_workers",
    "module",
    "grace_secs",
    "exit_secs",
)


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


def value_of(name: str, arguments: Sequence[str]) -> str | None:
    """Returns the last value of a flag, `--flag=value` or `--flag value`; None without it."""
    value = None
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, text = argument.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            value = text if equals else following
    return value


def launch_parser(description: str | None) -> Parser:
    """Returns the parser of the launcher's flags."""
    parser = Parser(
        "launch", description or "", "--workers=2 -- --gin_file=gin/digits.gin --model_dir=m"
    )
    add = parser.add_argument
    add("--workers", type=whole(1), default=1, help="Workers. Default: 1.")
    add("--min_workers", type=whole(1), help="Workers that are enough. Default: all.")
    add(
        "--retry_secs",
        type=seconds,
        default=60.0,
        help="Time until all workers are tried again after one was lost. Default: 60.",
    )
    add("--ps", type=whole(0), default=0, help="Parameter servers; they add a chief. Default: 0.")
    add("--evaluator", action="store_true", help="An evaluator: the others only train.")
    add("--data_workers", type=whole(0), default=0, help="Processes that make training batches.")
    add("--module", help=f"Module of yours that each task runs. Default: that of {COMMAND}.")
    add("--max_restarts", type=whole(0), help="Restarts after failures. Default: 0; of --tpu 100.")
    add(
        "--grace_secs",
        type=seconds,
        default=30.0,
        help="Time from SIGTERM to SIGKILL. Default: 30.",
    )
    add(
        "--exit_secs",
        type=seconds,
        default=300.0,
        help="Time to end after the leader. Default: 300.",
    )
    add("--tpu", help="Type of a TPU that is created for the training: v5litepod-8.")
    add("--zone", help="Its zone: us-central1-a.")
    add("--bucket", help="gs://BUCKET: the training is in BUCKET/NAME, without --model_dir.")
    add("--project", help="Its project. Default: that of gcloud config.")
    add("--name", help="Its name. Default: that of the gin file.")
    add("--spot", action="store_true", help="A cheaper one that may be preempted.")
    add("--install", help="What pip installs on it: '.[demo]', '-r FILE'. Default: '.'.")
    add("--print_commands", action="store_true", help="Print the commands, and run nothing.")
    return parser


def checked(parser: Parser, options: argparse.Namespace, arguments: Sequence[str]) -> list[str]:
    """Checks the launcher's flags, and completes those of a TPU; ends with code 2 at a wrong one.

    Args:
      parser: the parser of `launch_parser`.
      options: the launcher's flags.
      arguments: arguments after `--`.

    Returns:
      Flags of the training on a TPU; arguments of Python in each task of a cluster.
    """
    for name in _OF_A_CLUSTER if options.tpu else _OF_A_TPU:
        if (value := getattr(options, name)) != parser.get_default(name):
            given = "with" if options.tpu else "without"
            parser.error(f"--{name} is {value} {given} --tpu: expected one kind. Leave one out")
    if options.tpu:
        return _check_tpu(parser, options, arguments)
    program = _program(parser, options, arguments)
    _check_workers(parser, options, value_of("model_dir", arguments))
    return program


def _program(parser: Parser, options: argparse.Namespace, arguments: Sequence[str]) -> list[str]:
    """Returns Python's arguments in each task."""
    if options.module:
        return ["-m", options.module, *arguments]
    if not arguments:
        parser.error(f"nothing is written after --: expected the flags of {COMMAND}, or a program")
    if not arguments[0].startswith("-"):
        if not os.path.isfile(arguments[0]):
            parser.error(f"the program is {arguments[0]!r}: expected a file, or --module=NAME")
        return list(arguments)
    if not value_of("model_dir", arguments):
        parser.error("--model_dir is missing after --: expected a directory that all tasks share")
    needed = "parameter_server" if options.ps else "multi_worker"
    given = value_of("execution", arguments)
    if given not in (None, needed):
        parser.error(
            f"--execution is {given!r} with --workers={options.workers} --ps={options.ps}: "
            f"expected {needed}, or leave it out"
        )
    return ["-m", MAIN, *arguments, *([] if given else [f"--execution={needed}"])]


def _check_workers(parser: Parser, options: argparse.Namespace, model_dir: str | None) -> None:
    """Checks --data_workers and --min_workers with the other flags."""
    least = options.min_workers
    if options.data_workers and (options.workers > 1 or options.ps):
        parser.error(
            f"--data_workers is {options.data_workers} with --workers={options.workers} "
            f"--ps={options.ps}: expected one process that trains"
        )
    if least is None:
        return
    if options.ps:
        parser.error(
            "--min_workers is for workers in lockstep: expected no --ps, whose workers are "
            "started again alone. Set --max_restarts"
        )
    if least > options.workers:
        parser.error(
            f"--min_workers is {least} with --workers={options.workers}: expected a number from 1 "
            f"to {options.workers}"
        )
    if not model_dir or "://" in paths.expanded(model_dir):
        parser.error(
            f"--model_dir is {model_dir or 'missing'} after -- with --min_workers: expected a "
            "local directory, whose checkpoints show the launcher that training continues"
        )


def _check_tpu(parser: Parser, options: argparse.Namespace, arguments: Sequence[str]) -> list[str]:
    """Completes the flags of a TPU; returns those of the training."""

    def check(name: str, value: object, pattern: str, expected: str, example: str) -> None:
        if not re.fullmatch(pattern, str(value)):
            parser.error(f"--{name} is {value}: expected {expected}. Set --{name}={example}")

    if arguments and not arguments[0].startswith("-"):
        parser.error(f"{arguments[0]} is written after --: expected flags. Set --gin_file=run.gin")
    gin_file = value_of("gin_file", arguments) or ""
    check("gin_file", gin_file, ".+", "the configuration, after --", "run.gin")
    stem = re.sub("[^a-z0-9]+", "-", os.path.basename(gin_file).removesuffix(".gin").lower())
    options.name = options.name or stem.strip("-")
    options.install = options.install or "."
    options.bucket = str(options.bucket).rstrip("/")
    tpus = rf"({'|'.join(TPU_IMAGES)})-[1-8]"
    check("tpu", options.tpu, tpus, f"{', '.join(TPU_IMAGES)} and 1 to 8, one host", "v5litepod-8")
    check("zone", options.zone, "[a-z0-9-]+-[a-z]", "a zone of Google Cloud", "us-central1-a")
    check("bucket", options.bucket, "gs://[^/]+.*", "a gs:// path", "gs://my-bucket")
    check("name", options.name, "[a-z]([a-z0-9-]{0,61}[a-z0-9])?", "a-z, 0-9 and -", "run-1")
    model_dir = value_of("model_dir", arguments) or f"{options.bucket}/{options.name}"
    check("model_dir", model_dir, "gs://.+", "a gs:// path", f"{options.bucket}/{options.name}")
    check("execution", value_of("execution", arguments) or "tpu", "tpu", "tpu", "tpu")
    listed = subprocess.run(["bash", "-c", "git ls-files -z"], capture_output=True, text=True)
    files = set(listed.stdout.split("\0")) - {""}
    if not files:
        parser.error(
            f"the working directory is {os.getcwd()}: expected files that git knows, which are "
            "copied. Set it up by git init && git add"
        )
    if os.path.isfile(gin_file) and os.path.normpath(gin_file) not in files:
        parser.error(f"--gin_file is {gin_file}: expected a file that git knows. Set it by git add")
    if options.install == "." and not {"pyproject.toml", "setup.py"} & files:
        parser.error(
            f"--install is '.' in {os.getcwd()}: expected a pyproject.toml that git knows. Set "
            "--install='-r requirements.txt'"
        )
    if not options.print_commands and not shutil.which("gcloud"):
        parser.error("gcloud is not on PATH: expected Google Cloud's command line. Install it")
    return [*arguments, f"--model_dir={model_dir}", "--execution=tpu"]
