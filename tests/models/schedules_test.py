"""Schedules at their boundaries, and as an optimizer reads them."""

import keras
import numpy as np
import pytest

from models import piecewise_by_epoch, warmup_cosine


def test_rates_change_with_the_first_step_of_an_epoch():
    schedule = piecewise_by_epoch(steps_per_epoch=10)
    rates = [float(schedule(step)) for step in (0, 29, 30, 69, 70, 1000)]
    np.testing.assert_allclose(rates, [1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])


def test_as_an_optimizer_reads_it():
    schedule = piecewise_by_epoch((1, 2), (1.0, 0.1, 0.0), steps_per_epoch=2)
    optimizer = keras.optimizers.SGD(schedule)
    variable = keras.Variable(0.0)
    moved = []
    for _ in range(6):
        before = float(variable)
        optimizer.apply([np.float32(-1.0)], [variable])
        moved.append(float(variable) - before)
    np.testing.assert_allclose(moved, [1.0, 1.0, 0.1, 0.1, 0.0, 0.0], atol=1e-6)


def test_parts_of_epochs():
    schedule = piecewise_by_epoch((0.5,), (1.0, 0.5), steps_per_epoch=10)
    assert [float(schedule(s)) for s in (4, 5)] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"rates": (1.0,), "steps_per_epoch": 1}, "1 rates for 2 epochs.*give 3"),
        ({"steps_per_epoch": 0}, "steps_per_epoch is 0"),
        ({"epochs": (3, 3), "steps_per_epoch": 1}, r"epochs are \[3, 3\]"),
        ({"epochs": (0, 3), "steps_per_epoch": 1}, r"epochs are \[0, 3\]"),
        ({"epochs": (), "rates": (1.0,), "steps_per_epoch": 1}, "write one or more"),
    ],
)
def test_piecewise_errors(kwargs, text):
    with pytest.raises(ValueError, match=text):
        piecewise_by_epoch(**kwargs)


def test_warmup_then_cosine():
    schedule = warmup_cosine(2.0, total_steps=110, warmup_steps=10, final_rate=0.5)
    rates = [float(schedule(step)) for step in (0, 5, 10, 60, 110, 500)]
    np.testing.assert_allclose(rates, [0, 1, 2, 1.25, 0.5, 0.5], rtol=1e-5, atol=1e-7)


def test_cosine_without_warmup():
    schedule = warmup_cosine(2.0, total_steps=100)
    rates = [float(schedule(step)) for step in (0, 50, 100)]
    np.testing.assert_allclose(rates, [2.0, 1.0, 0.0], atol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"total_steps": 5, "warmup_steps": 5}, "warmup_steps is 5 of total_steps 5"),
        ({"total_steps": 5, "final_rate": 1.0}, "final_rate is 1.0 and peak_rate"),
    ],
)
def test_warmup_errors(kwargs, text):
    with pytest.raises(ValueError, match=text):
        warmup_cosine(**kwargs)
