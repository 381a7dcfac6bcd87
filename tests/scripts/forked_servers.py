"""A small cluster with parameter servers, forked, so that TensorFlow is imported once.

    forked_servers.run(out_dir, run_task)

Each task calls `run_task` with its TF_CONFIG, and has a log of its own.
"""

import json
import os
import signal
import time

from pipeline import launch
from tests import forked

CHIEF = "chief 0"


def run(out, run_task, *, ps=1, stopped=None, replaced=None):
    """Starts all tasks, the chief last, and waits for them.

    Args:
      out: folder for logs, and for `codes.json`: exit codes by task, how often one was
        `restarted`, and how many `secs_after_chief` the last one ended.
      run_task: what each does.
      ps: how many parameter servers.
      stopped: a task that will not end by itself; it is killed at the end.
      replaced: a task that is started again where it ends before the chief.
    """
    jobs = launch.addresses(workers=2, ps=ps, evaluator=False)
    names = [f"{job} {index}" for job in jobs for index in range(len(jobs[job]))]
    pids, codes, ended_at, restarted = {}, {}, {}, 0

    def start(name):
        job, index = name.split()
        config = launch.tf_config(jobs, job=job, index=int(index))
        pids[name] = _start(run_task, config, out / f"{job}_{index}.log")

    for name in sorted(names, key=lambda name: name == CHIEF):
        # The chief itself may have to know.
        if name == CHIEF:
            _write(out / "pids.json", pids)
        start(name)
    while set(pids) - set(codes) - {stopped}:
        pid, status = os.wait()
        name = next(name for name in pids if pids[name] == pid)
        if name == replaced and CHIEF not in codes:
            restarted += 1
            start(name)
            _write(out / "pids.json", pids)
            continue
        codes[name] = os.waitstatus_to_exitcode(status)
        ended_at[name] = time.monotonic()
    for name in set(pids) - set(codes):
        os.kill(pids[name], signal.SIGKILL)
    late = max(ended_at.values()) - ended_at.get(CHIEF, 0)
    found = {"codes": codes, "restarted": restarted, "secs_after_chief": late}
    _write(out / "codes.json", found)


def pid_of(out, task):
    """Of a task other than the chief, or this process' own."""
    return json.loads((out / "pids.json").read_text()).get(task, os.getpid())


def _write(path, values):
    path.with_suffix(".part").write_text(json.dumps(values))
    path.with_suffix(".part").rename(path)


def _start(run_task, config, log):
    """Forks a process for a task; its pid."""

    def work():
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.environ["TF_CONFIG"] = config
        forked.compile_fast()
        run_task()

    return forked.fork(work)
