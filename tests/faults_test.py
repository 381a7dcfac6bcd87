"""A training that is killed ten times ends as the one that never was.

Each of the ten is a SIGKILL to a real process, and each comes in a way of its own:
between steps, within one, in five places of a save, while it starts, and some time
after a SIGTERM. The seed of their places is told where a test fails; FAULTS_SEED=7
takes another one, and FAULTS_ROUNDS=5 kills five times in each way.
"""

import collections
import os
import random
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from pipeline.checkpoints import hook_states
from tests import fakes, faults, patience
from tests.faults import AGAIN, SAVE_STEPS, Fault
from tests.killed_trainings import BATCH_SIZE, CASES, NUM_EXAMPLES, NUM_STEPS, ROUNDS

SEED = int(os.environ.get("FAULTS_SEED", "0"))
KILLED = -signal.SIGKILL

# Where a process is killed.
INSIDE_A_SAVE = ("position", "data", "index", "commit", "saved")
FROM_OUTSIDE = ("starting", "running", "terminated")
KINDS = (*INSIDE_A_SAVE, *FROM_OUTSIDE, "step", "graph")
NUM_KILLS = ROUNDS * len(KINDS)
# What one process writes for all.
BY_THE_CHIEF = ("data", "index", "commit")


@pytest.fixture(scope="module")
def processes():
    return faults.Processes()


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def whole(case, processes, tmp_path_factory):
    """Weights of the training that was never killed, and what a hook was told."""
    folder = tmp_path_factory.mktemp(f"whole-{case}")
    with processes.attempt(case, folder) as attempt:
        codes = attempt.wait()
        assert set(codes) == {0}, attempt.log
    return result_of(folder / "model")


@pytest.fixture(scope="module")
def killed(case, processes, tmp_path_factory):
    """The same, of the one that was killed, and the steps it went on from."""
    folder = tmp_path_factory.mktemp(f"killed-{case}")
    steps = Killing(case, folder, processes).run()
    return {**result_of(folder / "model"), "steps": steps}


def result_of(model_dir):
    path = tf.train.latest_checkpoint(str(model_dir))
    return {
        "weights": fakes.weights(model_dir),
        "told": hook_states.read(path)["hooks"]["Noted"]["state"],
    }


class Killing:
    """Starts one training again and again, and kills it.

    starting, before there is a checkpoint
    inside of the first save
    all other kinds, shuffled, in one process or the other
    until all were killed; then it is left to end
    """

    def __init__(self, case, folder, processes):
        self._case = case
        self._folder = folder
        self._processes = processes
        self._random = random.Random(f"{SEED} {case}")
        self._size = CASES[case].num_workers
        self._told = []

    def run(self):
        """Returns the steps that it went on from."""
        steps, kills = [], 0
        kinds = self._kinds()
        while kills < NUM_KILLS:
            # One that was terminated may have had the time to end by itself.
            kind = kinds.popleft() if kinds else "running"
            steps.append(self._step())
            codes = self._killed(kind, steps[-1])
            kills += KILLED in codes
            assert len(steps) < 2 * NUM_KILLS, self._words("is not killed")
        assert self._step() < NUM_STEPS, self._words("has ended too soon")
        with self._processes.attempt(self._case, self._folder) as attempt:
            codes = attempt.wait()
            assert set(codes) == {0}, self._words(f"{codes}: {attempt.log}")
        return steps

    def _kinds(self):
        kinds = [*KINDS] * ROUNDS
        for first in ("starting", "index"):
            kinds.remove(first)
        self._random.shuffle(kinds)
        return collections.deque(["starting", "index", *kinds])

    def _step(self):
        """Of the newest checkpoint; 0 without one."""
        path = tf.train.latest_checkpoint(str(self._folder / "model"))
        return int(path.rpartition("-")[2]) if path else 0

    def _killed(self, kind, step):
        """Starts it once; how each process ended."""
        victim = 0 if kind in BY_THE_CHIEF else self._random.randrange(self._size)
        # Far enough for another checkpoint, if an asynchronous one is done in time.
        steps = self._random.randint(SAVE_STEPS + 1, 3 * SAVE_STEPS + 1)
        at = step + steps if len(self._told) >= 2 else 0
        self._told.append(f"{kind} of {victim} from step {step}, at {at}")
        fault = Fault("outside" if kind in FROM_OUTSIDE else kind, at)
        given = [fault if i == victim else None for i in range(self._size)]
        with self._processes.attempt(self._case, self._folder, given) as attempt:
            try:
                self._kill(kind, attempt, victim)
                return attempt.wait()
            except AssertionError as error:
                raise AssertionError(self._words(str(error))) from error

    def _kill(self, kind, attempt, victim):
        """Returns when the victim has ended, and its peer has or is killed, too."""
        process = attempt.processes[victim]
        if kind == "starting":
            time.sleep(self._random.uniform(0, 1))
            process.kill()
        elif kind in FROM_OUTSIDE:
            attempt.wait_for_begin()
            time.sleep(self._random.uniform(0, 0.3))
            if kind == "terminated":
                process.terminate()
                time.sleep(self._random.uniform(0, 0.1))
            process.kill()
        process.join(patience.stretched(60))
        assert process.exitcode in (KILLED, AGAIN), attempt.log
        # A launcher ends the others, if they do not find out before. One that waits for
        # its peer to start would do so for a minute.
        time.sleep(self._random.uniform(0, 0.2))
        if kind == "starting" or self._random.random() < 0.8:
            attempt.end()

    def _words(self, text):
        told = "\n".join(self._told)
        return f"{self._case}, FAULTS_SEED={SEED}: {text}\nkilled:\n{told}"


def test_the_weights_are_the_same(case, whole, killed):
    """Bit for bit on one replica."""
    found, expected = killed["weights"], whole["weights"]
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        if case == "one":
            np.testing.assert_array_equal(found[name], value, name)
        else:
            np.testing.assert_allclose(found[name], value, 1e-5, 1e-6, err_msg=name)


def test_the_examples_are_the_same(whole, killed):
    """In each step; and in each pass over the data it is each example once."""
    seen = value_of(whole, "seen/")
    np.testing.assert_array_equal(value_of(killed, "seen/"), seen)
    passes = seen.reshape([-1, NUM_EXAMPLES // BATCH_SIZE, NUM_EXAMPLES])
    np.testing.assert_array_equal(passes.sum(1), np.ones([len(passes), NUM_EXAMPLES]))
    assert not np.array_equal(passes[0], passes[1])


def test_the_last_step_is_the_same(whole, killed):
    for each in (whole, killed):
        assert value_of(each, "driver/000/global_step/") == NUM_STEPS


def test_a_hook_was_told_the_same(whole, killed):
    """At the same steps, over the same windows."""
    assert [told[:2] for told in whole["told"]] == [
        [step, 7] for step in range(7, NUM_STEPS + 1, 7)
    ]
    np.testing.assert_allclose(killed["told"], whole["told"], 1e-5)


def value_of(result, prefix):
    (name,) = (name for name in result["weights"] if name.startswith(prefix))
    return result["weights"][name]


def test_it_was_killed_all_along(killed):
    """From the beginning, where there is no checkpoint, and well beyond."""
    steps = killed["steps"]
    assert steps[:2] == [0, 0]
    assert steps == sorted(steps)
    # How far it gets by how many depends on how fast asynchronous saves are.
    assert len(set(steps)) > 2
    assert len(steps) >= NUM_KILLS
