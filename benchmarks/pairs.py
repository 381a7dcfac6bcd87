"""Timing contenders in turn, and ratios round by round.

Machines are noisy, and their speed drifts: what is compared runs in alternation, and
the ratio is taken within each round. The median of the ratios is quoted, with their
range as spread.
"""

import dataclasses
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Attributes:
      name: in the table.
      run: does a number of steps.
      num_steps: steps of one round.
    """

    name: str
    run: Callable[[int], None]
    num_steps: int


def steps_per_sec(
    contenders: Sequence[Contender], max_secs: float
) -> dict[str, list[float]]:
    """Steps per second by contender's name and round, after a warm-up of each.

    Args:
      contenders: what to time.
      max_secs: no round begins after so many seconds; three there are in any case.
    """
    for contender in contenders:
        contender.run(min(contender.num_steps, 200))
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    deadline = time.perf_counter() + max_secs
    for number in itertools.count():
        if number >= 3 and time.perf_counter() > deadline:
            return rates
        # Every second round backwards, so that no one always comes after the same.
        order = contenders if number % 2 == 0 else list(reversed(contenders))
        for contender in order:
            gc.collect()
            began = time.perf_counter()
            contender.run(contender.num_steps)
            seconds = time.perf_counter() - began
            rates[contender.name].append(contender.num_steps / seconds)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours over theirs, round by round: more than 1 where ours is faster."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def row(title: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """One line of a table in Markdown."""
    each = ratios(ours, theirs)
    median = statistics.median
    return (
        f"| {title} | {median(ours):,.0f} | {median(theirs):,.0f} "
        f"| {median(each):.2f} | {min(each):.2f}-{max(each):.2f} |"
    )


def say(lines: Sequence[str], results: Mapping[str, object] | None) -> None:
    """Prints the table, and as the last line the results as JSON if there are any."""
    print("\n".join(lines), flush=True)
    if results is not None:
        print(json.dumps(results), flush=True)
