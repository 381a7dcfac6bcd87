"""Reads durations as people write them, 1h30m; counts the steps that take so long."""

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


class Pace:
    """The number of steps that one call of a loop may take.

    That is a number, and no more than take about a given time; or as many as take about
    a duration, which is found out from call to call, beginning with one step.

    Attributes:
      secs: about the longest time of a call, in seconds.
      timed: whether a duration was given.
    """

    # Steps may become this much faster from one call to the next: the first ones are
    # slow, and a few of them may have been fast by chance.
    _GROWTH = 10

    def __init__(self, steps_per_loop: int | str, *, most_secs: float) -> None:
        """Takes what the user gave; nothing is measured yet.

        Args:
          steps_per_loop: most steps in a call, or a duration such as "30s".
          most_secs: about the longest time of a call for a number of steps.
        """
        self.timed = isinstance(steps_per_loop, str)
        self.secs = secs_of(steps_per_loop) if self.timed else most_secs
        self._most = 1 if self.timed else steps_per_loop
        self._rate = 0.0

    def most(self) -> int:
        """Returns the number of steps of the next call, 1 or more."""
        return (
            min(self._most, 1 + self.steps_in(self.secs)) if self._rate else self._most
        )

    def steps_in(self, secs: float) -> int:
        """Returns how many steps took so many seconds; 0 before the first call."""
        return int(self._rate * secs)

    def measured(self, num_steps: int, seconds: float) -> None:
        """Goes by the last call from now on.

        Args:
          num_steps: steps that it took.
          seconds: time that they took.
        """
        if num_steps and seconds > 0:
            self._rate = num_steps / seconds
            if self.timed:
                self._most = max(self._most, self._GROWTH * num_steps)
