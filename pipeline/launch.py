"""Runs a whole cluster on this machine: `pipeline.main`, or your program, in each task.

    python -m pipeline.launch --workers=2 -- \\
        --gin_file=gin/digits.gin --model_dir=runs/workers
    python -m pipeline.launch --workers=2 --ps=1 --evaluator -- \\
        --gin_file=gin/digits.gin --model_dir=runs/ps
    python -m pipeline.launch --workers=2 -- my_program.py --steps=1000
    python -m pipeline.launch --workers=2 --module=my_package.train -- --steps=1000

The arguments after -- go to each task, which gets a TF_CONFIG of its own, with free
ports of this machine. Without --ps the workers train by all-reduce and worker 0 leads.
With --ps there are parameter servers and a chief, which leads. Every line of a task
begins with its name. A program of your own calls `pipeline.run(main)` and sets
RunConfig(execution="multi_worker"), or "parameter_server" with --ps.

SIGTERM and SIGINT (Ctrl-C) are passed on; a second SIGINT kills at once. A task that
fails ends the others; with --max_restarts=N all are started again then, from the last
checkpoint. An evaluator, or a worker beside parameter servers, is started again alone,
while the others go on. No process is left, even if this one is killed.

Exit codes: 0 if every task's is 0; else the code of the first task that failed, 128 + n
for signal n; 1 if tasks did not end after the one that leads; 2 for arguments that are
refused; 75 for SIGTERM and 130 for Ctrl-C while no task runs.
"""

import contextlib
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder

from absl import flags

from pipeline.cluster.tf_config import OF_CLUSTERS
from pipeline.launcher import processes
from pipeline.process import exit_codes, run_log, signals

_MAIN = f"{__package__}.main"
_EXAMPLE = (
    "python -m pipeline.launch --workers=2 -- --gin_file=gin/digits.gin "
    "--model_dir=runs/digits"
)


def main(argv: Sequence[str] | None = None, *, module: str = _MAIN) -> int:
    """Runs a cluster to its end.

    Args:
      argv: name of the program, flags, '--', arguments of each task; None for this
        process's.
      module: module that each task runs where the arguments name no program.

    Returns:
      The exit code.
    """
    run_log.open_streams()
    with signals.answered():
        return _main(list(sys.argv if argv is None else argv), module)


def _main(argv: Sequence[str], module: str) -> int:
    own, arguments = _split(argv)
    options = _define_flags()
    try:
        rest = options(own)[1:]
        if options.help:
            sys.stdout.write(f"{__doc__}\n{options.get_help()}\n")
            return 0
        if rest:
            raise flags.Error(
                f"unexpected argument {rest[0]!r} before --: write --flag=value there. "
                f"For example: {_EXAMPLE}"
            )
        command = [sys.executable, *_program(arguments, options, module)]
    except flags.UnrecognizedFlagError as error:
        # absl ends with a name, or with a guess and a question mark.
        text = f"{error}" if f"{error}".endswith("?") else f"{error}."
        return exit_codes.failed(
            f"{text} Flags of {module} are written after --, and so are a Python "
            "program and its flags: -- my_program.py --steps=1000."
        )
    except flags.Error as error:
        return exit_codes.failed(exit_codes.words_of(error))
    restarts = processes.Restarts(options.max_restarts)
    while True:
        jobs = addresses(
            workers=options.workers, ps=options.ps, evaluator=options.evaluator
        )
        outcome = processes.run_once(
            _tasks(jobs, command),
            grace_secs=options.grace_secs,
            exit_secs=options.exit_secs,
            restarts=restarts,
        )
        # A refusal would be the same at another start, and after a signal nobody wants
        # one.
        over = outcome.code in (0, exit_codes.REFUSED) or outcome.signum is not None
        if over or not restarts.left:
            return outcome.code
        sys.stderr.write(
            f"[launch] {outcome.reason}; {restarts.take()}, from the last checkpoint\n"
        )


def addresses(*, workers: int, ps: int, evaluator: bool) -> dict[str, list[str]]:
    """Returns the addresses of a cluster on this machine, by job, on free ports.

    Args:
      workers: number of workers.
      ps: number of parameter servers; with any there is a chief, too.
      evaluator: whether there is an evaluator. Nobody connects to it, but the others
        see by its address that they need not evaluate.
    """
    sizes = {
        "chief": int(ps > 0),
        "worker": workers,
        "ps": ps,
        "evaluator": int(evaluator),
    }
    with contextlib.ExitStack() as taken:
        return {
            job: [f"127.0.0.1:{_free_port(taken)}" for _ in range(size)]
            for job, size in sizes.items()
            if size
        }


def tf_config(jobs: Mapping[str, Sequence[str]], *, job: str, index: int) -> str:
    """Returns the TF_CONFIG, as JSON, of one task by its job and its number in that."""
    return json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})


def _free_port(taken: contextlib.ExitStack) -> int:
    """Returns a port that Linux gives to nobody else for the next minute.

    The task listens there seconds later. Until then the system might give the port to
    any program that asks for some free one. It does not while the port has a connection
    that its server has closed (TIME_WAIT), and that keeps no server away that asks for
    the port by its number.

    Args:
      taken: keeps the port open until all ports are chosen, so that they differ.
    """
    server = taken.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = server.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        server.accept()[0].close()
    return port


def _tasks(
    jobs: Mapping[str, Sequence[str]], command: Sequence[str]
) -> list[processes.Task]:
    lead = "chief" if "chief" in jobs else "worker"
    return [
        processes.Task(
            name=f"{job} {index}",
            command=command,
            environ={
                # Else Python writes to a pipe in blocks, and lines come minutes late.
                "PYTHONUNBUFFERED": "1",
                **run_log.given(os.environ),
                "TF_CONFIG": tf_config(jobs, job=job, index=index),
            },
            leads=(job, index) == (lead, 0),
            replaceable=job == "evaluator" or (job == "worker" and "ps" in jobs),
        )
        for job, listed in jobs.items()
        for index in range(len(listed))
    ]


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments before the first '--', and those after it."""
    argv = list(argv)
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[:end], argv[end + 1 :]


def _define_flags() -> flags.FlagValues:
    """Returns a fresh set of flags: `main` may run more than once in a process."""
    values = flags.FlagValues()
    own = {"flag_values": values, "module_name": f"{__package__}.launch"}
    flags.DEFINE_integer(
        "workers",
        1,
        "Workers that train. Without --ps worker 0 leads.",
        lower_bound=1,
        **own,
    )
    flags.DEFINE_integer(
        "ps",
        0,
        "Parameter servers. With any, a chief leads, besides the workers.",
        lower_bound=0,
        **own,
    )
    flags.DEFINE_boolean(
        "evaluator", False, "An evaluator, so that the others only train.", **own
    )
    flags.DEFINE_enum(
        "execution",
        None,
        OF_CLUSTERS,
        "As after --. Default: parameter_server with --ps, else multi_worker.",
        **own,
    )
    flags.DEFINE_string(
        "module",
        None,
        f"A module of your own that each task runs, as python -m does, with what "
        f"stands after --. Default: {_MAIN}.",
        **own,
    )
    flags.DEFINE_integer(
        "max_restarts",
        0,
        "How often tasks are started again after a failure: all, to go on from the "
        "last checkpoint, or one that the others can do without for a while, alone. "
        "Not after a signal to this process.",
        lower_bound=0,
        **own,
    )
    flags.DEFINE_float(
        "grace_secs",
        30,
        "Seconds from a signal or a failure until tasks that still run are killed: "
        "enough to save.",
        lower_bound=0,
        **own,
    )
    flags.DEFINE_float(
        "exit_secs",
        300,
        "Seconds that the others have to end after the task that leads, the evaluator "
        "with its last evaluations included.",
        lower_bound=0,
        **own,
    )
    flags.DEFINE_boolean("help", False, "Show this help.", short_name="h", **own)
    return values


def _program(
    arguments: Sequence[str], options: flags.FlagValues, module: str
) -> list[str]:
    """Returns Python's arguments in each task: a module or a file, and its arguments.

    Raises:
      flags.Error: there is no such file, or an argument is missing or wrong.
    """
    if options.module:
        _check_module(options.module)
        return ["-m", options.module, *arguments]
    if not arguments or arguments[0].startswith("-"):
        return ["-m", module, *_for_main(arguments, options)]
    if not os.path.isfile(arguments[0]):
        raise flags.Error(
            f"{arguments[0]!r} after -- is no file: write the flags of {_MAIN} there, "
            "or a Python program with its arguments, my_program.py --steps=1000, or "
            "--module=my_package.my_module before --."
        )
    return list(arguments)


def _check_module(name: str) -> None:
    """Checks that `python -m name` finds what to run; imports nothing of it."""
    advice = (
        "write it as python -m takes it, --module=my_package.my_module, and start it "
        "in the folder of my_package; a file is written after --: -- my_program.py."
    )
    places = None
    for end, _ in enumerate(parts := name.split(".")):
        part = ".".join(parts[: end + 1])
        found = _found(part, places)
        if found is None:
            raise flags.Error(f"--module={name}: there is no module {part!r}: {advice}")
        places = found.submodule_search_locations or ()
    if places and _found(f"{name}.__main__", places) is None:
        raise flags.Error(f"--module={name} is a package without __main__.py: {advice}")


def _found(name: str, places: Sequence[str] | None) -> ModuleSpec | None:
    """Finds a module without importing it.

    Args:
      name: full name of the module.
      places: folders of the package that it belongs to; None at the top.

    Returns:
      Its spec; None where there is no such module.
    """
    if places is not None:
        return PathFinder.find_spec(name, list(places))
    try:
        return importlib.util.find_spec(name)
    except ValueError:  # It is empty, or belongs to no file.
        return None


def _for_main(arguments: Sequence[str], options: flags.FlagValues) -> list[str]:
    """Returns the arguments after --, checked, with --execution.

    Raises:
      flags.Error: --model_dir is missing, or --execution is not this cluster's.
    """
    if not arguments:
        raise flags.Error(
            f"nothing stands after --: write the flags of pipeline.main there, or a "
            f"Python program with its arguments. For example: {_EXAMPLE}"
        )
    if not _value_of("model_dir", arguments):
        raise flags.Error(
            "no --model_dir after --: add --model_dir=runs/1. Without it each task "
            "would make a temporary one of its own."
        )
    needed = OF_CLUSTERS[options.ps > 0]
    given = _value_of("execution", arguments)
    for execution in (options.execution, given):
        if execution not in (None, needed):
            raise flags.Error(
                f"--execution={execution} with --workers={options.workers} "
                f"--ps={options.ps}: this cluster is for --execution={needed}, which "
                "need not be written. "
                + (
                    "Leave out --ps for multi_worker."
                    if options.ps
                    else "Add --ps=1 for parameter_server; single_host and tpu are "
                    "for pipeline.main alone."
                )
            )
    return [*arguments, *([] if given else [f"--execution={needed}"])]


def _value_of(name: str, arguments: Sequence[str]) -> str | None:
    """Returns a flag's last value, of --flag=value or --flag value; None without it."""
    value = None
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, text = argument.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            value = text if equals else following
    return value


if __name__ == "__main__":
    sys.exit(main())
