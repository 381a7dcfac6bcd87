# SPDX-License-Identifier: Apache-2.0
"""Shows how far a long phase is: a bar in a terminal or notebook, or a log line at times."""

import contextlib
import logging as standard_logging
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tqdm
from absl import logging

from .durations import clock

with warnings.catch_warnings():  # Of a notebook without ipywidgets, which has no bar then.
    warnings.simplefilter("ignore", tqdm.TqdmWarning)
    import tqdm.auto
    from tqdm.contrib import DummyTqdmFile

# Seconds between two values on a bar; reading them fetches them from the device.
_MIN_SECS = 0.2


class Progress:
    """The progress of one phase; close it at the end, also after an error."""

    def __init__(
        self,
        title: str,
        *,
        total: int | None,
        start: int = 0,
        bar: bool = True,
        line_secs: float = math.inf,
    ) -> None:
        """Shows the bar if this is a terminal or a notebook.

        Args:
          title: name of the phase.
          total: number of the last step; None if unknown.
          start: number of the first step.
          bar: whether to show a bar.
          line_secs: seconds between two log lines without a bar.
        """
        self._title, self._total, self._start = title, total, start
        self._line_secs = line_secs
        self._began = self._shown_at = time.monotonic()
        self._closing = contextlib.ExitStack()
        self._bar = None
        if bar and _can_move():
            self._bar = tqdm.auto.tqdm(
                desc=title,
                total=total,
                initial=start,
                unit=" steps",
                file=sys.stderr,
                mininterval=_MIN_SECS,
                leave=False,
                **_size(),
            )
            self._closing.enter_context(_log_above_bars())
            self._closing.callback(self._bar.close)

    def update(self, step: int, values: Callable[[], str] = str) -> None:
        """Shows that `step` is reached.

        Args:
          step: number of the step.
          values: returns ` | loss 0.312`, or nothing to keep the text before; called only if it
            is shown.
        """
        now = time.monotonic()
        if self._bar is not None and now - self._shown_at >= _MIN_SECS:
            if text := values().removeprefix(" | "):
                self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(step - self._bar.n)
            self._shown_at = now
        elif self._bar is None and now - self._shown_at >= self._line_secs:
            speed = (step - self._start) / (now - self._began)
            left = ""
            if self._total is not None and speed:
                left = f" of {self._total} | {clock((self._total - step) / speed)} left"
            logging.info("%s | %d steps%s", self._title, step, left)
            self._shown_at = now

    def close(self) -> None:
        """Removes the bar."""
        self._closing.close()


def show_line(text: str, *, prints: bool = True) -> None:
    """Logs a line; or prints it where the log shows only warnings, as in a notebook."""
    if logging.get_verbosity() >= logging.INFO:
        logging.info("%s", text)
    elif prints:
        tqdm.auto.tqdm.write(text)


def _can_move() -> bool:
    """Returns whether stderr is a terminal, or this is a notebook with widgets."""
    is_notebook = not issubclass(tqdm.std.tqdm, tqdm.autonotebook.tqdm)
    return is_notebook or (sys.stderr is not None and sys.stderr.isatty())


def _size() -> dict[str, Any]:
    """Returns tqdm's arguments for the size; it shows nothing if a terminal gives its size as 0."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # It has no descriptor.
        if 0 in os.get_terminal_size(sys.stderr.fileno()):
            return {"ncols": 80, "nrows": 24}
    return {"dynamic_ncols": True}


@contextlib.contextmanager
def _log_above_bars() -> Iterator[None]:
    """Makes the handlers of the log write above the bars."""
    handlers = [
        each
        for each in [logging.get_absl_handler().python_handler, *standard_logging.root.handlers]
        if isinstance(each, standard_logging.StreamHandler)
        and each.stream in (sys.stderr, sys.stdout)
    ]
    streams = [each.setStream(DummyTqdmFile(each.stream)) for each in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, streams, strict=True):
            handler.setStream(stream)
