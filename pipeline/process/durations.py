"""Reads durations as people write them: 45s, 90m, 1h30m, 2d."""

import re

_NUMBER = r"(\d+(?:\.\d+)?)"
_DURATION = re.compile("(?=.)" + "".join(f"(?:{_NUMBER}{unit})?" for unit in "dhms"))
_UNITS = (86400, 3600, 60, 1)


def secs_of(text: str) -> float | None:
    """Returns the seconds of a duration with its units; None for any other text.

    Args:
      text: text such as "1h30m".
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    parts = zip(match.groups(), _UNITS, strict=True)
    return sum(float(number or 0) * unit for number, unit in parts)
