"""Draws a line that moves, where somebody looks: in a terminal, or in a notebook.

The line is tqdm's. Lines of the log go above it, and its last state stays.
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
    # tqdm warns in a notebook without ipywidgets, where it draws the line as plain
    # text. That is good enough.
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm

# Seconds between two states of the line. Nobody reads faster, and each value that is
# shown has to be fetched from the device.
_SECS = 0.2
# There is one screen: a new bar clears the lines of those that are open.
_open: list["Bar"] = []


def is_seen() -> bool:
    """Returns whether stderr is a terminal or a notebook."""
    stream = sys.stderr
    if type(stream).__module__ == "ipykernel.iostream":
        return True
    # stderr is None where it was closed, and a program's own may only have `write`.
    return hasattr(stream, "isatty") and stream.isatty()


class Bar:
    """A moving line: steps of a total, their rate, the time left, and values."""

    def __init__(
        self,
        phase: str,
        *,
        step: int = 0,
        last_step: int | None = None,
        stays: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Draws the line.

        Args:
          phase: word that begins the line, such as "train".
          step: step to start at.
          last_step: step to end at; None where nobody knows.
          stays: whether the last state stays on the screen.
          clock: returns seconds that never go back.
        """
        self._clock = clock
        self._shown_at = clock() - _SECS
        # A filter of each handler clears the line before the handler writes its own.
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
            # A bar inside of another takes the place of the outer one, until it ends.
            position=0,
        )

    @property
    def is_due(self) -> bool:
        """Whether values that are given now would be shown."""
        return self._clock() - self._shown_at >= _SECS

    def move(self, step: int, values: Sequence[str] = ()) -> None:
        """Moves on to a step; shows texts such as 'loss 0.312', or those before."""
        if values:
            self._shown_at = self._clock()
            self._line.set_postfix_str(", ".join(values), refresh=False)
        self._line.update(step - self._line.n)

    def close(self) -> None:
        """Ends the line: whatever is written next begins a new one."""
        for handler in self._handlers:
            handler.removeFilter(self._make_room)
        self._line.close()
        _open.remove(self)

    def _make_room(self, record: python_logging.LogRecord) -> bool:
        """Clears the line, so that a handler writes there; a filter that passes all."""
        del record
        self._line.clear()
        return True


@contextlib.contextmanager
def bar(phase: str, *, last_step: int | None, shown: bool) -> Iterator[Bar | None]:
    """Shows a bar while the block runs, and removes it at the end.

    Args:
      phase: word that begins the line, such as "evaluate".
      last_step: step to end at; None where nobody knows.
      shown: whether there is to be a bar.

    Yields:
      The bar; None where there is to be none or nobody looks.
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
    """Ends the lines that an error left open, so that its message begins a new one."""
    for each in [*_open]:
        each.close()


def time_left(num_steps: int, steps_per_sec: float) -> str:
    """Returns the time that steps take, such as "0:01:45"; "?" at a rate of 0."""
    if not steps_per_sec:
        return "?"
    return str(datetime.timedelta(seconds=round(num_steps / steps_per_sec)))


def _width() -> dict[str, Any]:
    """Returns tqdm's arguments for the width: the terminal's, where it tells it."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = 0  # A notebook, or a terminal that was made without a size.
    return {"dynamic_ncols": True} if columns else {"ncols": 100}


def _console_handlers() -> list[python_logging.Handler]:
    """Returns the handlers that may write log lines to the bar's screen."""
    if not python_logging.root.handlers:
        # absl makes this handler at its first line, which may come after the bar.
        python_logging.basicConfig()
    return [*logging.get_absl_logger().handlers, *python_logging.root.handlers]
