"""Runs a command many times with other values, and says which are the best.

    python -m pipeline.sweep --trials=20 --metric=accuracy \\
        --search="LEARNING_RATE=log(1e-4, 1e-1)" \\
        --search="cnn.dropout=uniform(0, 0.5)" -- --gin_file=gin/digits.gin

What stands after -- are flags of pipeline.main, for all trials. A trial is that command
with a value for each name that is searched, in a process and a model_dir of its own,
SWEEP_DIR/trial-0007. Optuna suggests the values (pip install optuna), by the results of
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
import re
import shlex
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
from pipeline.trials import search
from pipeline.trials.definition import Definition
from pipeline.trials.folder import Folder

_MAIN = f"{__package__}.main"
_SAMPLERS = ("tpe", "random", "grid")
_PRUNERS = ("median", "halving", "none")
_EXAMPLE = (
    f"python -m pipeline.sweep --metric=accuracy {search.EXAMPLE} -- "
    "--gin_file=gin/digits.gin"
)
_DEFAULT_TRIALS = 20
# Flags of `pipeline.main` that a trial cannot have, and why.
_NOT_FOR_TRIALS = {
    "model_dir": "each trial has its own, in --sweep_dir: write that before --",
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
    options = _define_flags()
    rest = options(argv[:end])[1:]
    if options.help:
        return flags_lib.say(f"{__doc__}\n{options.get_help()}")
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
    if options.print_commands:
        return jobs.print_commands(job, environ)
    plan = {
        "environ": environ,
        "slots": _slots(options),
        "timeout_secs": _seconds("--timeout", options.timeout),
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
    _check_arguments(arguments, dimensions)
    return Definition(
        dimensions=dimensions,
        goal=goal,
        arguments=arguments,
        launch=None if options.launch is None else shlex.split(options.launch),
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
    """Returns runs/NAME-sweep, after the last gin file."""
    given = flags_lib.parse(["pipeline.main", *arguments])
    return os.path.join("runs", f"{pathlib.Path(given.gin_file[-1]).stem}-sweep")


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
        return _DEFAULT_TRIALS
    return options.trials


def _slots(options: flags.FlagValues) -> list[dict[str, str]]:
    """Returns what is added to the environment of each trial that runs at a time."""
    slots = []
    for text in options.slot:
        words = shlex.split(text)
        if not words or not all(re.match(r"[A-Za-z_]\w*=", word) for word in words):
            raise flags.Error(
                f"--slot={text}: write NAME=VALUE, such as "
                "--slot=CUDA_VISIBLE_DEVICES=0 --slot=CUDA_VISIBLE_DEVICES=1."
            )
        slots.append(dict(word.split("=", 1) for word in words))
    if slots and options.parallel not in (None, len(slots)):
        raise flags.Error(
            f"--parallel={options.parallel} with {len(slots)} --slot: leave --parallel "
            "out, or write a --slot for each."
        )
    return slots or [{}] * (options.parallel or 1)


def _seconds(name: str, text: str | None) -> float | None:
    """Returns the seconds of '90', '90s', '45m', '8h' or '1h30m'."""
    if text is None:
        return None
    number = r"(\d+(?:\.\d+)?)"
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    found = re.fullmatch("".join(f"(?:{number}{unit})?" for unit in units), text)
    if re.fullmatch(number, text):
        return float(text)
    if not text or found is None:
        raise flags.Error(f"{name}={text}: write {name}=8h, 45m, 1h30m or seconds.")
    parts = zip(found.groups(), units.values(), strict=True)
    return sum(float(part or 0) * secs for part, secs in parts)


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


def _define_flags() -> flags.FlagValues:
    """Returns a fresh set of flags: `main` may run more than once in a process."""
    values = flags.FlagValues()
    own = {"flag_values": values, "module_name": f"{__package__}.sweep"}

    def string(name: str, text: str) -> None:
        flags.DEFINE_string(name, None, text, **own)

    def boolean(name: str, text: str, **more: Any) -> None:
        flags.DEFINE_boolean(name, False, text, **own, **more)

    def integer(name: str, default: int | None, text: str, least: int) -> None:
        flags.DEFINE_integer(name, default, text, lower_bound=least, **own)

    flags.DEFINE_multi_string(
        "search", [], "NAME=KIND(VALUES), a name as in gin. Repeatable.", **own
    )
    string("metric", "Metric of the evaluation that says which trial is best.")
    boolean("maximize", "Higher is better. Told by the name of many metrics.")
    boolean("minimize", "Lower is better. Told by the name of many metrics.")
    string("evaluation", "EvalSpec.name, where there are several evaluations.")
    flags.DEFINE_enum(
        "value",
        goal_lib.LAST,
        (goal_lib.LAST, goal_lib.BEST),
        "Which evaluation of a trial counts.",
        **own,
    )
    integer(
        "trials",
        None,
        f"Trials in all, those of earlier starts included. Default: {_DEFAULT_TRIALS}, "
        "and all combinations with --sampler=grid.",
        1,
    )
    string("sweep_dir", "Folder of the sweep. Default: runs/NAME-sweep.")
    integer("parallel", None, "Trials that run at a time. Default: 1.", 1)
    flags.DEFINE_multi_string(
        "slot",
        [],
        "Environment of one of the trials that run at a time, such as "
        "CUDA_VISIBLE_DEVICES=0. Repeatable, instead of --parallel.",
        **own,
    )
    string(
        "launch",
        "Flags of pipeline.launch, such as '--workers=2 --evaluator', for trials that "
        "are clusters on this machine.",
    )
    flags.DEFINE_enum(
        "sampler",
        _SAMPLERS[0],
        _SAMPLERS,
        "Who suggests values: Optuna's tree-structured Parzen estimator, chance, or "
        "all combinations in turn.",
        **own,
    )
    flags.DEFINE_enum(
        "pruner",
        _PRUNERS[0],
        _PRUNERS,
        "Which trials are ended before their time: those below the median at the same "
        "step, by successive halving, or none.",
        **own,
    )
    integer("seed", 0, "Seed of what is suggested.", 0)
    string("timeout", "Time after which no trial begins: 8h, 45m or seconds.")
    integer("max_failures", 3, "Trials that fail in a row before the sweep ends.", 1)
    flags.DEFINE_float(
        "grace_secs",
        60,
        "Seconds from asking a trial to save and end until it is killed.",
        lower_bound=0,
        **own,
    )
    boolean(
        "print_commands",
        "Run nothing: print the commands of all trials that have not ended, a line "
        "each, for a scheduler; their values are fixed.",
    )
    boolean(
        "collect",
        "Run nothing: read what trials in --sweep_dir have reached elsewhere, and say "
        "it. Needs --sweep_dir alone.",
    )
    flags.DEFINE_multi_integer(
        "fail", [], "Give up a trial that has not ended. Repeatable.", **own
    )
    boolean("help", "Show this help.", short_name="h")
    return values


if __name__ == "__main__":
    sys.exit(main())
