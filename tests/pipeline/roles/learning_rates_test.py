"""find_learning_rate: the curve, the suggestion, and what is left of it."""

import csv
import math
import os
import re

import keras
import numpy as np
import pytest

import pipeline as ge
from pipeline.roles import learning_rates
from tests import fakes

X, Y = fakes.classification_data(rows=256)
TRAIN = fakes.make_input_fn(
    X, Y, batch_size=32, change=lambda d: d.shuffle(256, seed=1).repeat()
)


def estimator(model_dir, optimizer=lambda: keras.optimizers.SGD(0.1), **options):
    return fakes.make_estimator(model_dir, optimizer=optimizer, **options)


def schedule():
    return keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(1.0, 9, 0.1)
    )


def test_the_rate_grows_and_the_loss_tells(tmp_path):
    made = estimator(tmp_path)
    found = ge.find_learning_rate(made, TRAIN, lowest=1e-4, highest=1e4, steps=60)
    steps = len(found.rates)
    ratios = np.divide(found.rates[1:], found.rates[:-1])
    np.testing.assert_allclose(ratios, 1e8 ** (1 / 59))
    assert found.diverged
    assert 10 < steps < 60
    assert 0.01 < found.suggestion < 30
    # Of the training nothing is left, and nothing was begun.
    assert made.latest_checkpoint() is None
    assert fakes.checkpoint_steps(tmp_path) == []
    folder = tmp_path / "find_learning_rate"
    kinds = sorted(name.split(".")[0] for name in os.listdir(folder))
    assert kinds == ["events", "rates"]
    rows = list(csv.DictReader((folder / "rates.csv").open()))
    assert [float(row["learning_rate"]) for row in rows] == list(found.rates)
    assert [float(row["loss"]) for row in rows] == list(found.losses)
    lines = list(found.lines())
    assert lines[0].split() == ["learning", "rate", "loss", "smoothed"]
    assert (
        lines[-1] == f"suggestion {found.suggestion:.2g}, where the loss falls fastest"
    )
    assert len(lines) <= 30


@pytest.mark.parametrize("optimizer", [fakes.adam, schedule], ids=["adam", "schedule"])
def test_the_losses_are_those_of_a_training_at_these_rates(optimizer, tmp_path):
    options = {"lowest": 0.01, "highest": 0.02, "steps": 4}
    found = ge.find_learning_rate(estimator(tmp_path, optimizer), TRAIN, **options)

    def at_rates():
        made = optimizer()
        made.learning_rate = keras.optimizers.schedules.PiecewiseConstantDecay(
            [0, 1, 2], list(found.rates)
        )
        return made

    losses = []

    class Losses(ge.Hook):
        every_steps = 1

        def after_step(self, run):
            losses.append(run.report.loss)

    estimator(tmp_path / "other", at_rates).train(TRAIN, max_steps=4, hooks=[Losses()])
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5)


def two_fn(features, labels, mode, network, first, second):
    logits = network(features)
    loss = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
    variables = network.trainable_variables
    return ge.EstimatorSpec(
        mode,
        loss=loss,
        train_op=[
            ge.TrainOp(first, variables[:2]),
            ge.TrainOp(second, variables[2:], every=2),
        ],
    )


@pytest.mark.parametrize("names", [None, ["second"]])
def test_of_several_optimizers_those_that_are_named(names, tmp_path):
    rates = {}

    def make(name):
        def factory():
            rates[name] = keras.optimizers.SGD(0.5)
            return rates[name]

        return factory

    made = ge.Estimator(
        two_fn,
        modules={
            "network": fakes.network,
            "first": make("first"),
            "second": make("second"),
        },
        config=ge.RunConfig(model_dir=str(tmp_path)),
    )
    found = ge.find_learning_rate(made, TRAIN, steps=5, highest=1.0, optimizers=names)
    at_end = {name: float(rates[name].learning_rate.numpy()) for name in rates}
    last = found.rates[-1]
    assert at_end["second"] == pytest.approx(last)
    assert at_end["first"] == pytest.approx(0.5 if names else last)


def test_two_replicas(tmp_path):
    per_replica = fakes.make_input_fn(
        X, Y, batch_size=32, per_replica=True, change=lambda d: d.repeat()
    )
    options = {"lowest": 0.01, "highest": 1.0, "steps": 5}
    one = ge.find_learning_rate(estimator(tmp_path / "1"), per_replica, **options)
    two = ge.find_learning_rate(
        estimator(tmp_path / "2", devices=["CPU:0", "CPU:1"]), per_replica, **options
    )
    np.testing.assert_allclose(one.losses, two.losses, rtol=1e-4)


def test_an_input_that_ends_gives_a_shorter_curve(tmp_path, caplog):
    short = fakes.make_input_fn(X, Y, batch_size=64)
    found = ge.find_learning_rate(estimator(tmp_path, run_eagerly=True), short)
    assert len(found.rates) == 4
    assert found.suggestion is None
    assert "the input ended after 4 of 100 steps" in caplog.text
    assert list(found.lines())[-1].startswith("no suggestion: the loss does not fall")


def test_nan_ends_it():
    growing = learning_rates._Growing(1e-3, 1.0, 20)
    run = ge.Run("runs/a", 0, None)
    for step, loss in enumerate([1.0] * 3 + [math.nan], 1):
        run.step = step
        run.read_report = lambda loss=loss: ge.Report(
            step=run.step, num_steps=1, seconds=1.0, loss=loss, metrics={}, scalars={}
        )
        growing.after_step(run)
    assert run.stop_reasons == ["the loss is nan, and diverges"]
    assert growing.curve().diverged


REFUSED = {
    "order": ({"lowest": 1.0, "highest": 0.1}, "goes from 1.0 to 0.1: write numbers"),
    "zero": ({"lowest": 0}, "goes from 0 to 10.0: write numbers above 0"),
    "text": ({"highest": "1"}, "goes from 1e-06 to '1': write numbers"),
    "steps": (
        {"steps": 1},
        "find_learning_rate.steps is 1: write an int of at least 2",
    ),
    "name": ({"optimizers": ["optimzer"]}, "in a list. Did you mean optimizer?"),
    "no list": ({"optimizers": "optimizer"}, "optimizers is 'optimizer': write names"),
    "network": ({"optimizers": ["network"]}, "names 'network', which is Sequential"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_is_refused(case, tmp_path):
    options, words = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        ge.find_learning_rate(estimator(tmp_path), TRAIN, **options)
