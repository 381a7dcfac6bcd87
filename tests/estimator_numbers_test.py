"""The numbers of tf.estimator: steps, checkpoints, evaluations, losses."""

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from tests import fakes


def input_of(num_batches, batch_size=4):
    """An input_fn of so many batches; None for endless."""
    x, y = fakes.classification_data(batch_size * (num_batches or 5))
    change = None if num_batches else tf.data.Dataset.repeat
    return fakes.make_input_fn(x, y, batch_size=batch_size, change=change)


class Counted(ge.Exporter):
    """Exports nothing; keeps the step and whether it was the final export."""

    def __init__(self):
        super().__init__("counted")
        self.calls = []

    def export(self, estimator, export_path, checkpoint_path, eval_result, is_final):
        self.calls.append((eval_result["global_step"], is_final))
        return f"export of {eval_result['global_step']}"


class Evaluations(ge.Hook):
    """The global step of each evaluation."""

    def __init__(self):
        self.steps = []

    def begin(self, run):
        self.steps.append(run.step)


# Steps.

each_input = pytest.mark.parametrize(
    "num_batches",
    [
        None,
        5,
        8,
    ],
    ids=["endless", "five", "eight"],
)


@each_input
def test_five_steps_twice_are_ten(tmp_path, num_batches):
    estimator = fakes.make_estimator(tmp_path)
    estimator.train(input_of(num_batches), steps=5)
    estimator.train(input_of(num_batches), steps=5)
    assert estimator.global_step == 10


@each_input
def test_five_steps_in_each_of_two_estimators_are_ten(tmp_path, num_batches):
    fakes.make_estimator(tmp_path).train(input_of(num_batches), steps=5)
    fakes.make_estimator(tmp_path).train(input_of(num_batches), steps=5)
    assert fakes.checkpoint_steps(tmp_path)[-1] == 10


def test_max_steps_counts_from_the_beginning(tmp_path):
    estimator = fakes.make_estimator(tmp_path)
    estimator.train(input_of(None), max_steps=5)
    estimator.train(input_of(None), max_steps=7)
    assert estimator.global_step == 7


def test_an_input_that_ends_ends_the_training(tmp_path):
    estimator = fakes.make_estimator(tmp_path).train(input_of(5), max_steps=100)
    assert estimator.global_step == 5


# Checkpoints.


def test_checkpoints_at_the_start_at_each_interval_and_at_the_end(tmp_path):
    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=10)
    estimator.train(input_of(None), max_steps=26)
    assert fakes.checkpoint_steps(tmp_path) == [0, 10, 20, 26]


def test_a_second_run_saves_no_checkpoint_again(tmp_path):
    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=10)
    estimator.train(input_of(None), max_steps=16)
    estimator.train(input_of(None), max_steps=26)
    assert fakes.checkpoint_steps(tmp_path) == [0, 10, 16, 20, 26]


def test_the_last_checkpoints_stay(tmp_path):
    estimator = fakes.make_estimator(
        tmp_path, save_checkpoints_steps=10, keep_checkpoint_max=2
    )
    estimator.train(input_of(None), max_steps=26)
    assert fakes.checkpoint_steps(tmp_path) == [20, 26]


# Evaluations.


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Evaluations, exports and what came back: every 10 steps, to step 22."""
    estimator = fakes.make_estimator(
        tmp_path_factory.mktemp("evaluated"), save_checkpoints_steps=10
    )
    evaluations, exporter = Evaluations(), Counted()
    result = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(input_of(None), max_steps=22),
        ge.EvalSpec(
            input_of(5), throttle_secs=0, hooks=[evaluations], exporters=[exporter]
        ),
    )
    return estimator, evaluations, exporter, result


def test_evaluates_at_each_checkpoint_and_at_the_end(evaluated):
    _, evaluations, _, _ = evaluated
    assert evaluations.steps == [10, 20, 22]


def test_exports_finally_once_and_last(evaluated):
    _, _, exporter, _ = evaluated
    assert exporter.calls == [(10, False), (20, False), (22, True)]


def test_returns_the_last_evaluation(evaluated):
    _, _, _, (metrics, exports) = evaluated
    assert (metrics["global_step"], exports) == (22, ["export of 22"])


def test_at_max_steps_it_evaluates_and_exports_all_the_same(evaluated):
    again = fakes.make_estimator(evaluated[0].model_dir)
    exporter = Counted()
    metrics, exports = ge.train_and_evaluate(
        again,
        ge.TrainSpec(input_of(None), max_steps=22),
        ge.EvalSpec(input_of(5), exporters=[exporter]),
    )
    assert metrics == pytest.approx(evaluated[3][0])
    assert (exporter.calls, exports) == ([(22, True)], ["export of 22"])


def test_at_max_steps_training_says_so(evaluated, caplog):
    evaluated[0].train(input_of(None), max_steps=22)
    (said,) = [r for r in caplog.records if "max_steps" in r.getMessage()]
    assert said.levelname == "WARNING"
    assert "step 22 is at max_steps 22 already" in said.getMessage()


def given_loss_fn(features, mode):
    """Features are the losses of the examples."""
    return ge.EstimatorSpec(mode, loss=features)


@pytest.mark.parametrize("devices", [None, ("CPU:0", "CPU:1")], ids=["one", "two"])
@pytest.mark.parametrize("per_replica", [False, True], ids=["split", "per_replica"])
def test_the_loss_is_the_mean_over_batches(tmp_path, devices, per_replica):
    losses = np.repeat([2.0, 4.0, 6.0, 8.0, 10.0], 4).astype(np.float32)
    config = ge.RunConfig(model_dir=str(tmp_path), devices=devices)
    metrics = ge.Estimator(given_loss_fn, config=config).evaluate(
        fakes.make_input_fn(losses, batch_size=4, per_replica=per_replica)
    )
    assert metrics["loss"] == 6.0


def test_the_loss_of_a_ragged_end_counts_by_examples(tmp_path):
    losses = np.array([1.0, 1.0, 1.0, 1.0, 6.0], np.float32)
    config = ge.RunConfig(model_dir=str(tmp_path))
    metrics = ge.Estimator(given_loss_fn, config=config).evaluate(
        fakes.make_input_fn(losses, batch_size=4)
    )
    assert metrics["loss"] == 2.0
