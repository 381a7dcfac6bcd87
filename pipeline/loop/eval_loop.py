"""The evaluation loop: over all of an input, a few steps at a time.

The number of steps in a call doubles while a call is short: long calls cost less, short
ones show how far the evaluation is, and hear a signal soon.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from pipeline.contract.hooks import Hook, Report, Run
from pipeline.contract.summaries import Seen
from pipeline.feed.feed import ReadableFeed
from pipeline.loop.compiled_loop import StepsLoop
from pipeline.loop.metrics import MetricSet, as_arrays
from pipeline.loop.watchers import Window
from pipeline.mistakes.user_errors import call_method
from pipeline.process import durations, progress
from pipeline.tracing.summary_states import merged_seen

# Steps of the first call.
_FIRST_EVAL_STEPS = 16
# Seconds of a call after which the number of steps is not doubled any more.
_MOST_EVAL_SECS = 1.0
# Most steps of a call where the user has given a time in place of a number.
_MOST_EVAL_STEPS = 1000
# Seconds after which an evaluation says how far it is, and says it again.
_SAY_SECS = 30.0


def evaluate(
    compiled: StepsLoop,
    metrics: MetricSet,
    feed: ReadableFeed,
    *,
    run: Run,
    hooks: Sequence[Hook],
    steps: int | None,
    steps_per_loop: int | str,
) -> Report:
    """Runs the evaluation loop over the input.

    Args:
      compiled: loop over eval steps.
      metrics: metrics of the mode EVAL.
      feed: input that is evaluated.
      run: run that hooks are given.
      hooks: hooks whose `begin`, `after_loop` and `end` are called.
      steps: most steps; None for all of the input.
      steps_per_loop: most steps in one call; or a duration, which bounds one where it
        is shorter than an evaluation's calls.

    Returns:
      The loss and metrics over all steps, at the global step of `run`; its `num_steps`
      are eval steps.
    """
    window = Window(metrics)
    metrics.host.begin()
    summaries: dict[str, Seen] = {}
    # Known at the end, for the last report.
    at_end: dict[str, Any] = {}

    def report() -> Report:
        # The loop counts eval steps, and a report is about the training's step.
        made = window.report()
        values = {**made.metrics, **at_end}
        return dataclasses.replace(
            made, step=run.step, metrics=values, summaries=summaries
        )

    run.read_report = report
    for hook in hooks:
        call_method("hook", hook, "begin", run)
    most_secs, most = _MOST_EVAL_SECS, steps_per_loop
    if isinstance(most, str):
        most_secs, most = min(most_secs, durations.secs_of(most) / 2), _MOST_EVAL_STEPS
    done, ended, size = 0, False, min(_FIRST_EVAL_STEPS, most)
    total = feed.num_steps if steps is None else steps
    say = _Saying(run, total)
    shown = progress.bar("eval", last_step=total, shown=run.shows_progress)
    iterator = feed.iterator()
    with shown as bar:
        while not (ended or done == steps or run.agree(bool(run.stop_reasons))):
            stop = done + size if steps is None else min(done + size, steps)
            (segment,) = compiled(iterator, done, [stop])
            window.add(segment)
            summaries = merged_seen([summaries, segment.summaries])
            done, ended = segment.step, segment.ended
            if bar:
                bar.move(done)
            say(done)
            # All processes have to take the same number of steps in a call, and measure
            # different times.
            if size < most and not run.agree(segment.seconds > most_secs):
                size = min(2 * size, most)
            for hook in hooks:
                call_method("hook", hook, "after_loop", run)
    at_end.update(as_arrays(metrics.host.results()))
    for hook in hooks:
        call_method("hook", hook, "end", run)
    return report()


class _Saying:
    """Says in the log, from time to time, how far a slow evaluation is."""

    def __init__(
        self,
        run: Run,
        total: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._total = total
        self._clock = clock
        self._began = self._said_at = clock()

    def __call__(self, done: int) -> None:
        """Says how many steps are done, if it is time to."""
        now = self._clock()
        if not self._run.leads or now - self._said_at < _SAY_SECS:
            return
        self._said_at = now
        rate = done / (now - self._began)
        words = [
            "eval",
            f"step {self._run.step}",
            f"{done} steps",
            f"{rate:.4g} steps/s",
        ]
        if self._total is not None:
            words[2] = f"{done} of {self._total} steps"
            words.append(f"{progress.time_left(self._total - done, rate)} left")
        logging.info("%s", " | ".join(words))
