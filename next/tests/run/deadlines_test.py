"""A signal is answered in about five seconds, also where steps take a second."""

import signal
import time

import pytest

from tasks import PROGRAMS, Task, workers

LOCAL = "execution='single_host'"
# Calls take about 5 s. The rest is for noise, and for a machine that does other work as well.
LIMIT_SECS = 8


def ended_after(*tasks):
    """Sends SIGTERM to the first task; returns the seconds in which all end with code 75."""
    began = time.monotonic()
    tasks[0].send(signal.SIGTERM)
    assert [task.wait(60) for task in tasks] == [75] * len(tasks), tasks[0].output
    secs = time.monotonic() - began
    print(f"ended {secs:.1f} s after SIGTERM")
    return secs


def test_in_the_first_steps(tmp_path):
    task = Task("task", [PROGRAMS / "slow.py", tmp_path / "model", "train", LOCAL], tmp_path)
    task.wait_for("STEP 2")
    assert ended_after(task) < LIMIT_SECS
    assert "stopped by SIGTERM at step" in task.output
    assert list((tmp_path / "model").glob("model.ckpt-*.index"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode, step",
    [
        ("train", "STEP 25"),
        ("evaluate", "STEP 7"),
        ("evaluate_alone", "STEP 7"),
        ("predict", "STEP 3"),
    ],
)
def test_in_the_middle(tmp_path, mode, step):
    task = Task("task", [PROGRAMS / "slow.py", tmp_path / "model", mode, LOCAL], tmp_path)
    task.wait_for(step)
    assert ended_after(task) < LIMIT_SECS


@pytest.mark.slow
@pytest.mark.parametrize("mode, step", [("train", 2), ("train", 25), ("evaluate", 7)])
def test_two_workers(tmp_path, mode, step):
    options = [tmp_path / "model", mode, "execution='multi_worker'"]
    with workers(tmp_path, *options, program="slow.py") as tasks:
        tasks[1].wait_for(f"STEP {step}")
        assert ended_after(tasks[1], tasks[0]) < LIMIT_SECS
