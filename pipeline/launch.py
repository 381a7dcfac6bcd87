# SPDX-License-Identifier: Apache-2.0
"""Starts a cluster on this machine, or a TPU of Google Cloud.

    gin-estimator launch --workers=2 -- --gin_file=gin/digits.gin --model_dir=runs/two
    gin-estimator launch --workers=2 --ps=1 --evaluator -- --gin_file=gin/digits.gin ...
    gin-estimator launch --workers=4 --min_workers=2 -- --gin_file=gin/digits.gin ...
    gin-estimator launch --workers=2 -- my_program.py --steps=1000
    gin-estimator launch --workers=2 --module=my_package.train -- --steps=1000
    gin-estimator launch --tpu=v5litepod-8 --zone=Z --bucket=gs://B -- --gin_file=gin/digits.gin

Each task gets the arguments after -- and its own TF_CONFIG, with free ports. Without --ps the
workers train in lockstep and worker 0 leads; with --ps there is a chief, which leads. A program
of the user sets RunConfig(execution="multi_worker"), or "parameter_server", and calls ge.run.

SIGTERM, Ctrl-C and SIGHUP are passed on to the tasks; a second Ctrl-C kills them. A task that
fails ends the others; with --max_restarts=N all are started again from the last checkpoint. An
evaluator, or a worker next to parameter servers, is started again alone. No process is left.

With --min_workers=N a failure starts all workers again; if they fail before the next checkpoint,
one worker fewer, at least N. --retry_secs and a checkpoint later the tasks save, and all workers
are started. These restarts do not count.

With --tpu, gcloud creates the machine, copies the files of `git ls-files`, installs them, trains,
and deletes the machine at the end, also after Ctrl-C. Exit code 75 and preemptions start again.

Exit codes: 0 if every task's is 0; else that of the first task that failed, 128 + n for signal
n; 1 if tasks did not end after the leading one; 2 if an argument is wrong.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from .contract import paths
from .launcher import data_workers, processes, tpu
from .launcher.addresses import free_addresses, tf_config
from .launcher.flags import COMMAND, MAIN, Parser, add_tpu, check_tpu, seconds, value_of, whole
from .launcher.num_workers import NumWorkers
from .run import log


def main(argv: Sequence[str] | None = None) -> int:
    """Starts the tasks and waits for them.

    Args:
      argv: name of the program, the launcher's flags, `--`, the flags of each task; None for
        those of this process.

    Returns:
      The exit code.
    """
    log.open_standard_streams()
    parser = _parser()
    options, arguments = parser.split(argv)
    arguments = check_tpu(parser, options, arguments)
    if options.tpu:
        if not options.print_commands:
            return tpu.run(options, arguments)
        for name, line in tpu.commands(options, arguments).items():
            sys.stdout.write(f"# {name}\n{shlex.join(line)}\n")
        return 0
    command = [sys.executable, *_program(parser, options, arguments)]
    workers = _num_workers(parser, options, arguments)
    if options.data_workers and (options.workers > 1 or options.ps):
        parser.error(
            f"--data_workers is {options.data_workers} with --workers={options.workers} "
            f"--ps={options.ps}: expected one process that trains"
        )
    sizes = {"ps": options.ps, "evaluator": options.evaluator}
    with data_workers.running(options.data_workers) as service:
        return processes.run(
            lambda: _tasks(
                free_addresses(workers=workers.now if workers else options.workers, **sizes),
                command,
                service,
            ),
            grace_secs=options.grace_secs,
            exit_secs=options.exit_secs,
            max_restarts=options.max_restarts or 0,
            workers=workers,
        )


def _parser() -> Parser:
    example = "--workers=2 -- --gin_file=gin/digits.gin --model_dir=m"
    parser = Parser("launch", __doc__, example)
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
    add_tpu(parser)
    return parser


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


def _num_workers(
    parser: Parser, options: argparse.Namespace, arguments: Sequence[str]
) -> NumWorkers | None:
    """Returns how to change the number of workers; None without --min_workers."""
    least, model_dir = options.min_workers, value_of("model_dir", arguments)
    if least is None:
        return None
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
    return NumWorkers(
        options.workers, least, model_dir=paths.expanded(model_dir), retry_secs=options.retry_secs
    )


def _tasks(
    jobs: Mapping[str, Sequence[str]], command: Sequence[str], service: Mapping[str, str]
) -> list[processes.Task]:
    leader = "chief" if "chief" in jobs else "worker"
    return [
        processes.Task(
            name=f"{job} {index}",
            command=command,
            environment={
                "PYTHONUNBUFFERED": "1",  # Lines appear when they are written.
                **os.environ,
                **service,
                "TF_CONFIG": tf_config(jobs, job, index),
            },
            is_chief=(job, index) == (leader, 0),
            replaceable=job == "evaluator" or (job == "worker" and "ps" in jobs),
        )
        for job, addresses in jobs.items()
        for index in range(len(addresses))
    ]


if __name__ == "__main__":
    sys.exit(main())
