"""Trainings that are killed ten times end with the weights of those that never were.

The moments are random: while the program starts, between steps, in saves, after a SIGTERM. Their
seed is in the error; KILLS_SEED=7 takes another one.
"""

import os
import pathlib
import random
import signal
import time

import numpy as np
import pytest

import tasks
from kills.train import NUM_STEPS, write_records

SEED = os.environ.get("KILLS_SEED", "0")
PROGRAM = pathlib.Path(__file__).parent / "train.py"
PIPELINES = (
    "shuffle",
    "nested_shuffles",
    "interleave",
    "cache",
    "zipped",
    "flat_map",
    "padded_batch",
    "repeats",
    "records",
    "numpy_function",
)


class Training:
    """One training in one or several processes, which are started again after each kill."""

    def __init__(self, pipeline, folder, num_workers=1):
        self._arguments = pipeline, folder / "model", folder / "weights-{index}.npy"
        self._folder = folder
        self._num_workers = num_workers
        self._random = random.Random(f"{SEED} {pipeline} {num_workers}")
        self.log = []

    def run(self):
        """Runs to the end; returns the weights of the first process."""
        started = self._start(NUM_STEPS)
        codes = [task.wait(120) for task in started]
        assert not any(codes), (self.log, [task.output[-3000:] for task in started])
        return np.load(self._folder / "weights-0.npy")

    def kill(self, number):
        """Starts and kills it several times."""
        for index in range(number):
            last_step = NUM_STEPS * (index + 1) // (number + 1)
            started = self._start(last_step)
            way = self._random.choice(["starting", "training", "training", "terminated"])
            self.log.append(f"{way}, at most to step {last_step}")
            victim, *others = self._random.sample(started, len(started))
            if way == "starting":
                time.sleep(self._random.uniform(0, 2))
            else:
                started[0].wait_for("STEP")
                time.sleep(self._random.uniform(0, 0.4))
            if way == "terminated":
                victim.send(signal.SIGTERM)
                time.sleep(self._random.uniform(0, 0.1))
            victim.send(signal.SIGKILL)
            time.sleep(self._random.uniform(0, 0.3) if others else 0)
            for task in others:
                task.send(signal.SIGKILL)
            codes = {task.wait(30) for task in started}
            assert codes <= {-signal.SIGKILL, 75}, (self.log, [t.output[-3000:] for t in started])

    def _start(self, last_step):
        addresses = tasks.free_addresses(self._num_workers)
        started = []
        for index in range(self._num_workers):
            environment = tasks.tf_config(addresses, index) if self._num_workers > 1 else {}
            name = f"task-{index}"
            (self._folder / f"{name}.log").unlink(missing_ok=True)
            arguments = [str(each).format(index=index) for each in (*self._arguments, last_step)]
            started.append(tasks.Task(name, [PROGRAM, *arguments], self._folder, environment))
        return started


def results(pipeline, tmp_path, num_workers, num_kills):
    """Returns the weights of a whole training and of a killed one, and the kills."""
    write_records(tmp_path)
    trainings = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        trainings.append(Training(pipeline, tmp_path / name, num_workers))
    whole, killed = trainings
    expected = whole.run()
    killed.kill(num_kills)
    return killed.run(), expected, f"seed {SEED}: {killed.log}"


@pytest.mark.oldest
def test_one_process_is_killed_twice(tmp_path):
    weights, expected, kills = results("shuffle", tmp_path, 1, 2)
    np.testing.assert_array_equal(weights, expected, kills)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_one_process(pipeline, tmp_path):
    weights, expected, kills = results(pipeline, tmp_path, 1, 10)
    np.testing.assert_array_equal(weights, expected, kills)


@pytest.mark.oldest
def test_two_workers_are_killed_once(tmp_path):
    weights, expected, kills = results("records", tmp_path, 2, 1)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6, err_msg=kills)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["interleave", "records", "numpy_function"])
def test_two_workers(pipeline, tmp_path):
    weights, expected, kills = results(pipeline, tmp_path, 2, 10)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6, err_msg=kills)
