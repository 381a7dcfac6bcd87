"""The flags of a sweep, and what they say of the trials that run at a time."""

import re
import shlex
from typing import Any

from absl import flags

from pipeline.process import durations
from pipeline.trials import goal as goal_lib

DEFAULT_TRIALS = 20
SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("median", "halving", "none")


def define() -> flags.FlagValues:
    """Defines the flags in a set of their own, so that a sweep can run repeatedly."""
    values = flags.FlagValues()
    own = {"flag_values": values, "module_name": "pipeline.sweep"}

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
        f"Trials in all, those of earlier starts included. Default: {DEFAULT_TRIALS}, "
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
        SAMPLERS[0],
        SAMPLERS,
        "Who suggests values: Optuna's tree-structured Parzen estimator, chance, or "
        "all combinations in turn.",
        **own,
    )
    flags.DEFINE_enum(
        "pruner",
        PRUNERS[0],
        PRUNERS,
        "Which trials are ended before their time: those below the median at the same "
        "step, by successive halving, or none.",
        **own,
    )
    integer("seed", 0, "Seed of what is suggested.", 0)
    string("timeout", "Time after which no trial begins: 8h, 45m or seconds.")
    string(
        "trial_timeout",
        "Time that a trial may run, over all restarts: 2h, 45m or seconds. One that "
        "takes longer is ended, and counts by what it has reached, or as failed.",
    )
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
    boolean("version", "Print the versions of this project and what it runs on.")
    boolean("help", "Show this help.", short_name="h")
    return values


def slots(options: flags.FlagValues) -> list[dict[str, str]]:
    """Returns what is added to the environment of each trial that runs at a time.

    Args:
      options: flags of a sweep.

    Raises:
      flags.Error: a --slot is no environment, or there are more or fewer than trials.
    """
    found = []
    for text in options.slot:
        given = words("--slot", text)
        if not given or not all(re.match(r"[A-Za-z_]\w*=", word) for word in given):
            raise flags.Error(
                f"--slot={text}: write NAME=VALUE, such as "
                "--slot=CUDA_VISIBLE_DEVICES=0 --slot=CUDA_VISIBLE_DEVICES=1."
            )
        found.append(dict(word.split("=", 1) for word in given))
    if found and options.parallel not in (None, len(found)):
        raise flags.Error(
            f"--parallel={options.parallel} with {len(found)} --slot: leave --parallel "
            "out, or write a --slot for each."
        )
    return found or [{}] * (options.parallel or 1)


def seconds(name: str, text: str | None, *, allows_none: bool = False) -> float | None:
    """Returns the seconds of '90', '90s', '45m', '8h' or '1h30m'; of None, None.

    Args:
      name: the flag, for the message.
      text: its value.
      allows_none: whether it may be 0.

    Raises:
      flags.Error: it is no duration.
    """
    if text is None:
        return None
    found = durations.secs_of(text)
    # A number by itself is of seconds.
    found = durations.secs_of(f"{text}s") if found is None else found
    if found is None or not (found or allows_none):
        raise flags.Error(f"{name}={text}: write {name}=8h, 45m, 1h30m or seconds.")
    return found


def words(name: str, text: str) -> list[str]:
    """Splits a flag's value as a shell does.

    Args:
      name: the flag, for the message.
      text: its value.

    Raises:
      flags.Error: a quote is open.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise flags.Error(f"{name}={text}: {error}: close each quote.") from error
