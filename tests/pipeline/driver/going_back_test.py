"""Going back to a checkpoint in the middle of a training, as a hook asks for it."""

import os

import pytest

import pipeline as ge
from pipeline.checkpoints import checkpoint
from tests import interrupted
from tests.interrupted import TRAIN


class GoesBack(ge.Hook):
    """Asks at some steps, each time once, to go back; keeps what was called."""

    every_steps = 1

    def __init__(self, at, choose=None):
        self._at = set(at)
        self._choose = choose
        self.called = []

    def begin(self, run):
        self.called.append(f"begin {run.step}")

    def restore(self, run, state):
        self.called.append(f"restore {state}")

    def state(self):
        return len(self.called)

    def after_loop(self, run):
        if run.step in self._at:
            self._at.remove(run.step)
            run.go_back(f"it was step {run.step}", self._choose)

    def after_step(self, run):
        self.called.append(f"step {run.step}")

    def end(self, run):
        self.called.append("end")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A training of seven steps that goes straight on."""
    model_dir = tmp_path_factory.mktemp("straight")
    interrupted.make(model_dir).train(TRAIN, max_steps=7)
    return model_dir


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_goes_back_ends_as_if_he_had_not(tmp_path, straight, asynchronous):
    hook = GoesBack([3, 5, 6])
    estimator = interrupted.make(tmp_path, async_checkpoint=asynchronous)
    estimator.train(TRAIN, max_steps=7, hooks=[hook])
    assert hook.called == [
        *["begin 0", "step 1", "step 2"],
        *["begin 2", "restore 3", "step 3", "step 4"],
        *["begin 4", "restore 7", "step 5"],
        *["begin 4", "restore 7", "step 5", "step 6", "step 7", "end"],
    ]
    assert interrupted.equal(tmp_path, straight)


def test_newer_checkpoints_are_given_up(tmp_path, straight):
    chosen = interrupted.path(tmp_path, 2)
    hook = GoesBack([5], lambda: chosen)
    told = []

    class Told(ge.Hook):
        def begin(self, run):
            told.append([os.path.basename(p) for p in checkpoint.committed(tmp_path)])

    estimator = interrupted.make(tmp_path)
    estimator.train(TRAIN, max_steps=7, hooks=[hook, Told()])
    assert told == [[], ["model.ckpt-0", "model.ckpt-2"]]
    assert sorted(p.name for p in (tmp_path / "hooks").iterdir()) == [
        f"model.ckpt-{step}.json" for step in (0, 2, 4, 6, 7)
    ]
    assert interrupted.equal(tmp_path, straight)


def test_a_training_goes_back_to_a_checkpoint_and_ends_there(tmp_path):
    class Best(GoesBack):
        def restore(self, run, state):
            run.request_stop("the best")

    hook = Best([5], lambda: interrupted.path(tmp_path, 2))
    estimator = interrupted.make(tmp_path)
    estimator.train(TRAIN, max_steps=7, hooks=[hook])
    assert hook.called[-2:] == ["begin 2", "end"]
    assert estimator.latest_checkpoint() == interrupted.path(tmp_path, 2)
    assert estimator.global_step == 2
    assert len(checkpoint.committed(tmp_path)) == 2


def test_train_and_evaluate_goes_back_too(tmp_path, straight):
    hook = GoesBack([5])
    metrics, _ = ge.train_and_evaluate(
        interrupted.make(tmp_path),
        ge.TrainSpec(TRAIN, max_steps=7, hooks=[hook]),
        ge.EvalSpec(interrupted.EVAL, throttle_secs=0),
    )
    assert metrics["global_step"] == 7
    assert interrupted.equal(tmp_path, straight)
