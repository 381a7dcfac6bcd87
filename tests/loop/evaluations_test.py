"""Which evaluations hooks get, over a stop and a restart."""

import os
import signal

import pytest

import gin_estimator as ge
from small import checkpoints, eval_input, make, train_input


class Seen(ge.Hook):
    """Keeps the steps of evaluations in its state, and asks to stop at one."""

    def __init__(self, stop_at=None):
        self.steps, self.stop_at = [], stop_at

    def after_evaluation(self, run, name, metrics):
        self.steps.append(run.step)
        if run.step == self.stop_at:
            run.request_stop("enough")

    def state(self):
        return self.steps

    def restore(self, run, state):
        self.steps = list(state)


def seen(model_dir, stop_at, max_steps, **spec):
    hook = Seen(stop_at)
    train = ge.TrainSpec(train_input, max_steps, [hook])
    one = make(model_dir, save_checkpoints_steps=4)
    ge.train_and_evaluate(one, train, ge.EvalSpec(eval_input, **spec))
    return hook.steps


def test_hooks_get_an_evaluation_before_the_last_save_once(tmp_path):
    assert seen(tmp_path, 3, 9, every_steps=3) == [3]
    assert checkpoints(tmp_path) == [0, 3]  # Saved after its evaluation.
    assert seen(tmp_path, None, 7, every_steps=3) == [3, 6, 7]


def test_hooks_get_an_evaluation_after_the_last_save_once(tmp_path):
    assert seen(tmp_path, 4, 9) == [4]
    assert checkpoints(tmp_path) == [0, 4]  # Saved before its evaluation.
    assert seen(tmp_path, None, 7) == [4, 7]


def test_a_signal_before_the_first_step_does_not_lose_the_evaluation_at_the_start(tmp_path):
    class Signals(ge.Hook):
        def begin(self, run):
            os.kill(os.getpid(), signal.SIGTERM)

    spec = ge.EvalSpec(eval_input, at_start=True)
    with pytest.raises(ge.PreemptedError):
        ge.train_and_evaluate(make(tmp_path), ge.TrainSpec(train_input, 2, [Signals()]), spec)
    assert checkpoints(tmp_path) == [0]
    assert seen(tmp_path, None, 2, at_start=True) == [0, 2]
