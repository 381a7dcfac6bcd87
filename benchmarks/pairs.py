"""Times contenders in turn, and compares them round by round.

Machines are noisy, and their speed drifts. So contenders run in alternation, and the
ratio is taken within each round. The median of the ratios is quoted, with their
quartiles as spread.
"""

import dataclasses
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from pipeline import Hook, Run

_HEADER = [
    "| ours against | ours, steps/s | theirs, steps/s | ratio | quartiles | rounds |",
    "| --- | --- | --- | --- | --- | --- |",
]

Rates = dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Attributes:
      name: name in the table.
      run: does a number of steps.
      num_steps: steps in one round.
    """

    name: str
    run: Callable[[int], None]
    num_steps: int


def take_turns(contenders: Sequence[Contender], max_secs: float) -> Rates:
    """Times the contenders in turn.

    Args:
      contenders: ways to time; each runs once before, to trace and warm up.
      max_secs: seconds after which no round begins; there are three rounds at least.

    Returns:
      Steps per second by name and round.
    """
    for contender in contenders:
        contender.run(contender.num_steps)
    rates: Rates = {contender.name: [] for contender in contenders}
    deadline = time.perf_counter() + max_secs
    for number in itertools.count():
        if number >= 3 and time.perf_counter() > deadline:
            return rates
        # Every second round runs backwards, so that no way always follows the same one.
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            gc.collect()
            rates[contender.name].append(_rate(contender))


class TurnsHook(Hook):
    """Times a training run in slices, and contenders in between.

    A slice is all that the run does from one call of this hook to the next: steps, log
    lines, summaries, checkpoints. What the run does at its beginning and end is left
    out. So slices can be short, and the machine's drift hits all ways alike.

    Attributes:
      rates: steps per second by round; by name, "ours" for the run.
    """

    def __init__(
        self, slice_steps: int, contenders: Sequence[Contender], max_secs: float
    ) -> None:
        """Takes what to time.

        Args:
          slice_steps: steps of the run in one round.
          contenders: ways to time in between.
          max_secs: seconds after which the run ends; there are three rounds at least.
        """
        self.every_steps = slice_steps
        self.rates: Rates = {
            name: [] for name in ("ours", *(c.name for c in contenders))
        }
        self._contenders = contenders
        self._max_secs = max_secs
        self._deadline: float | None = None
        self._began = 0.0

    def after_step(self, run: Run) -> None:
        now = time.perf_counter()
        if self._deadline is None:  # The first round traces and warms up.
            for contender in self._contenders:
                contender.run(contender.num_steps)
            self._deadline = time.perf_counter() + self._max_secs
        else:
            self.rates["ours"].append(self.every_steps / (now - self._began))
            for contender in self._contenders:
                gc.collect()
                run.agree(False)
                self.rates[contender.name].append(_rate(contender))
        gc.collect()
        over = time.perf_counter() > self._deadline and len(self.rates["ours"]) >= 3
        # Processes that run in step have to stop together, and begin a slice together.
        if run.agree(over):
            run.request_stop("time is over")
        self._began = time.perf_counter()


def _rate(contender: Contender) -> float:
    """Runs a contender for one round; returns its steps per second."""
    began = time.perf_counter()
    contender.run(contender.num_steps)
    return contender.num_steps / (time.perf_counter() - began)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Returns our rate over theirs, round by round: above 1 where ours is faster."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def row(title: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Returns one line of a table in Markdown."""
    each = ratios(ours, theirs)
    low, median, high = statistics.quantiles(each, n=4)
    rates = f"{statistics.median(ours):,.0f} | {statistics.median(theirs):,.0f}"
    return f"| {title} | {rates} | {median:.2f} | {low:.2f}-{high:.2f} | {len(each)} |"


def table(title: str, rows: Sequence[str]) -> list[str]:
    """Returns a table in Markdown of lines that `row` returned."""
    return ["", title, "", *_HEADER, *rows]


def say(lines: Sequence[str], results: Mapping[str, object] | None) -> None:
    """Prints lines, and then the results as one line of JSON, if there are any."""
    print("\n".join(lines), flush=True)
    if results is not None:
        print(json.dumps(results), flush=True)
