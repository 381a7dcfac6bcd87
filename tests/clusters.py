"""Runs clusters of real processes: started, waited for within bounds, ended by pid.

    done = clusters.run("multi_worker.py", "trains", tmp_path, workers=2)
    assert [task.code for task in done] == [0, 0]
    assert done[1].result["step"] == 96

A script of `tests/scripts` gets the name of a scenario and a folder. The result of the
scenario's function is written into the folder as JSON, a file a task.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from pipeline import launch
from tests import forked, patience
from tests.forked import ROOT


@dataclasses.dataclass
class Task:
    """A process of a cluster.

    Attributes:
      name: name of the task, such as "worker 1".
      process: the process.
      log: file that gets stdout and stderr.
      result_file: file that gets the scenario's result.
      code: exit code, negative for a signal; None before `wait` has seen the end.
      ended_at: `time.monotonic()` when `wait` saw the end.
    """

    name: str
    process: subprocess.Popen | forked.Program
    log: pathlib.Path
    result_file: pathlib.Path
    code: int | None = None
    ended_at: float | None = None

    @property
    def text(self):
        return self.log.read_text(errors="replace")

    @property
    def end_of_log(self):
        return self.text[-3000:]

    @property
    def result(self):
        """The result of the scenario, once it has ended."""
        return json.loads(self.result_file.read_text())

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def wait_for(self, text, timeout=90.0):
        """Waits until the task has written `text`."""
        is_over = patience.deadline(timeout)
        while text not in self.text:
            assert self.process.poll() is None, (
                f"{self.name} ended: {self.text[-3000:]}"
            )
            assert not is_over(), f"no {text!r} in {self.text[-3000:]}"
            time.sleep(0.05)


@contextlib.contextmanager
def started(command, folder, *, workers=2, ps=0, start=forked.Program):
    """Runs a command in each task of a cluster, and kills what is left after the block.

    Args:
      command: script or module with its arguments, see `forked.Program`.
      folder: folder of the logs.
      workers: number of workers.
      ps: number of parameter servers.
      start: function that starts a process; `anew` where a test is about the start of
        Python itself.

    Yields:
      The tasks.
    """
    jobs = launch.addresses(workers=workers, ps=ps, evaluator=False)
    tasks = []
    with contextlib.ExitStack() as stack:
        for job, addresses in jobs.items():
            for index in range(len(addresses)):
                name = f"{job} {index}"
                log = pathlib.Path(folder) / f"{job}-{index}.log"
                config = launch.tf_config(jobs, job=job, index=index)
                process = start(command, {**_environment(), "TF_CONFIG": config}, log)
                stack.callback(_end, process)
                tasks.append(Task(name, process, log, log.with_suffix(".json")))
        yield tasks


def anew(command, environ, log):
    """Starts a Python of its own for a command, where `forked.Program` forks."""
    with open(log, "wb") as stream:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environ,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )


def wait(tasks, timeout=120.0):
    """Waits until all tasks have ended, and fills in their `code` and `ended_at`."""
    is_over = patience.deadline(timeout)
    while any(task.code is None for task in tasks):
        for task in tasks:
            if task.code is None and task.process.poll() is not None:
                task.code, task.ended_at = task.process.returncode, time.monotonic()
        running = [task.name for task in tasks if task.code is None]
        if running and is_over():
            logs = "\n".join(f"{task.name}: {task.end_of_log}" for task in tasks)
            raise AssertionError(f"{running} did not end in {timeout} s:\n{logs}")
        time.sleep(0.05)


def run(script, scenario, folder, *, workers=2, timeout=180.0):
    """Runs a scenario of a script in each task of a cluster, to the end.

    Args:
      script: name of a file in `tests/scripts`.
      scenario: name of the scenario.
      folder: folder of logs and results.
      workers: number of workers.
      timeout: seconds for all of it, on an idle machine.

    Returns:
      The tasks, which have ended.

    Raises:
      AssertionError: a task failed or did not end; shows the end of its log.
    """
    path = str(ROOT / "tests" / "scripts" / script)
    with started([path, scenario, str(folder)], folder, workers=workers) as tasks:
        wait(tasks, timeout)
    for task in tasks:
        assert task.code == 0, (
            f"{task.name} ended with {task.code}: {task.text[-3000:]}"
        )
    return tasks


def run_forked(script, arguments, timeout):
    """Runs a script of `tests.scripts` that forks a cluster, and ends both.

    Args:
      script: name of the script, without ".py".
      arguments: arguments of the script, the first a folder.
      timeout: seconds, on an idle machine, after which all its processes are killed.
    """
    parent = forked.Program(
        ["-m", f"tests.scripts.{script}", *arguments],
        _environment(),
        pathlib.Path(arguments[0]) / "parent.log",
        leads_group=True,
    )
    try:
        parent.wait(patience.stretched(timeout))
    finally:
        if parent.poll() is None:
            os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()


def main(scenarios):
    """Runs the scenario that the command line of a script of `tests/scripts` names.

    A forked process ends without TensorFlow's own end, which waits for the others. One
    that ended now would be missed by those that are still in their last exchange.

    Args:
      scenarios: functions of a folder, by name; the result is written as JSON.
    """
    forked.compile_fast()
    scenario, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    config = json.loads(os.environ["TF_CONFIG"])
    results = {
        (job, index): folder / f"{job}-{index}.json"
        for job, addresses in config["cluster"].items()
        for index in range(len(addresses))
    }
    result = scenarios[scenario](folder)
    mine = results[config["task"]["type"], config["task"]["index"]]
    mine.write_text(json.dumps(result))
    is_over = patience.deadline(30)
    while not (is_over() or all(path.exists() for path in results.values())):
        time.sleep(0.02)


def _environment():
    ours = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **ours, "PYTHONUNBUFFERED": "1"}


def _end(process):
    if process.poll() is None:
        process.kill()
    process.wait()
