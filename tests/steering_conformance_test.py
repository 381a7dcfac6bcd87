"""Each stop, keep and average on each strategy: killed and resumed = not killed.

What a case comes to is known by itself; so a matrix that agrees on nothing happening is
found out, too. That of parameter servers is in `parameter_server_test`, whose cluster
it shares.
"""

import signal

import pytest
import tensorflow as tf

from pipeline.roles import evaluation_along
from tests import clusters, steered

# Nothing to compile for a few steps, where that is not slower yet.
ALONE, BESIDE = {"run_eagerly": True}, {"run_eagerly": True, "beside": True}
MIRRORED = {"devices": ("CPU:0", "CPU:1")}
# The step at which each ends, and the checkpoints that it leaves.
LEAVES = {
    "higher": (6, [4, 6]),
    "lower": (8, [6, 8]),
    "no_increase": (10, [8, 10]),
    "no_decrease": (10, [8, 10]),
    "restore_best": (8, [8]),
    "asked": (6, [4, 6]),
    "seconds": (9, [8, 9]),
    "examples": (8, [6, 8]),
    "epochs": (12, [10, 12]),
    "plateau": (12, [10, 12]),
    "keep_best": (12, [6, 8, 10, 12]),
    "keep_steps": (12, [3, 7, 10, 12]),
    "exponential": (12, [10, 12]),
    "plain": (12, [10, 12]),
    "every_steps": (12, [10, 12]),
    "left_out": (12, [10, 12]),
    "guarded": (12, [10, 12]),
    "lower+keep_steps": (8, [3, 7, 8]),
    "no_increase+plain": (10, [8, 10]),
    "no_decrease+exponential": (10, [8, 10]),
    "left_out+examples": (8, [6, 8]),
    "guarded+exponential+keep_best": (12, [6, 8, 10, 12]),
    "epochs+plateau+keep_best": (12, [6, 8, 10, 12]),
    "left_out+plain+examples": (8, [6, 8]),
    "seconds+every_steps": (9, [8, 9]),
    # The best one is that of step 7, which is there because it is to stay.
    "restore_best+exponential+keep_steps": (7, [3, 7]),
    "asked+exponential+keep_best": (6, [2, 4, 6]),
    "restore_best+plateau+plain": (8, [8]),
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Looks for evaluations at each stop, and compiles fast what runs few steps."""
    monkeypatch.setattr(evaluation_along, "_LOOK_SECS", 0.0)
    # The order of the data goes by it, also where other tests have set another.
    tf.random.set_seed(steered.SEED)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def check(outcome, case):
    """Checks that what the case is about did happen."""
    assert (outcome["end"][0], outcome["saved"]) == LEAVES[case]
    assert len(set(outcome["end"][2])) == len(outcome["end"][2])
    left_out = ["step-3", "step-7"] if {"left_out", "guarded"} & names(case) else []
    assert list(outcome["left_out"]) == left_out
    weights = outcome["weights"]
    (rate,) = [weights[key] for key in weights if key.startswith("optimizer/001/")]
    assert rate == (0.5 if "plateau" in names(case) and outcome["end"][0] > 10 else 1)
    has_average = any("_steps/" in key for key in weights)
    assert has_average == bool({"exponential", "plain"} & names(case))
    assert bool(outcome["best"]) == bool({"keep_best", "restore_best"} & names(case))


def names(case):
    return set(case.split("+"))


@pytest.mark.parametrize(
    ("place", "case"),
    [
        pytest.param(place, case, id=f"{name}-{case}")
        for name, place, cases in (
            ("default", ALONE, steered.CASES),
            ("beside_an_evaluator", BESIDE, steered.BESIDE),
            ("mirrored_2", MIRRORED, steered.TOGETHER),
        )
        for case in cases
    ],
)
def test_killed_and_resumed_is_not_killed(place, case, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    steered.train(whole, case, kill=steered.leaving(killed), **place)
    steered.train(killed, case, **place)
    outcome = steered.outcome(whole)
    assert steered.outcome(killed) == outcome
    check(outcome, case)


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Trainings of two workers, killed and gone on with by two others."""
    folder = tmp_path_factory.mktemp("workers")
    script = "steered_workers.py"
    command = [str(clusters.ROOT / "tests" / "scripts" / script), "killed", str(folder)]
    with clusters.started(command, folder) as tasks:
        clusters.wait(tasks)
    assert -signal.SIGKILL in [task.code for task in tasks], tasks[0].end_of_log
    log = clusters.run(script, "resumed", folder)[0].text
    return folder, log


@pytest.mark.parametrize(
    ("place", "case"),
    [
        *(pytest.param(ALONE, case, id=case) for case in steered.TOGETHER),
        *(pytest.param(BESIDE, case, id=case) for case in steered.TOGETHER_BESIDE),
    ],
)
def test_killed_and_resumed_on_two_workers_is_not_killed(
    workers, place, case, tmp_path
):
    """And comes to what it does in one process, to the last bit of the weights."""
    folder, log = workers
    assert f"resumed from step 4 of {folder / case}/" in log
    steered.train(tmp_path, case, **place)
    outcome = steered.outcome(tmp_path)
    assert steered.outcome(folder / case) == outcome
    check(outcome, case)
