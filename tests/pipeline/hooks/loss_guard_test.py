"""LossGuard: each step's own loss, a bound, and spikes."""

import logging

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.hooks import loss_guard
from tests import fakes
from tests.pipeline.rescue import restoring_test as rescue

SPIKE = {"spike": 30.0, "window": 5}


def spiked(numbers, rows=rescue.ROWS):
    """Returns rows of which the last one of some batches is far away."""
    return rescue.poisoned(numbers, size=rows, value=1e4)


def make(model_dir, **config):
    return rescue.make(model_dir, model_fn=fakes.far_fn, on_nan="stop", **config)


class Losses(ge.Hook):
    """Keeps each step's loss, by its step."""

    wants_losses = True

    def begin(self, run):
        self.by_step = {}

    def after_loop(self, run):
        first = run.step - len(run.losses) + 1
        self.by_step.update(enumerate(run.losses.tolist(), first))


class EachStep(ge.Hook):
    every_steps = 1

    def begin(self, run):
        self.by_step = {}

    def after_step(self, run):
        self.by_step[run.step] = run.report.loss


@pytest.mark.parametrize(
    "options",
    [
        {"save_summary_steps": 7, "log_norms": True},
        {"run_eagerly": True},
        {
            "gradient_accumulation_steps": 2,
            "train_distribute": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
        },
    ],
    ids=["summaries", "eager", "two replicas, two micro-batches"],
)
def test_each_loss_is_that_of_a_window_of_one_step(tmp_path, options):
    kept, seen = Losses(), EachStep()
    for name, hook in (("kept", kept), ("seen", seen)):
        estimator = make(tmp_path / name, **options)
        # It ends with the pass, before a boundary, and then after a step of another.
        for steps in (13, 1):
            data = rescue.data(rescue.X[: 13 * 4])
            estimator.train(data, steps=steps, hooks=[hook])
    assert list(kept.by_step) == list(seen.by_step)
    expected = list(seen.by_step.values())
    np.testing.assert_allclose(list(kept.by_step.values()), expected, rtol=1e-6)
    assert not rescue.differing(tmp_path / "kept", tmp_path / "seen")


def test_batches_of_spikes_are_left_out(tmp_path):
    """Where two come in a row, the batch before them is held to be at fault, too."""
    bad = spiked([8, 20, 21])

    def train(name, hooks, without=()):
        estimator = make(tmp_path / name)
        estimator.train(rescue.data(bad, without=without), hooks=hooks, max_steps=40)

    train("ours", [ge.LossGuard(**SPIKE)])
    assert rescue.named(tmp_path / "ours") == [8, 19, 20, 21]
    train("theirs", [], without=[8, 19, 20, 21])
    assert not rescue.differing(tmp_path / "ours", tmp_path / "theirs")


def test_killed_and_resumed_is_not_killed(tmp_path):
    """The window of the median is in the checkpoint."""
    bad, found = spiked([23]), []
    for name, kills in (("straight", []), ("killed", [22])):
        for step in kills:
            with pytest.raises(InterruptedError):
                make(tmp_path / name).train(
                    rescue.data(bad), hooks=[ge.LossGuard(**SPIKE), rescue.Dies(step)]
                )
        guard = ge.LossGuard(**SPIKE)
        make(tmp_path / name).train(rescue.data(bad), hooks=[guard], max_steps=30)
        found.append(guard.state())
    assert rescue.named(tmp_path / "killed") == [23]
    assert found[0] == found[1]
    assert len(found[0]["losses"]) == 5


def test_stop_ends_the_run_with_a_checkpoint_and_warn_goes_on(tmp_path, caplog):
    bad = spiked([23])
    with caplog.at_level(logging.WARNING):
        for on, last in (("stop", 30), ("warn", 40)):
            # The loop returns at each checkpoint, if not before.
            estimator = make(tmp_path / on)
            guard = ge.LossGuard(**SPIKE, on=on)
            estimator.train(rescue.data(bad), hooks=[guard], max_steps=40)
            assert 23 <= estimator.global_step <= last
            assert (estimator.global_step == 40) == (on == "warn")
            assert fakes.checkpoint_steps(tmp_path / on)[-1] == estimator.global_step
    (told,) = [m for m in caplog.messages if "training goes on" in m]
    assert "train | the loss was" in told
    assert "at step 23," in told
    assert "of the 5 steps before (spike=30)" in told


def judged(guard, losses, step=None):
    """Returns a run whose steps had these losses."""
    run = ge.Run("model_dir", 0, None)
    guard.begin(run)
    run.leaves_out = True
    run.losses, run.step = np.array(losses), step or len(losses)
    guard.after_loop(run)
    return run


def test_what_is_no_spike(caplog):
    guard = ge.LossGuard(spike=2.0, window=3, max_loss=9.0)
    # Too early; then 2 times the median itself; NaN and Inf are others' business.
    assert judged(guard, [1, 5, 1, 2, np.nan, np.inf, 4]).bad_step is None
    run = judged(guard, [1, 1, 1, 2.1, 9.5], step=105)
    assert run.bad_step.step == 104
    assert guard.state() == {"losses": [1, 1, 1], "stopped": None}
    assert judged(guard, [9.1]).bad_step.reason == (
        "the loss was 9.1 at step 1, above max_loss=9"
    )
    assert judged(guard, [-1, -1, -1, 8, 9]).bad_step is None
    (told,) = caplog.messages
    assert "guards nothing while the median loss is not above 0 (-1)" in told


def test_a_stop_is_asked_for_again_after_a_kill_and_not_by_the_next_run():
    guard = ge.LossGuard(max_loss=1.0, on="stop")
    assert judged(guard, [0.5, 2.0, 3.0]).stop_reasons == [
        "the loss was 2 at step 2, above max_loss=1"
    ]
    state = guard.state()
    other, run = ge.LossGuard(max_loss=1.0, on="stop"), ge.Run("model_dir", 3, None)
    other.begin(run)
    other.restore(run, state)
    assert run.stop_reasons == ["the loss was 2 at step 2, above max_loss=1"]
    other.end(run)
    assert other.state()["stopped"] is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "would guard nothing: write LossGuard(spike=10.0)"),
        ({"max_loss": "9"}, "max_loss is '9': write a number, max_loss=100.0."),
        ({"max_loss": np.nan}, "max_loss is nan: write a number"),
        ({"spike": 1}, "spike is 1: write a number > 1, spike=10.0."),
        ({"spike": 2, "window": 0}, "LossGuard.window is 0"),
        ({"spike": 2, "on": "raise"}, "on is 'raise': write one of 'restore', 'stop'"),
    ],
)
def test_arguments_are_checked(given, told):
    with pytest.raises(ge.RefusedValueError) as raised:
        ge.LossGuard(**given)
    assert told in str(raised.value)


def test_where_there_is_no_way_back_or_no_loss_of_a_step(tmp_path):
    guard = ge.LossGuard(max_loss=9.0)
    estimator = make(tmp_path, save_checkpoints_steps=0)
    with pytest.raises(ValueError, match=r"or write LossGuard\(on='stop'\)"):
        estimator.train(rescue.data(), hooks=[guard], max_steps=1)
    with pytest.raises(
        ValueError, match=r"write EvalSpec\(early_stopping=StopIfHigher"
    ):
        loss_guard.wants_losses([guard], has_servers=True)
