"""A training that goes back starts again as after a kill."""

import os
import signal

import pytest

import gin_estimator as ge
from small import checkpoints, make, train_input


class Refuses(ge.Hook):
    """Refuses a step once, and records its calls."""

    every_steps = 2

    def __init__(self, step):
        self.step, self.calls, self.count = step, [], 0

    def begin(self, run):
        self.calls.append(f"begin {run.step}")

    def restore(self, run, state):
        self.count = state
        self.calls.append(f"restore {run.step}: {state}")

    def state(self):
        return self.count

    def after_loop(self, run):
        if self.step is not None and run.step >= self.step:
            run.skip_step(self.step, "refused")
            self.step = None

    def after_step(self, run):
        self.count += 1
        self.calls.append(f"after_step {run.step}")

    def close(self):
        self.calls.append("close")


def test_hooks_begin_again_with_their_saved_state(tmp_path):
    hook = Refuses(5)
    one = make(tmp_path, save_checkpoints_steps=2, max_loop_secs=600)
    one.train(train_input, [hook], max_steps=6)
    assert hook.calls == [
        *("begin 0", "after_step 2", "after_step 4", "close"),
        *("begin 4", "restore 4: 2", "after_step 6", "close"),
    ]
    assert one.last_run.step == 6 and checkpoints(tmp_path) == [0, 2, 4, 6]
    assert [path.name for path in tmp_path.glob("bad_batches/*")] == ["step-5"]


def test_a_signal_before_a_rewind_is_not_lost(tmp_path):
    class Signals(Refuses):
        def after_loop(self, run):
            if self.step is not None and run.step >= self.step:
                os.kill(os.getpid(), signal.SIGTERM)
            super().after_loop(run)

    one = make(tmp_path, save_checkpoints_steps=2, max_loop_secs=600)
    with pytest.raises(ge.PreemptedError, match="stopped by SIGTERM at step 4"):
        one.train(train_input, [Signals(5)], max_steps=8)
    assert checkpoints(tmp_path) == [0, 2, 4]


def test_a_hook_that_refuses_each_step_ends_the_training_with_its_reasons(tmp_path):
    class Always(Refuses):
        def after_loop(self, run):
            if run.step >= 3:
                run.skip_step(3, "refused")

    one = make(tmp_path, save_checkpoints_steps=2, max_skipped_steps=2)
    with pytest.raises(
        ge.NanLossDuringTrainingError, match="more than max_skipped_steps=2"
    ) as error:
        one.train(train_input, [Always(3)], max_steps=8)
    assert error.value.__context__ is None  # Not a Rewind.
