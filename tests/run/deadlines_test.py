"""A signal is answered in about five seconds, where a step takes one."""

import itertools
import re
import signal
import time

import pytest

from tasks import PROGRAMS, Task, workers

LOCAL = "execution='single_host'"
# Calls end after about five seconds, with the step that is running then.
MOST_SECS = 8


def secs_after_sigterm(*tasks):
    """Sends SIGTERM to the first task, waits for all; returns the seconds to the last step.

    On a machine with other work, which lengthens the steps, they are divided by the longest one.
    """
    began = time.monotonic()
    tasks[0].send(signal.SIGTERM)
    assert [task.wait(120) for task in tasks] == [75] * len(tasks), tasks[0].output
    times = [float(each) for each in re.findall(r"STEP \d+ (\S+)", tasks[0].output)]
    longest = max(b - a for a, b in itertools.pairwise(times))
    return (times[-1] - began) / max(1.0, longest)


@pytest.mark.slow
def test_in_the_first_steps(tmp_path):
    task = Task("task", [PROGRAMS / "slow.py", tmp_path / "model", "train", LOCAL], tmp_path)
    task.wait_for("STEP 2 ")
    assert secs_after_sigterm(task) < MOST_SECS
    assert "stopped by SIGTERM at step" in task.output
    assert list((tmp_path / "model").glob("model.ckpt-*.index"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode, step",
    [
        ("train", "STEP 25 "),
        ("evaluate", "STEP 7 "),
        ("evaluate_alone", "STEP 7 "),
        ("predict", "STEP 3 "),
    ],
)
def test_in_the_middle(tmp_path, mode, step):
    task = Task("task", [PROGRAMS / "slow.py", tmp_path / "model", mode, LOCAL], tmp_path)
    task.wait_for(step)
    assert secs_after_sigterm(task) < MOST_SECS


@pytest.mark.slow
@pytest.mark.parametrize("mode, step", [("train", 2), ("train", 25), ("evaluate", 7)])
def test_two_workers(tmp_path, mode, step):
    options = [tmp_path / "model", mode, "execution='multi_worker'"]
    with workers(tmp_path, *options, program="slow.py") as tasks:
        tasks[1].wait_for(f"STEP {step} ")
        assert secs_after_sigterm(tasks[1], tasks[0]) < MOST_SECS


@pytest.mark.slow
def test_two_workers_whose_steps_become_slow(tmp_path):
    options = [tmp_path / "model", "slow_down", "execution='multi_worker'", "max_loop_secs=0.5"]
    with workers(tmp_path, *options, program="slow.py") as tasks:
        tasks[0].wait_for("STEP 2 ")
        before = tasks[0].output.count("STEP")
        tasks[0].send(signal.SIGTERM)
        assert [task.wait(120) for task in tasks] == [75, 75], tasks[0].output
    # Of the call: those of half a second, and those until the processes agree; not all fifty.
    assert tasks[0].output.count("STEP") - before < 25
