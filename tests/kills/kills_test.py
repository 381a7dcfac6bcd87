"""Trainings that are killed several times end with the weights of those that never were.

The moments are random: while the program starts, after some step, after a SIGTERM. Their seed is
in the error; KILLS_SEED=7 takes another one, KILLS=10 kills more often. Programs also kill
themselves at each place of a save.
"""

import json
import os
import pathlib
import random
import re
import signal
import time

import numpy as np
import pytest

import tasks
from kills.train import NUM_STEPS, write_records

SEED = os.environ.get("KILLS_SEED", "0")
NUM_KILLS = int(os.environ.get("KILLS", "4"))
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
# The last worker dies at the first place, the chief at the others.
PLACES = ("position", "data", "half_index", "index", "commit", "deletion")


class Training:
    """One training in one or several processes, which are started again after each kill.

    `num_workers` is their number, or a list of the numbers of all starts.
    """

    def __init__(self, pipeline, folder, num_workers=1, program=""):
        self._arguments = pipeline, folder / "model", folder / "weights-{index}.npy"
        self._folder, self._program = folder, program
        self._num_workers = num_workers
        self._num_starts = 0
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
            # Late enough for a checkpoint that no earlier start has written.
            before = NUM_STEPS * index // (number + 1) // 5 * 5
            step = self._random.randrange(before + 15, last_step + 1, 5)
            way = self._random.choice(["starting", "training", "training", "terminated"])
            self.log.append(f"{way}, at step {step}")
            victim, *others = self._random.sample(started, len(started))
            if way == "starting":
                time.sleep(self._random.uniform(0, 2))
            else:
                started[0].wait_for(f"STEP {step}\n")
                time.sleep(self._random.uniform(0, 0.1))
            if way == "terminated":
                victim.send(signal.SIGTERM)
                time.sleep(self._random.uniform(0, 0.1))
            victim.send(signal.SIGKILL)
            time.sleep(self._random.uniform(0, 0.3) if others else 0)
            for task in others:
                task.send(signal.SIGKILL)
            codes = {task.wait(30) for task in started}
            assert codes <= {-signal.SIGKILL, 75}, (self.log, [t.output[-3000:] for t in started])
            assert "some examples may come twice" not in started[0].output

    def kill_in_save(self, place):
        """Starts it, and kills it at a place of a save."""
        self.log.append(place)
        victim = -1 if place == "position" else 0
        started = self._start(NUM_STEPS - 1, victim, KILL_AT=place)
        code = started[victim].wait(120)
        for task in started:
            task.send(signal.SIGKILL)
            task.wait(30)
        assert code == -signal.SIGKILL, (self.log, [t.output[-3000:] for t in started])

    def _start(self, last_step, victim=0, **environment_of_victim):
        number, has_config = self._num_workers, self._num_workers != 1
        if not isinstance(number, int):
            number = number[self._num_starts]
        self._num_starts += 1
        addresses = tasks.free_addresses(number)
        started = []
        for index in range(number):
            environment = tasks.tf_config(addresses, index) if has_config else {}
            environment = {**environment, "PROGRAM": self._program}
            if index == victim % number:
                environment = {**environment, **environment_of_victim}
            name = f"task-{index}"
            (self._folder / f"{name}.log").unlink(missing_ok=True)
            arguments = [str(each).format(index=index) for each in (*self._arguments, last_step)]
            started.append(tasks.Task(name, [PROGRAM, *arguments], self._folder, environment))
        return started


def results(pipeline, tmp_path, num_workers, num_kills, places=(), program=""):
    """Returns the weights of a whole training and of a killed one, and the kills.

    Args:
      pipeline: name of the input_fn.
      tmp_path: folder of both trainings.
      num_workers: number of processes.
      num_kills: number of kills at random moments.
      places: places in saves of further kills.
      program: name in PROGRAMS of train.py.
    """
    write_records(tmp_path)
    trainings = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        trainings.append(Training(pipeline, tmp_path / name, num_workers, program))
    whole, killed = trainings
    expected = whole.run()
    for place in places:
        killed.kill_in_save(place)
    killed.kill(num_kills)
    return killed.run(), expected, f"seed {SEED}: {killed.log}"


@pytest.mark.oldest
def test_one_process_is_killed_twice(tmp_path):
    weights, expected, kills = results("shuffle", tmp_path, 1, 2)
    np.testing.assert_array_equal(weights, expected, kills)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_one_process(pipeline, tmp_path):
    weights, expected, kills = results(pipeline, tmp_path, 1, NUM_KILLS)
    np.testing.assert_array_equal(weights, expected, kills)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["average", "gan"])
def test_other_programs(program, tmp_path):
    weights, expected, kills = results("nested_shuffles", tmp_path, 1, NUM_KILLS, program=program)
    np.testing.assert_array_equal(weights, expected, kills)


@pytest.mark.slow
@pytest.mark.oldest
def test_one_process_in_its_saves(tmp_path):
    weights, expected, kills = results("shuffle", tmp_path, 1, 0, PLACES)
    np.testing.assert_array_equal(weights, expected, kills)


@pytest.mark.slow
@pytest.mark.oldest
def test_two_workers_in_their_saves(tmp_path):
    weights, expected, kills = results("interleave", tmp_path, 2, 0, PLACES)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6, err_msg=kills)


@pytest.mark.slow
@pytest.mark.oldest
def test_two_workers_are_killed_once(tmp_path):
    weights, expected, kills = results("records", tmp_path, 2, 1)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6, err_msg=kills)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", ["interleave", "records", "numpy_function"])
def test_two_workers(pipeline, tmp_path):
    weights, expected, kills = results(pipeline, tmp_path, 2, NUM_KILLS)
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6, err_msg=kills)


@pytest.mark.slow
def test_the_number_of_workers_changes(tmp_path):
    """Each start has its own TF_CONFIG; KILLS_SCHEDULES=50 tries more numbers of workers."""
    (tmp_path / "whole").mkdir()
    expected = Training("numbers", tmp_path / "whole", 1, "counted").run()
    text = (tmp_path / "whole" / "task-0.log").read_text()
    counts = json.loads(re.findall("COUNTS (.*)", text)[-1])
    assert {*counts} == {76, 77} and sum(counts) == NUM_STEPS * 31  # 76.7 passes.
    moments = random.Random(SEED)
    schedules = [[3, 2, 1, 4]]
    while len(schedules) < int(os.environ.get("KILLS_SCHEDULES", "1")):
        schedules.append([moments.randint(1, 4) for _ in range(3)])
    for index, schedule in enumerate(schedules):
        folder = tmp_path / str(index)
        folder.mkdir()
        training = Training("numbers", folder, schedule, "counted")
        training.kill(len(schedule) - 1)
        weights = training.run()
        text = f"seed {SEED}: {schedule}, {training.log}"
        np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-5, err_msg=text)
        output = (folder / "task-0.log").read_text()
        assert json.loads(re.findall("COUNTS (.*)", output)[-1]) == counts, text
