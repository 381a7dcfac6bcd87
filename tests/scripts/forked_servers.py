"""A small cluster with a parameter server, forked, so that TensorFlow is imported once.

    forked_servers.run(out_dir, run_task)

Each task calls `run_task` with its TF_CONFIG, and has a log of its own.
"""

import json
import os
import signal
import sys
import time
import traceback

from pipeline import launch

# By task, in the parent and in those that were forked later.
PIDS = {}


def run(out, run_task, *, stopped=None):
    """Starts all tasks, the chief last, and waits for them.

    Args:
      out: folder for logs, and for `codes.json`: exit codes by task, and `secs`.
      run_task: what each does.
      stopped: a task that will not end by itself; it is killed at the end.
    """
    jobs = launch.addresses(workers=2, ps=1, evaluator=False)
    tasks = [(job, i) for job in jobs for i in range(len(jobs[job]))]
    for job, index in sorted(tasks, key=lambda task: task[0] == "chief"):
        config = launch.tf_config(jobs, job=job, index=index)
        log = out / f"{job}_{index}.log"
        PIDS[f"{job} {index}"] = _start(run_task, config, log)
    left, codes = {pid: name for name, pid in PIDS.items()}, {}
    began = time.monotonic()
    while set(left.values()) - {stopped}:
        pid, status = os.wait()
        codes[left.pop(pid)] = os.waitstatus_to_exitcode(status)
    codes["secs"] = time.monotonic() - began
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    (out / "codes.json").write_text(json.dumps(codes))


def _start(run_task, config, log):
    """Forks a process for a task; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.environ["TF_CONFIG"] = config
        run_task()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        # Without the parent's atexit functions.
        os._exit(code)
