# SPDX-License-Identifier: Apache-2.0
"""Searches hyperparameters: many trainings by the command, each with other values.

    python -m pip install optuna
    gin-estimator sweep --trials=20 --metric=accuracy \
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
import json
import math
import os
import pathlib
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .cli.job_output import aligned, failed, number, say
from .errors import UserError, UserValueError
from .launcher.flags import MAIN, Parser, seconds, whole
from .launcher.processes import caught_signals
from .model_dir.evaluation_results import higher_is_better
from .run import log

# Runs several commands in one process, and prints a separator after each.
_CHECK = f"""
import json, sys
from {MAIN} import main
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
    parser = _parser()
    options, arguments = parser.split(argv)
    log.set_up(debug=False)
    try:
        _check(parser, options, arguments)
        return _run(options, arguments)
    except UserError as error:
        return failed(error, debug=False)


def _parser() -> Parser:
    example = '--metric=accuracy --search="LEARNING_RATE=log(1e-4, 1e-1)" -- --gin_file=digits.gin'
    parser = Parser("sweep", __doc__, example)
    add = parser.add_argument
    add("--search", action="append", default=[], help="NAME=KIND(VALUES). Repeatable.")
    add("--metric", help="Metric of the evaluation, or loss.")
    add("--trials", type=whole(1), default=10, help="Number of trials in all. Default: 10.")
    add("--sweep_dir", help="Folder of the sweep. Default: runs/NAME OF THE GIN FILE-sweep.")
    add("--maximize", action="store_true", help="Larger values of the metric are better.")
    add("--minimize", action="store_true", help="Smaller values of the metric are better.")
    add("--evaluation", help="Name of the EvalSpec, if it has one.")
    add("--value", choices=("last", "best"), default="last", help="Evaluation that counts.")
    add("--sampler", choices=("tpe", "random", "grid"), default="tpe", help="Default: tpe.")
    add("--pruner", choices=("median", "halving", "none"), default="median", help="Default: median")
    add("--seed", type=int, default=0, help="Seed of the suggestions. Default: 0.")
    add("--parallel", type=whole(1), default=1, help="Trials that run at one time. Default: 1.")
    add("--slot", type=_slot, action="append", help="NAME=VALUE for one trial at one time, ...")
    add("--launch", type=shlex.split, help="Flags of the launcher: each trial is a cluster.")
    add("--max_failures", type=whole(1), default=3, help="Failures in a row that end the sweep.")
    add("--grace_secs", type=seconds, default=60.0, help="Seconds from SIGTERM to SIGKILL.")
    add("--timeout", type=seconds, default=math.inf, help="No trial starts after it, as 8h.")
    add("--print_commands", action="store_true", help="Print the commands for a scheduler.")
    add("--collect", action="store_true", help="Read the results of printed commands.")
    return parser


def _slot(text: str) -> Mapping[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r}: expected CUDA_VISIBLE_DEVICES=0")
    return {name: value}


def _check(parser: Parser, options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Refuses mistakes that need no configuration and no Optuna to be found."""
    if "TF_CONFIG" in os.environ:
        raise UserValueError(
            "TF_CONFIG is set: expected no cluster. Unset it; --launch='--workers=2' makes each "
            "trial a cluster."
        )
    if "://" in (options.sweep_dir or ""):
        raise UserValueError(f"--sweep_dir is {options.sweep_dir}: expected a local folder.")
    for flag in () if options.collect else ("search", "metric"):
        if not getattr(options, flag):
            raise UserValueError(f"--{flag} is not set. {parser.example}")
    flags = {argument.partition("=")[0] for argument in arguments}
    for flag in flags & {"--model_dir", "--job"}:
        raise UserValueError(
            f"{flag} is written after --: expected no {flag}, since each trial has its own. Set "
            "--sweep_dir."
        )
    for name in (each.partition("=")[0].strip() for each in options.search):
        if flags & {f"--gin.{name}", f"--{name}"}:
            raise UserValueError(f"{name} is set by --search and after --: expected one of them.")


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    # They import Optuna, which takes a second.
    from .cli import search
    from .cli.study import Study, storage_errors
    from .cli.trials import Sweep, Trials

    folder = _folder(options, arguments)
    record = _read(folder) if options.collect else _record(options, arguments)
    distributions, sweep = search.read(record["search"]), Sweep(**record["sweep"])
    if not options.collect:
        ends = {name: search.ends(each) for name, each in distributions.items()}
        record["config"] = [] if sweep.is_program else _checked_config(sweep, ends)
    with _locked(folder), storage_errors(folder):
        _compare_or_write(folder, record)
        search.describe(folder, distributions, evaluation=sweep.folder, metric=sweep.metric)
        study = Study(folder, distributions, maximize=sweep.maximize, options=options)
        return _act(options, Trials(sweep, study, folder, options))


def _act(options: argparse.Namespace, trials: Any) -> int:
    """Runs, prints or collects the trials."""
    code = 0
    if options.print_commands:
        for line in trials.commands():
            say(line)
        return code
    if options.collect:
        for each in trials.collect():
            say(f"trial {each} has not ended")
    else:
        with caught_signals() as received:
            code = trials.run(received)
    texts = [["" if v is None else number(v) for v in row] for row in trials.table()]
    for line in aligned(texts):
        say(line)
    if best := trials.best_command():
        say(f"best: {best}")
    return code


def _folder(options: argparse.Namespace, arguments: Sequence[str]) -> pathlib.Path:
    if options.sweep_dir:
        return pathlib.Path(options.sweep_dir)
    names = [each for each in arguments[:1] if not each.startswith("-")]  # A program.
    names += [each.partition("=")[2] for each in arguments if each.startswith("--gin_file=")]
    if not names:
        raise UserValueError(
            "--sweep_dir is not set, and no gin file or program is written after --: expected one. "
            "Set --sweep_dir=runs/sweep."
        )
    return pathlib.Path("runs", f"{pathlib.Path(names[0]).stem}-sweep")


def _record(options: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the record of a sweep."""
    if options.maximize and options.minimize:
        raise UserValueError("--maximize and --minimize are set: expected one of them.")
    given = options.maximize if options.maximize or options.minimize else None
    try:
        maximize = higher_is_better(options.metric, given, "sweep")
    except UserValueError:
        raise UserValueError(
            f"--metric is {options.metric}, of no known direction. Set --maximize or --minimize."
        ) from None
    names = ("metric", "evaluation", "value", "launch")
    sweep = {name: getattr(options, name) for name in names}
    sweep |= {"arguments": list(arguments), "maximize": maximize}
    return {"search": options.search, "sweep": sweep}


def _checked_config(sweep: Any, ends: Mapping[str, Sequence[Any]]) -> list[str]:
    """Tries all choices and both bounds by dry runs; returns the configuration of the first."""
    runs = []
    for index in range(max(map(len, ends.values()))):
        values = {name: each[min(index, len(each) - 1)] for name, each in ends.items()}
        runs.append([*sweep.arguments, *sweep.flags(values)])
    checked = subprocess.run(
        [sys.executable, "-c", _CHECK, json.dumps(runs)], capture_output=True, text=True
    )
    if checked.returncode:
        message = checked.stderr.partition("error: ")[2] or checked.stderr
        raise UserValueError(message.strip())
    return checked.stdout.partition("\0")[0].splitlines()


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
    """Locks the folder, which the system frees when this process ends."""
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
