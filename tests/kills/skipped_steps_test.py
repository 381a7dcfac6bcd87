"""Bad batches are skipped by trainings that are killed, on replicas, and by two workers."""

import os
import pathlib
import random
import signal
import time

import numpy as np
import pytest

import tasks

PROGRAM = pathlib.Path(__file__).parents[1] / "programs" / "skipped_steps.py"
NUM_BATCHES = 24
SEED = os.environ.get("KILLS_SEED", "0")


def start(folder, name, sleep=0.0):
    return tasks.Task(name, [PROGRAM, folder / name, folder / f"{name}.npy", sleep], folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns the weights of a training that was not killed."""
    folder = tmp_path_factory.mktemp("whole")
    task = start(folder, "whole")
    assert task.wait(120) == 0, task.output
    assert task.output.count("is skipped") == 6
    return np.load(folder / "whole.npy")


@pytest.mark.slow
def test_killed_trainings_end_with_the_weights_of_those_that_were_not(tmp_path, whole):
    moments = random.Random(SEED)
    for _ in range(6):
        task = start(tmp_path, "killed", 0.05)
        before = task.output.count("STEP")
        # Steps are made again after each return, so that there are more than batches.
        wanted = before + moments.randrange(1, NUM_BATCHES // 2)
        while task.output.count("STEP") < wanted and task.process.poll() is None:
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 0.1))
        task.send(signal.SIGKILL)
        task.wait()
    task = start(tmp_path, "killed")
    assert task.wait(120) == 0, task.output
    np.testing.assert_array_equal(np.load(tmp_path / "killed.npy"), whole, f"seed {SEED}")


@pytest.mark.slow
def test_two_workers_skip_what_one_process_does(tmp_path):
    """One worker's part of each bad batch has the NaN."""
    arguments = tmp_path / "group", tmp_path / "worker-{index}.npy", 0
    with tasks.workers(tmp_path, *arguments, program="skipped_steps.py") as started:
        for task in started:
            assert task.wait(180) == 0, task.output
        assert started[0].output.count("is skipped") == 6
    found = [np.load(tmp_path / f"worker-{index}.npy") for index in range(2)]
    np.testing.assert_array_equal(*found)
    assert np.isfinite(found[0]).all()
