# SPDX-License-Identifier: Apache-2.0
"""Durations as numbers of seconds or as text."""

import re

from ..errors import UserValueError

_SECS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}


def seconds(value: float | str, name: str) -> float:
    """Returns a duration in seconds: `5400`, "90m", "1h30m", "2d" or "45s".

    Args:
      value: the duration.
      name: name of the argument, for the error.

    Raises:
      UserValueError: it is not a duration greater than 0.
    """
    parts = re.findall(r"([\d.]+)([dhms])", value) if isinstance(value, str) else []
    try:
        if isinstance(value, str) and "".join(map("".join, parts)) == value.replace(" ", ""):
            value = sum(float(number) * _SECS[unit] for number, unit in parts)
        secs = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        secs = 0.0
    if not 0 < secs < float("inf"):
        raise UserValueError(
            f"{name} is {value!r}: expected seconds, or text such as '45s', '90m', '1h30m' or '2d'."
        )
    return secs


def clock(secs: float) -> str:
    """Returns a duration as `1:02:03`."""
    minutes, rest = divmod(round(secs), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
