"""Measures the cost of several processes: clusters on this machine, in two ways each.

    python -m benchmarks.scaling [--json]

Two workers in step (`benchmarks.multi_worker`) run Estimator.train against the loop of
TensorFlow's tutorial, once where a step is mostly dispatch and once where it is mostly
the all-reduce. A chief, two workers and a parameter server
(`benchmarks.parameter_server`) run a hundred steps a closure against one. Both ways run
in the same processes, in alternation, and must have done the same work.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

from benchmarks import pairs
from pipeline import launch
from pipeline.launcher import processes

_CLUSTERS = {
    "multi_worker_2": ("benchmarks.multi_worker", {"workers": 2, "ps": 0}),
    "parameter_server": ("benchmarks.parameter_server", {"workers": 2, "ps": 1}),
}
_GRACE_SECS = 10
_EXIT_SECS = 30
_LOG_CHARS = 4_000


def main() -> None:
    """Prints the tables, and with --json the median ratios as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="ratios as the last line")
    as_json = parser.parse_args().json
    ratios = {}
    for name, (module, sizes) in _CLUSTERS.items():
        results = run_cluster(module, **sizes)
        pairs.say(results["tables"], None)
        ratios[name] = results["ratios"]
    pairs.say([], ratios if as_json else None)


def run_cluster(
    module: str, *, workers: int, ps: int, arguments: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Runs a module as each task of a cluster on this machine.

    Args:
      module: name of the module. It gets a directory, in which the task that leads
        writes results.json.
      workers: number of workers.
      ps: number of parameter servers.
      arguments: arguments of the module after the directory.

    Returns:
      The results that the leading task wrote.

    Raises:
      RuntimeError: a task failed; the text has the end of each log.
    """
    jobs = launch.addresses(workers=workers, ps=ps, evaluator=False)
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory)
        command = [sys.executable, "-m", module, directory, *arguments]
        tasks = [
            processes.Task(
                name=f"{job} {index}",
                # The shell sends TensorFlow's log to a file, its first argument.
                command=["sh", "-c", 'exec "$@" > "$0" 2>&1', log, *command],
                environ={
                    **os.environ,
                    "TF_CONFIG": launch.tf_config(jobs, job=job, index=index),
                },
                leads=(job, index) == (next(iter(jobs)), 0),
            )
            for job, listed in jobs.items()
            for index in range(len(listed))
            for log in [str(out / f"{job}_{index}.log")]
        ]
        outcome = processes.run_once(
            tasks, grace_secs=_GRACE_SECS, exit_secs=_EXIT_SECS
        )
        if outcome.code:
            logs = {path.stem: _end_of(path) for path in sorted(out.glob("*.log"))}
            texts = [f"{name}:\n{text}" for name, text in logs.items()]
            raise RuntimeError("\n".join([outcome.reason, *texts]))
        return json.loads((out / "results.json").read_text())


def _end_of(log: pathlib.Path) -> str:
    return log.read_text(errors="replace")[-_LOG_CHARS:]


if __name__ == "__main__":
    main()
