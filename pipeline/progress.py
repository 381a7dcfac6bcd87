"""A line that moves, where somebody looks: in a terminal, or in a notebook.

It is tqdm's. What is logged meanwhile goes above it, and its last state stays.
"""

import contextlib
import datetime
import logging as python_logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from absl import logging

with warnings.catch_warnings():
    # In a notebook without ipywidgets the line is plain text, which does as well.
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm

# Nobody reads faster, and what is shown has to be fetched from the device.
_SECS = 0.2
# There is one screen, so that who opens one has to know of the others.
_open: list["Bar"] = []


def is_seen() -> bool:
    """Whether stderr is a terminal's or a notebook's."""
    stream = sys.stderr
    if type(stream).__module__ == "ipykernel.iostream":
        return True
    # None where it was closed; what a program puts there may have `write` alone.
    return hasattr(stream, "isatty") and stream.isatty()


class Bar:
    """One moving line: steps of a total, their rate, the time left, and values."""

    def __init__(
        self,
        phase: str,
        *,
        step: int = 0,
        last_step: int | None = None,
        stays: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
          phase: what it begins with, such as "train".
          step: where it starts.
          last_step: where it ends; None where nobody knows.
          stays: whether its last state stays on the screen.
          clock: seconds that never go back.
        """
        self._clock = clock
        self._shown_at = clock() - _SECS
        self._handlers = _console_handlers()
        for handler in self._handlers:
            handler.addFilter(self._make_room)
        for other in _open:
            other._line.clear()
        _open.append(self)
        self._line = tqdm(
            desc=phase,
            initial=step,
            total=last_step,
            unit=" steps",
            leave=stays,
            file=sys.stderr,
            **_width(),
            mininterval=_SECS,
            miniters=1,
            # One inside of another takes its place, until it ends.
            position=0,
        )

    @property
    def is_due(self) -> bool:
        """Whether values that are given now would be shown."""
        return self._clock() - self._shown_at >= _SECS

    def move(self, step: int, values: Sequence[str] = ()) -> None:
        """Goes on to a step.

        Args:
          step: that was reached.
          values: such as "loss 0.312"; none leaves those before.
        """
        if values:
            self._shown_at = self._clock()
            self._line.set_postfix_str(", ".join(values), refresh=False)
        self._line.update(step - self._line.n)

    def close(self) -> None:
        """Ends it; the next thing that is written begins a line."""
        for handler in self._handlers:
            handler.removeFilter(self._make_room)
        self._line.close()
        _open.remove(self)

    def _make_room(self, record: python_logging.LogRecord) -> bool:
        """A handler's filter: what it is about to write begins at the line's start."""
        del record
        self._line.clear()
        return True


@contextlib.contextmanager
def bar(phase: str, *, last_step: int | None, shown: bool) -> Iterator[Bar | None]:
    """A bar that is gone when what is inside has ended; None where nobody looks.

    Args:
      phase: what it begins with.
      last_step: where it ends; None where nobody knows.
      shown: whether there is to be one.
    """
    made = None
    if shown and is_seen():
        made = Bar(phase, last_step=last_step, stays=False)
    try:
        yield made
    finally:
        if made is not None:
            made.close()


def close_all() -> None:
    """Ends the lines that an error left open, so that its message begins one."""
    for each in [*_open]:
        each.close()


def time_left(num_steps: int, steps_per_sec: float) -> str:
    """Returns such as "0:01:45"; "?" at a rate of 0."""
    if not steps_per_sec:
        return "?"
    return str(datetime.timedelta(seconds=round(num_steps / steps_per_sec)))


def _width() -> dict[str, Any]:
    """How wide a line may be: as the terminal is, if that says so."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = 0  # A notebook, or a terminal that was made without a size.
    return {"dynamic_ncols": True} if columns else {"ncols": 100}


def _console_handlers() -> list[python_logging.Handler]:
    """What writes log lines to where the bar is, or may do so."""
    if not python_logging.root.handlers:
        # absl would do so at its first line, when it is too late.
        python_logging.basicConfig()
    return [*logging.get_absl_logger().handlers, *python_logging.root.handlers]
