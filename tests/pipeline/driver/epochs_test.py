"""Trainings that end after so many passes over their input, or after so much time."""

import signal

import pytest

import pipeline as ge
from tests import fakes, interrupted

X, Y = fakes.classification_data(rows=40)
# Four steps a pass, and the last batch is a ragged one.
ROWS = 27


def shuffled(dataset):
    return dataset.take(ROWS).shuffle(50, seed=3)


def of_unknown_length(dataset):
    return shuffled(dataset).filter(lambda x, y: True)


INPUT = fakes.make_input_fn(X, Y, batch_size=8, change=shuffled)
UNKNOWN = fakes.make_input_fn(X, Y, batch_size=8, change=of_unknown_length)


def train(model_dir, input_fn=INPUT, *, max_steps=None, num_epochs=3, **config):
    hooks = [ge.StopAfterEpochsHook(num_epochs)]
    estimator = fakes.make_estimator(model_dir, save_checkpoints_steps=1, **config)
    return estimator.train(input_fn, max_steps=max_steps, hooks=hooks)


@pytest.fixture(scope="module", params=[INPUT, UNKNOWN], ids=["known", "unknown"])
def straight(request, tmp_path_factory):
    """A training of three passes; its input_fn and its model_dir."""
    model_dir = tmp_path_factory.mktemp("straight")
    train(model_dir, request.param)
    return request.param, model_dir


def test_so_many_passes(straight):
    _, model_dir = straight
    assert fakes.checkpoint_steps(model_dir)[-1] == 12


@pytest.mark.parametrize("stop", [4, 12])
def test_broken_off_anywhere_it_comes_to_the_same(straight, stop, tmp_path):
    input_fn, model_dir = straight
    train(tmp_path, input_fn, max_steps=stop)
    assert fakes.checkpoint_steps(tmp_path)[-1] == stop
    train(tmp_path, input_fn)
    assert interrupted.equal(tmp_path, model_dir)


def test_a_finished_training_ends_at_once_and_goes_on_with_more(tmp_path, log):
    train(tmp_path, num_epochs=1)
    train(tmp_path, num_epochs=1)
    assert fakes.checkpoint_steps(tmp_path)[-1] == 4
    assert any("1 passes over the input" in line for line in log())
    train(tmp_path, num_epochs=3)
    assert fakes.checkpoint_steps(tmp_path)[-1] == 12


def examples(model_dir, input_fn, num_examples, *, max_steps=None, more=(), **config):
    hooks = [ge.StopAfterExamplesHook(num_examples), *more]
    config = {"save_checkpoints_steps": 3, **config}
    estimator = fakes.make_estimator(model_dir, **config)
    estimator.train(input_fn, max_steps=max_steps, hooks=hooks)
    return fakes.checkpoint_steps(model_dir)[-1]


# Batches of 8, 8, 8 and 3, again and again.
def ragged():
    return INPUT().repeat()


@pytest.mark.parametrize("num_examples, steps", [(16, 2), (27, 4), (59, 9)])
def test_so_many_examples(num_examples, steps, tmp_path):
    assert examples(tmp_path, ragged, num_examples) == steps


def test_examples_count_over_restarts(tmp_path, log):
    for max_steps in (5, None):
        last = examples(tmp_path, ragged, 59, max_steps=max_steps)
    assert last == 9
    assert examples(tmp_path, ragged, 59) == 9
    assert any("62 examples, as max_examples has it" in line for line in log())
    assert not any("counts from step" in line for line in log())


def test_examples_of_two_replicas(tmp_path, mirrored_by_hand):
    assert examples(tmp_path, ragged, 59, train_distribute=mirrored_by_hand) == 9


def test_a_signal_counts_no_example_twice(tmp_path):
    class Signal(ge.Hook):
        every_steps = 4

        def after_step(self, run):
            if run.step == 4:
                signal.raise_signal(signal.SIGTERM)

    config = {"save_checkpoints_steps": 100, "steps_per_loop": 1}
    more = [Signal(), ge.PreemptionHook()]
    assert examples(tmp_path, ragged, 59, more=more, **config) < 9
    assert examples(tmp_path, ragged, 59, **config) == 9


def test_a_limit_that_is_added_says_from_where_it_counts(tmp_path, log):
    fakes.make_estimator(tmp_path).train(INPUT, max_steps=2)
    train(tmp_path, num_epochs=2)
    assert any("max_epochs counts from step 2 on" in line for line in log())


def test_two_replicas_count_the_same(tmp_path, mirrored_by_hand):
    train(tmp_path, num_epochs=2, train_distribute=mirrored_by_hand)
    assert fakes.checkpoint_steps(tmp_path)[-1] == 8


def test_an_endless_input_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"never ends in mode TRAIN.*drop its repeat"):
        train(tmp_path, interrupted.TRAIN)


def test_a_spec_names_the_limits(tmp_path):
    spec = ge.TrainSpec(INPUT, max_secs="2h", max_epochs=2)
    ge.train_and_evaluate(
        fakes.make_estimator(tmp_path), spec, ge.EvalSpec(INPUT, throttle_secs=0)
    )
    assert fakes.checkpoint_steps(tmp_path)[-1] == 8
    with pytest.raises(ValueError, match="TrainSpec.max_secs is str '2 hours'"):
        ge.TrainSpec(INPUT, max_secs="2 hours")
    with pytest.raises(ValueError, match="TrainSpec.max_epochs is 0"):
        ge.TrainSpec(INPUT, max_epochs=0)
