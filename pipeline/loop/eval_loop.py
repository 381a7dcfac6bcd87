"""The evaluation loop: over all of an input, a few steps at a time."""

import dataclasses
from collections.abc import Sequence

from pipeline.contract.hooks import Hook, Report, Run
from pipeline.contract.user_errors import call_method
from pipeline.feed.feed import ReadableFeed, opened
from pipeline.loop.compiled_loop import StepsLoop
from pipeline.loop.metrics import MetricSet
from pipeline.loop.watchers import Window
from pipeline.process import progress

# An evaluation begins with so many steps in a call, and doubles them while a call takes
# less than so long: it shows how far it is, and hears a signal.
_FIRST_EVAL_STEPS = 16
_MOST_EVAL_SECS = 1.0


def evaluate(
    compiled: StepsLoop,
    metrics: MetricSet,
    feed: ReadableFeed,
    *,
    run: Run,
    hooks: Sequence[Hook],
    steps: int | None,
    steps_per_loop: int,
) -> Report:
    """Runs the evaluation loop over the input.

    Args:
      compiled: the loop over eval steps.
      metrics: of the mode EVAL.
      feed: the input.
      run: what hooks see.
      hooks: `begin`, `after_loop` and `end` are called.
      steps: most steps; None for all of the input.
      steps_per_loop: most steps in one call.

    Returns:
      What it came to, at the global step of `run`.
    """
    window = Window(metrics)

    def report() -> Report:
        return dataclasses.replace(window.report(), step=run.step)

    run.read_report = report
    for hook in hooks:
        call_method("hook", hook, "begin", run)
    done, ended, size = 0, False, min(_FIRST_EVAL_STEPS, steps_per_loop)
    total = feed.num_steps if steps is None else steps
    shown = progress.bar("eval", last_step=total, shown=run.shows_progress)
    with opened(feed) as box, shown as bar:
        while not (ended or done == steps or run.agree(bool(run.stop_reasons))):
            stop = done + size if steps is None else min(done + size, steps)
            (segment,) = compiled(box[0], done, [stop])
            window.add(segment)
            done, ended = segment.step, segment.ended
            if bar:
                bar.move(done)
            # All processes take as many steps a call.
            if size < steps_per_loop and not run.agree(
                segment.seconds > _MOST_EVAL_SECS
            ):
                size = min(2 * size, steps_per_loop)
            for hook in hooks:
                call_method("hook", hook, "after_loop", run)
    for hook in hooks:
        call_method("hook", hook, "end", run)
    return report()
