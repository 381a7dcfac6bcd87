"""Searches hyperparameters: many trainings by the command, each with other values.

    python -m pip install optuna
    python -m pipeline.sweep --trials=20 --metric=accuracy \
        --search="LEARNING_RATE=log(1e-4, 1e-1)" --search="cnn.dense=choice((64,), (64, 64))" \
        -- --gin_file=gin/digits.gin

Each trial is a process in its own model_dir, runs/digits-sweep/trial-0007, with its output in
trial-0007.log. At the end the table is printed, the best first, with the best command;
trials.csv has the exact numbers. The same command continues a sweep that was killed. After --
may also be a program of the user: it gets --NAME=VALUE and --model_dir.

Kinds of --search: uniform(a, b[, step]), log(a, b), int(a, b[, step]), log_int(a, b),
choice(...). Names are gin's, choices are gin values such as @Adam or (64, 64).

A trial that exits with 0 counts by its last evaluation; with 75 it is started again; another
code is a failure. Exit codes: 0 if a trial has a result, 1 if none has, 2 if an argument is
wrong, 75 after a signal, 130 after a second Ctrl-C.
"""

import argparse
import contextlib
import difflib
import fcntl
import importlib
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from .cli import search
from .cli.report import failed, number, say
from .errors import EXIT_REFUSED, UserError, UserValueError
from .launcher.processes import caught_signals
from .model_dir.evaluated import higher_is_better
from .run import durations, log

_EXAMPLE = (
    f"python -m {__package__}.sweep --trials=20 --metric=accuracy {search.EXAMPLE} "
    "-- --gin_file=gin/digits.gin"
)
# Runs several commands in one process, and prints a separator after each.
_CHECK = f"""
import json, sys
from {__package__}.main import main
for arguments in json.loads(sys.argv[1]):
    if code := main(["main", *arguments, "--dry_run"]):
        sys.exit(code)
    print("\\0")
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a sweep.

    Args:
      argv: name of the program, the sweep's flags, `--`, what each trial gets; None for those
        of this process.

    Returns:
      The exit code.
    """
    log.open_standard_streams()
    argv = list(sys.argv if argv is None else argv)
    split = argv.index("--") if "--" in argv else len(argv)
    options = _parser().parse_args(argv[1:split])
    log.set_up(debug=False)
    try:
        return _run(options, argv[split + 1 :])
    except UserError as error:
        return failed(error, debug=False)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    if "TF_CONFIG" in os.environ:
        raise UserValueError(
            "TF_CONFIG is set: expected no cluster. Unset it; --launch='--workers=2' makes each "
            "trial a cluster."
        )
    folder = _folder(options, arguments)
    record = _read(folder) if options.collect else _record(options, arguments)
    # Imports Optuna, which takes a second; wrong arguments are answered before.
    study_lib = importlib.import_module(".cli.study", __package__)
    trials_lib = importlib.import_module(".cli.trials", __package__)
    if not options.collect:
        record["config"] = _checked_config(record)
    with _locked(folder):
        _compare_or_write(folder, record)
        sweep = trials_lib.Sweep(dimensions=search.read(record["search"]), **record["sweep"])
        study = study_lib.Study(
            folder,
            sweep.dimensions,
            maximize=sweep.maximize,
            sampler=options.sampler,
            pruner="none" if options.print_commands else options.pruner,
            seed=options.seed,
        )
        trials = trials_lib.Trials(
            sweep,
            study,
            folder,
            slots=options.slot or [{}] * options.parallel,
            environment=os.environ,
            num_trials=options.trials,
            max_failures=options.max_failures,
            grace_secs=options.grace_secs,
            timeout_secs=options.timeout,
        )
        return _act(options, trials)


def _act(options: argparse.Namespace, trials: Any) -> int:
    """Runs, prints or collects the trials."""
    if options.print_commands:
        for line in trials.commands(options.trials):
            say(line)
        return 0
    if options.collect:
        code = 0
        for each in trials.collect():
            say(f"trial {each} has not ended")
    else:
        with caught_signals() as received:
            code = trials.run(received)
    columns, rows = trials.table()
    texts = [columns, *([_text(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        say("  ".join(cells).rstrip())
    best = trials.best_command()
    if best is not None:
        say(f"best: {best}")
    return code


def _text(value: Any) -> str:
    return "" if value is None else number(value)


class _Parser(argparse.ArgumentParser):
    """Ends with an example and code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_REFUSED, f"error: {message}. Example: {_EXAMPLE}\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog=f"python -m {__package__}.sweep",
        usage="%(prog)s [FLAGS] -- ARGUMENTS OF EACH TRIAL",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--search", action="append", default=[], help="NAME=KIND(VALUES). Repeatable.")
    add("--metric", help="Metric of the evaluation, or loss.")
    add("--trials", type=_whole, default=10, help="Number of trials in all. Default: 10.")
    add("--sweep_dir", help="Folder of the sweep. Default: runs/NAME OF THE GIN FILE-sweep.")
    add("--maximize", action="store_true", help="Larger values of the metric are better.")
    add("--minimize", action="store_true", help="Smaller values of the metric are better.")
    add("--evaluation", help="Name of the EvalSpec, if it has one.")
    add("--value", choices=("last", "best"), default="last", help="Evaluation that counts.")
    add("--sampler", choices=("tpe", "random", "grid"), default="tpe", help="Default: tpe.")
    add("--pruner", choices=("median", "halving", "none"), default="median", help="Default: median")
    add("--seed", type=int, default=0, help="Seed of the suggestions. Default: 0.")
    add("--parallel", type=_whole, default=1, help="Trials that run at one time. Default: 1.")
    add("--slot", type=_slot, action="append", help="NAME=VALUE for one trial at one time, ...")
    add("--launch", type=shlex.split, help="Flags of the launcher: each trial is a cluster.")
    add("--max_failures", type=_whole, default=3, help="Failures in a row that end the sweep.")
    add("--grace_secs", type=_seconds, default=60.0, help="Seconds from SIGTERM to SIGKILL.")
    add("--timeout", type=_seconds, default=float("inf"), help="No trial starts after it, as 8h.")
    add("--print_commands", action="store_true", help="Print the commands for a scheduler.")
    add("--collect", action="store_true", help="Read the results of printed commands.")
    return parser


def _whole(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return value


def _seconds(text: str) -> float:
    try:
        return durations.seconds(text if text[-1:].isalpha() else float(text), "duration")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None


def _slot(text: str) -> Mapping[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: expected CUDA_VISIBLE_DEVICES=0")
    return {name: value}


def _folder(options: argparse.Namespace, arguments: Sequence[str]) -> pathlib.Path:
    files = [each.partition("=")[2] for each in arguments if each.startswith("--gin_file=")]
    programs = [each for each in arguments[:1] if not each.startswith("-")]
    if options.sweep_dir is None and not files and not programs:
        raise UserValueError(
            "--sweep_dir is not set, and no gin file or program is written after --: expected "
            f"one. Example: {_EXAMPLE}"
        )
    name = pathlib.Path((programs or files or [""])[0]).stem
    given = options.sweep_dir or f"runs/{name}-sweep"
    if "://" in given:
        raise UserValueError(f"--sweep_dir is {given}: expected a local folder.")
    return pathlib.Path(given)


def _record(options: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the record of a sweep, after checking the arguments.

    Raises:
      UserValueError: something is wrong.
    """
    if not options.search or not options.metric:
        missing = "--search" if options.metric else "--metric"
        raise UserValueError(f"{missing} is not set. Example: {_EXAMPLE}")
    names = [each.name for each in search.read(options.search)]
    flags = {argument.partition("=")[0] for argument in arguments}
    for argument in arguments:
        for flag in ("--model_dir", "--job"):
            if argument.partition("=")[0] == flag:
                raise UserValueError(
                    f"{argument} is written after --: expected no {flag}, since each trial has "
                    "its own. Set --sweep_dir."
                )
    for name in names:
        if f"--gin.{name}" in flags or f"--{name}" in flags:
            raise UserValueError(f"{name} is set by --search and after --: expected one of them.")
    if options.maximize and options.minimize:
        raise UserValueError("--maximize and --minimize are set: expected one of them.")
    given = options.maximize if options.maximize or options.minimize else None
    try:
        maximize = higher_is_better(options.metric, given, "sweep")
    except UserValueError:
        raise UserValueError(
            f"--metric is {options.metric}, whose direction is not known. Set --maximize or "
            "--minimize."
        ) from None
    return {
        "search": [str(each) for each in search.read(options.search)],
        "sweep": {
            "arguments": list(arguments),
            "metric": options.metric,
            "maximize": maximize,
            "evaluation": options.evaluation,
            "value": options.value,
            "launch": options.launch,
        },
    }


def _checked_config(record: Mapping[str, Any]) -> list[str]:
    """Tries all names and bounds by dry runs.

    Returns:
      The lines of the configuration with the first values.

    Raises:
      UserValueError: the command refuses a name or a value.
    """
    arguments, dimensions = record["sweep"]["arguments"], search.read(record["search"])
    if not arguments or not arguments[0].startswith("-"):
        return []  # A program has no dry run.
    number_of_runs = max(len(each.ends) for each in dimensions)
    runs = []
    for index in range(number_of_runs):
        values = [each.ends[min(index, len(each.ends) - 1)] for each in dimensions]
        pairs = zip(dimensions, values, strict=True)
        runs.append([*arguments, *(f"--gin.{each.binding(value)}" for each, value in pairs)])
    checked = subprocess.run(
        [sys.executable, "-c", _CHECK, json.dumps(runs)], capture_output=True, text=True
    )
    if checked.returncode:
        message = checked.stderr.partition("error: ")[2] or checked.stderr
        raise UserValueError(message.strip())
    return checked.stdout.partition("\0")[0].splitlines()


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Holds the folder, which the system frees when this process ends.

    Raises:
      UserValueError: another sweep runs there, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise UserValueError(f"--sweep_dir is {folder}: {error.strerror}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise UserValueError(
                f"{folder} is in use by a sweep, {file.read()}. Set another --sweep_dir."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def _read(folder: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "sweep.json").read_text())
    except (OSError, ValueError) as error:
        raise UserValueError(f"{folder / 'sweep.json'} cannot be read: {error}.") from error


def _compare_or_write(folder: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Writes the record of the sweep; refuses the folder of another one."""
    path = folder / "sweep.json"
    text = json.dumps(record, indent=1)
    if not path.exists():
        path.write_text(f"{text}\n")
    before = json.dumps(_read(folder), indent=1)
    if before != text:
        lines = difflib.unified_diff(before.splitlines(), text.splitlines(), n=0, lineterm="")
        changes = "\n".join(line for line in list(lines)[2:22] if not line.startswith("@@"))
        raise UserValueError(
            f"{folder} belongs to another sweep: expected the same. Set another --sweep_dir.\n"
            f"{changes}"
        )


if __name__ == "__main__":
    sys.exit(main())
