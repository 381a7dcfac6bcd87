"""Compares ways to do the same work, round by round."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

# Does a number of steps and returns the seconds that they took.
Run = Callable[[int], float]


def timed(run: Callable[[int], object]) -> Run:
    """Returns `run` with the seconds as its result."""

    def measured(num_steps: int) -> float:
        began = time.perf_counter()
        run(num_steps)
        return time.perf_counter() - began

    return measured


def compare(ours: Run, others: Mapping[str, Run], num_steps: int, num_rounds: int) -> None:
    """Runs all ways in turn, after one round to warm up, and prints our speed over each other.

    Args:
      ours: way to measure.
      others: ways to compare with, by the text to print, which ends with the bar.
      num_steps: steps in a round.
      num_rounds: number of rounds.
    """
    seconds: dict[str, list[float]] = {"": [], **{name: [] for name in others}}
    for number in range(num_rounds + 1):
        ways = list({"": ours, **others}.items())
        # Every second round runs backwards, so that no way always follows the same one.
        for name, run in ways if number % 2 else reversed(ways):
            gc.collect()
            taken = run(num_steps)
            if number:
                seconds[name].append(taken)
    for name in others:
        ratios = [a / b for a, b in zip(seconds[name], seconds[""], strict=True)]
        rate = num_steps / statistics.median(seconds[""])
        show(f"{name}; ours {rate:,.0f} steps/s", ratios)


def show(name: str, ratios: Sequence[float]) -> None:
    """Prints the median, the least and the most of some ratios."""
    median, least, most = statistics.median(ratios), min(ratios), max(ratios)
    print(f"{median:5.2f} ({least:.2f} to {most:.2f})  {name}", flush=True)
