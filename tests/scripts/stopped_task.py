"""A cluster with a parameter server of which one task is stopped, not killed.

    python -m tests.scripts.stopped_task out_dir TASK

The tasks are forked, so that TensorFlow is imported once. The chief stops the task, or
itself, after a step. The parent writes the others' exit codes to out_dir/codes.json,
and ends the one that is stopped.
"""

import functools
import json
import os
import pathlib
import signal
import sys
import time
import traceback

import pipeline as ge
from pipeline import launch, parameter_server
from pipeline.rendezvous import PeerLostError
from tests import fakes

OUT, VICTIM = pathlib.Path(sys.argv[1]), sys.argv[2]
LOST_AFTER_SECS = 3
STEP = 10
PIDS = {}
ROW = functools.partial(
    parameter_server.parameter_server,
    steps_per_closure=5,
    lost_after_secs=LOST_AFTER_SECS,
    start_timeout_secs=120,
)


class StopAt(ge.Hook):
    """Stops the victim after a step."""

    def next_step(self, step):
        return STEP if step < STEP else None

    def after_step(self, run):
        del run
        sys.stderr.write(f"stopping {VICTIM}\n")
        os.kill(PIDS.get(VICTIM, os.getpid()), signal.SIGSTOP)


def run_task():
    """Trains, or serves the chief."""
    x, y = fakes.classification_data(rows=160)
    estimator = fakes.make_estimator(
        OUT / "model", execution="parameter_server", train_distribute=ROW
    )
    input_fn = fakes.make_input_fn(x, y, batch_size=8, change=lambda d: d.repeat())
    try:
        estimator.train(input_fn, max_steps=100_000, hooks=[StopAt()])
    except PeerLostError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(75)


def start(jobs, job, index):
    """Forks a process for a task, with a log of its own; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(OUT / f"{job}_{index}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ["TF_CONFIG"] = launch.tf_config(jobs, job=job, index=index)
        run_task()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        # Without the parent's atexit functions.
        os._exit(code)


def main():
    """Starts all tasks, the chief last, which knows the others' pids."""
    jobs = launch.addresses(workers=2, ps=1, evaluator=False)
    tasks = [(job, i) for job in jobs for i in range(len(jobs[job]))]
    for job, index in sorted(tasks, key=lambda task: task[0] == "chief"):
        PIDS[f"{job} {index}"] = start(jobs, job, index)
    left, codes = {pid: name for name, pid in PIDS.items()}, {}
    began = time.monotonic()
    while set(left.values()) - {VICTIM}:
        pid, status = os.wait()
        codes[left.pop(pid)] = os.waitstatus_to_exitcode(status)
    codes["secs"] = time.monotonic() - began
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    (OUT / "codes.json").write_text(json.dumps(codes))


if __name__ == "__main__":
    main()
