"""Runs a command many times with other values, and says which are the best.

    python -m pipeline.sweep --trials=20 --metric=accuracy \\
        --search="LEARNING_RATE=log(1e-4, 1e-1)" \\
        --search="cnn.dropout=uniform(0, 0.5)" -- --gin_file=gin/digits.gin

What stands after -- are flags of pipeline.main, for all trials, or a Python program of
yours with its arguments, which gets --NAME=VALUE and --model_dir=DIR. A trial is that
command with a value for each name that is searched, in a process and a model_dir of its
own, SWEEP_DIR/trial-0007. Optuna (pip install optuna) suggests values by the results of
earlier trials, and ends trials whose evaluations fall behind. Kinds of values:

    uniform(0, 0.5)    log(1e-4, 1e-1)    uniform(0, 1, 0.25)    in steps of 0.25
    int(1, 8)          log_int(16, 1024)  int(16, 128, 16)
    choice(64, 128)    choice(@Adam, @SGD)                       as written in gin

A sweep that was killed goes on by the same command, and so do its trials. --trials=40
adds to those that are there. Ctrl-C and SIGTERM have the trials that run save and end;
a second Ctrl-C kills them. Its own lines go to stderr, what trials write to
SWEEP_DIR/trial-0007.log, the table at the end to stdout and SWEEP_DIR/trials.csv.

Exit codes: 0 where all trials have ended and one has a result; 1 where none has; 2 for
what is refused: a flag, a name or a value, a trial, too many failures; 75 where the
same command goes on, after a signal; 130 for a second Ctrl-C.
"""

import importlib
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from pipeline.command import flags as flags_lib
from pipeline.command.gin_reader import ConfigError
from pipeline.model_dir import paths
from pipeline.process import exit_codes, metric_names, run_log, signals
from pipeline.process.refusals import Refusal
from pipeline.trials import definition as definition_lib
from pipeline.trials import goal as goal_lib
from pipeline.trials import search, sweep_flags
from pipeline.trials.definition import Definition
from pipeline.trials.folder import Folder

_MAIN = f"{__package__}.main"
_EXAMPLE = (
    f"python -m pipeline.sweep --metric=accuracy {search.EXAMPLE} -- "
    "--gin_file=gin/digits.gin"
)
# Flags of `pipeline.main` that a trial cannot have, and why.
_NOT_FOR_TRIALS = {
    "model_dir": "each trial has its own, in --sweep_dir: write that before --",
    "fast_dev_run": "each trial is to be evaluated to its end",
    "dry_run": "names and values are checked before the first trial",
    "list": "write it for pipeline.main alone",
    "help": "write it before --, or for pipeline.main alone",
    "version": "write it for pipeline.main alone",
}


def main(argv: Sequence[str] | None = None, *, module: str = _MAIN) -> int:
    """Runs a sweep.

    Args:
      argv: name of the program, flags, '--', flags of each trial; None for this
        process's.
      module: module that each trial runs.

    Returns:
      The exit code.
    """
    argv = list(sys.argv if argv is None else argv)
    run_log.open_streams()
    with signals.answered():
        try:
            return _main(argv, module)
        except flags.UnrecognizedFlagError as error:
            text = f"{error}" if f"{error}".endswith("?") else f"{error}."
            return exit_codes.failed(
                f"{text} Flags of pipeline.main are written after --."
            )
        except flags.Error as error:
            return exit_codes.failed(exit_codes.words_of(error))
        except (ConfigError, Refusal) as error:
            return exit_codes.failed(str(error))


def _main(argv: Sequence[str], module: str) -> int:
    for argument in argv:
        if not paths.is_text(argument):
            raise flags.Error(f"{argument!r} is no UTF-8: write another path or value.")
    end = argv.index("--") if "--" in argv else len(argv)
    options = sweep_flags.define()
    rest = options(argv[:end])[1:]
    if flags_lib.answered(options, __doc__):
        return 0
    if rest:
        raise flags.Error(
            f"unexpected argument {rest[0]!r} before --: write --flag=value there. For "
            f"example: {_EXAMPLE}"
        )
    if options.collect:
        folder = _folder(options.sweep_dir)
        found = definition_lib.of_folder(folder)
    else:
        found = _definition(options, argv[end + 1 :], module)
        folder = _folder(options.sweep_dir or _default_folder(found.arguments))
    jobs = _jobs()
    job = jobs.Job(
        definition=found,
        folder=folder,
        trials=_trials(options),
        sampler=options.sampler,
        pruner=options.pruner,
        seed=options.seed,
        given_up=[int(number) for number in options.fail],
        python=flags_lib.program("python"),
        say=flags_lib.say,
    )
    if options.collect:
        return jobs.collect(job)
    # Else Python writes to a file in blocks, and lines come minutes late.
    environ = {"PYTHONUNBUFFERED": "1", **run_log.given(os.environ)}
    if options.print_commands and options.trial_timeout:
        raise flags.Error(
            f"--trial_timeout={options.trial_timeout} is for trials that run here: "
            "leave it out, and give the scheduler a limit, as in sbatch --time=2:00:00."
        )
    if options.print_commands:
        return jobs.print_commands(job, environ)
    plan = {
        "environ": environ,
        "slots": sweep_flags.slots(options),
        "timeout_secs": sweep_flags.seconds(
            "--timeout", options.timeout, allows_none=True
        ),
        "trial_secs": sweep_flags.seconds("--trial_timeout", options.trial_timeout),
        "max_failures": options.max_failures,
        "grace_secs": options.grace_secs,
    }
    return jobs.run(job, plan)


def _definition(
    options: flags.FlagValues, arguments: Sequence[str], module: str
) -> Definition:
    """Returns what is to be tried, of flags and of what stands after --."""
    if os.environ.get("TF_CONFIG", "").strip():
        raise flags.Error(
            "TF_CONFIG is set, and would make each trial a task of that cluster: unset "
            'it; --launch="--workers=2" makes each trial a cluster on this machine.'
        )
    if not options.search:
        raise flags.Error(
            f"no --search says what to try: add {search.EXAMPLE}. For example: "
            f"{_EXAMPLE}"
        )
    dimensions = search.read(options.search)
    if not options.metric:
        raise flags.Error(
            "no --metric says which trial is best: add --metric=accuracy, a metric of "
            "the evaluation, or --metric=loss."
        )
    goal = goal_lib.Goal(
        metric=options.metric,
        maximize=_maximize(options),
        evaluation=options.evaluation,
        value=options.value,
    )
    if not arguments:
        raise flags.Error(
            f"nothing stands after --: write the flags of pipeline.main there. For "
            f"example: {_EXAMPLE}"
        )
    if definition_lib.is_program(arguments):
        _check_program(arguments)
    else:
        _check_arguments(arguments, dimensions)
    launch = options.launch
    return Definition(
        dimensions=dimensions,
        goal=goal,
        arguments=arguments,
        launch=None if launch is None else sweep_flags.words("--launch", launch),
        main=module,
    )


def _check_arguments(
    arguments: Sequence[str], dimensions: Sequence[search.Dimension]
) -> None:
    """Checks the flags of all trials.

    Raises:
      flags.Error: a flag is mistyped, or for other commands than a sweep's trials.
    """
    given = flags_lib.parse(["pipeline.main", *arguments])
    for name, why in _NOT_FOR_TRIALS.items():
        if getattr(given, name):
            raise flags.Error(f"--{name} stands after --: leave it out; {why}.")
    if given.job != flags_lib.JOBS[0]:
        raise flags.Error(
            f"--job={given.job} stands after --: leave it out; a sweep's trials train "
            "and evaluate."
        )
    bound = {text.partition("=")[0].strip() for text in given.gin_param}
    for each in dimensions:
        if each.name in bound:
            raise flags.Error(
                f"{each.name} is searched, and bound after -- as well: leave one of "
                f"--search={each} and --gin.{each.name} out."
            )


def _check_program(arguments: Sequence[str]) -> None:
    """Checks what stands after --, a Python program with its arguments.

    Raises:
      flags.Error: there is no such file, or each trial would have the same model_dir.
    """
    if not os.path.isfile(arguments[0]):
        raise flags.Error(
            f"{arguments[0]!r} after -- is no file: write the flags of pipeline.main "
            "there, or a Python program with its arguments, my_program.py --steps=1000."
        )
    for argument in arguments:
        if argument.lstrip("-").partition("=")[0] == "model_dir":
            raise flags.Error(
                f"{argument} stands after --: leave it out; "
                f"{_NOT_FOR_TRIALS['model_dir']}."
            )


def _maximize(options: flags.FlagValues) -> bool:
    if options.maximize and options.minimize:
        raise flags.Error("--maximize and --minimize: write one of them.")
    if options.maximize or options.minimize:
        return options.maximize
    found = metric_names.higher_is_better(options.metric)
    if found is None:
        raise flags.Error(
            f"--metric={options.metric}: whether higher is better cannot be told by "
            "this name: add --maximize or --minimize."
        )
    return found


def _default_folder(arguments: Sequence[str]) -> str:
    """Returns runs/NAME-sweep, after the last gin file or the program."""
    name = arguments[0]
    if not definition_lib.is_program(arguments):
        name = flags_lib.parse(["pipeline.main", *arguments]).gin_file[-1]
    return os.path.join("runs", f"{pathlib.Path(name).stem}-sweep")


def _folder(path: str | None) -> Folder:
    if not path:
        raise flags.Error("--collect needs --sweep_dir: add --sweep_dir=runs/sweep.")
    if "://" in path:
        raise flags.Error(
            f"--sweep_dir={path} is no local folder: write one, such as "
            "--sweep_dir=runs/sweep."
        )
    return Folder(pathlib.Path(paths.shown(paths.normal(path))))


def _trials(options: flags.FlagValues) -> int | None:
    if options.trials is None and options.sampler != "grid":
        return sweep_flags.DEFAULT_TRIALS
    return options.trials


def _jobs() -> Any:
    """Imports what needs Optuna: a mistyped flag is answered without it."""
    try:
        return importlib.import_module(f"{__package__}.trials.sweep_jobs")
    except ModuleNotFoundError as error:
        if error.name not in ("optuna", "sqlalchemy"):
            raise
        raise flags.Error(
            "Optuna is not installed, which suggests the values: pip install optuna, "
            "or gin-estimator[sweep]."
        ) from error


if __name__ == "__main__":
    sys.exit(main())
