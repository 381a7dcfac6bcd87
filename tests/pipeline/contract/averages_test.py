"""Averages: their shares, what they choose, and what they refuse."""

import re

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.contract import averages

EMA, SWA = ge.ExponentialAverage, ge.StochasticWeightAverage
X = np.random.default_rng(0).normal(size=20)


def averaged(settings, values, *, at_once=1):
    """The average of numbers, taken in as the driver does, some at once."""
    average, number = 0.0, 0
    for value in values:
        number += at_once
        share = settings.share(*(tf.constant(n, tf.float64) for n in (number, at_once)))
        average -= float(share) * (average - value)
    return average


def test_a_debiased_average_is_that_of_adam():
    moment = 0.0
    for n, value in enumerate(X, start=1):
        moment = 0.9 * moment + 0.1 * value
        expected = moment / (1 - 0.9**n)
        assert averaged(EMA(0.9), X[:n]) == pytest.approx(expected, rel=1e-12)


def test_the_first_weights_are_the_average_to_the_last_bit():
    for settings in (EMA(0.999999), EMA(0.9, debias=False), SWA(0)):
        assert averaged(settings, X[:1]) == X[0]


def test_an_average_that_is_not_debiased_begins_as_the_first_weights():
    expected = X[0]
    for value in X[1:]:
        expected = 0.9 * expected + 0.1 * value
    assert averaged(EMA(0.9, debias=False), X) == pytest.approx(expected, rel=1e-12)


def test_swa_is_the_mean():
    assert averaged(SWA(5), X) == pytest.approx(X.mean(), rel=1e-12)


@pytest.mark.parametrize("settings", [EMA(0.9), EMA(0.9, debias=False), SWA(0)])
def test_steps_that_are_taken_in_at_once_count_each(settings):
    """As if each of them had had the weights of the last."""
    one_by_one = averaged(settings, np.repeat(X, 7))
    assert averaged(settings, X, at_once=7) == pytest.approx(one_by_one, rel=1e-9)


def test_steps_count_after_the_first_and_every_few():
    settings = SWA(10, every=3)
    until = [int(settings.steps_until(tf.constant(step))) for step in range(17)]
    assert until == [0] * 13 + [1] * 3 + [2]


def test_modules_are_chosen_by_name_or_expression():
    assert EMA().chooses("network/dense/kernel")
    by_module = EMA(modules="network")
    assert by_module.chooses("network/dense/kernel")
    assert not by_module.chooses("network_2/dense/kernel")
    by_name = EMA(modules=["head", "network/dense.*"])
    assert by_name.chooses("network/dense_1/kernel")
    assert not by_name.chooses("network/conv2d/kernel")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: EMA(1.0), "ExponentialAverage.decay is 1.0: write a number between"),
        (lambda: EMA("0.9"), "decay is '0.9'"),
        (lambda: EMA(debias=1), "debias is 1: write True or False"),
        (lambda: EMA(every=0), "every is 0: write an integer of at least 1"),
        (lambda: EMA(start_step=-1), "start_step is -1"),
        (lambda: SWA(1.5), "StochasticWeightAverage.start_step is 1.5"),
        (lambda: EMA(evaluate="ema"), "evaluate is 'ema': write one of 'both'"),
        (lambda: EMA(serve="both"), "serve is 'both': write one of 'average', 'live'"),
        (lambda: EMA(modules="("), "modules has '(', which is no regular expression"),
        (lambda: EMA(modules=()), "modules is (), which chooses nothing: write"),
        (lambda: EMA(modules=""), "modules is '', which chooses nothing"),
        (lambda: EMA(modules=3), "modules has 3, which is no regular expression"),
        (lambda: ge.RunConfig(average=0.99), "write average=ExponentialAverage("),
        (lambda: ge.RunConfig(average=EMA), "write average=ExponentialAverage("),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_made(make, text):
    with pytest.raises(ge.RefusedValueError, match=re.escape(text)):
        make()


def test_the_weights_of_a_call_are_checked():
    assert averages.to_measure(None, None) == ("live",)
    assert averages.to_measure(None, EMA()) == ("live", "average")
    assert averages.to_measure("average", EMA()) == ("average",)
    assert averages.to_serve(None, EMA()) == "average"
    assert averages.to_serve(None, EMA(serve="live")) == "live"
    with pytest.raises(ge.RefusedValueError, match="'ema': write one of 'live'"):
        averages.to_serve("ema", EMA())
    with pytest.raises(ge.RefusedValueError, match="there is no average: write Run"):
        averages.to_measure("both", None)


def test_a_metric_tells_what_it_was_measured_on():
    assert averages.measured("ema/loss", None) is None
    assert averages.measured("ema/loss", EMA()) == "average"
    assert averages.measured("loss", EMA()) == "live"
    assert averages.measured("loss", EMA(evaluate="average")) == "average"
    assert averages.measured("ema/loss", EMA(evaluate="live")) == "live"
