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
again after exit code 75, and deletes the machine at the end. Ctrl-C saves and ends the training.

Exit codes: 0 if every task's is 0; else that of the first task that failed, 128 + n for signal
n; 1 if tasks did not end after the leading one; 2 if an argument is wrong.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from .contract import paths
from .launcher import data_workers, processes, tpu
from .launcher.addresses import free_addresses, tf_config
from .launcher.flags import Parser, checked, launch_parser, value_of
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
    arguments = checked(parser, options, arguments)
    if options.tpu:
        if not options.print_commands:
            return tpu.run(options, arguments)
        for name, line in tpu.commands(options, arguments).items():
            sys.stdout.write(f"# {name}\n{shlex.join(line)}\n")
        return 0
    command = [sys.executable, *arguments]
    workers = None
    if options.min_workers is not None:
        workers = NumWorkers(
            options.workers,
            options.min_workers,
            model_dir=paths.expanded(value_of("model_dir", arguments) or ""),
            retry_secs=options.retry_secs,
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
    return launch_parser(__doc__)


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
