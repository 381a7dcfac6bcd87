"""Clusters of real processes: started, waited for within bounds, ended by pid.

    done = clusters.run("multi_worker.py", "trains", tmp_path, workers=2)
    assert [task.code for task in done] == [0, 0]
    assert done[1].result["step"] == 96

A script of `tests/scripts` gets the name of a scenario and a folder; what its function
returns is written there as JSON.
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
      name: such as "worker 1".
      process: itself.
      log: what it wrote to stdout and stderr.
      code: how it ended, negative for a signal; None while it runs.
      ended_at: `time.monotonic()` then.
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
        """What the scenario returned, once it has ended."""
        return json.loads(self.result_file.read_text())

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def wait_for(self, text, timeout=90.0):
        """Returns once it has written `text`."""
        is_over = patience.deadline(timeout)
        while text not in self.text:
            assert self.process.poll() is None, (
                f"{self.name} ended: {self.text[-3000:]}"
            )
            assert not is_over(), f"no {text!r} in {self.text[-3000:]}"
            time.sleep(0.05)


@contextlib.contextmanager
def started(command, folder, *, workers=2, ps=0, start=forked.Program):
    """The tasks of a cluster that runs `command`, killed where they still run.

    Args:
      command: see `forked.Program`.
      folder: for logs.
      workers: how many.
      ps: how many parameter servers.
      start: `anew` where a process has to come from Python's own start on.
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
    """Starts Python for a command of `forked.Program`."""
    with open(log, "wb") as stream:
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environ,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )


def wait(tasks, timeout=120.0):
    """Waits until all have ended, each with its `code` and `ended_at`."""
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
    """Runs a script of `tests.scripts` that forks a cluster, which ends with it.

    Args:
      script: its name; its first argument is a folder.
      arguments: of the script.
      timeout: seconds after which all its processes are killed.
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
    """What a script of `tests/scripts` does when it is run.

    Args:
      scenarios: function of the folder by name; what it returns is written as JSON.
    """
    scenario, folder = sys.argv[1:]
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    result = scenarios[scenario](pathlib.Path(folder))
    path = pathlib.Path(folder) / f"{task['type']}-{task['index']}.json"
    path.write_text(json.dumps(result))


def _environment():
    ours = {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **ours, "PYTHONUNBUFFERED": "1"}


def _end(process):
    if process.poll() is None:
        process.kill()
    process.wait()
