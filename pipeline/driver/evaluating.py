"""One evaluation of a checkpoint, or of what is live, on all of an input."""

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.contract.hooks import Hook, Report, Run
from pipeline.contract.spec import ModeKeys
from pipeline.driver.runtime_pair import Runtimes
from pipeline.feed import feed as input_lib
from pipeline.loop import eval_loop


def evaluate(
    runtimes: Runtimes,
    input_fn: Callable[..., Any],
    *,
    steps: int | None = None,
    hooks: Sequence[Hook] = (),
    checkpoint_path: str | None = None,
) -> tuple[Run, Report]:
    """Evaluates once.

    Args:
      runtimes: runtimes of the Estimator, of which one evaluates.
      input_fn: function that returns the data, see `pipeline.feed.feed`.
      steps: most steps; None for all of the input.
      hooks: hooks whose `begin`, `after_loop` and `end` are called.
      checkpoint_path: path prefix of the checkpoint; None as in `Estimator.evaluate`.

    Returns:
      The run at the step of the values, and the report of all examples.

    Raises:
      ValueError: an empty input, an endless one without `steps`, no checkpoint.
    """
    checkpoint_path = runtimes.found(checkpoint_path)
    runtime = runtimes.to_use(checkpoint_path, together=True)
    feed = runtime.feed(input_fn, ModeKeys.EVAL)
    if feed.plan.endless and steps is None:
        raise input_lib.endless_input_error(input_fn)
    # Before values are loaded: this builds layers, and so makes their variables.
    program = runtime.program(ModeKeys.EVAL, feed)
    runtimes.prepare(runtime, checkpoint_path, "evaluating", together=True)
    run = runtime.run()
    report = eval_loop.evaluate(
        program.compiled,
        program.metrics,
        feed,
        run=run,
        hooks=hooks,
        steps=steps,
        steps_per_loop=runtime.config.steps_per_loop,
    )
    if not report.num_steps:
        raise input_lib.empty_input_error(input_fn, ModeKeys.EVAL)
    return run, report


def metrics(runtimes: Runtimes, input_fn: Callable[..., Any]) -> dict[str, Any]:
    """Returns what an evaluation will return, of no example yet; computes nothing.

    Args:
      runtimes: runtimes of the Estimator, of which one evaluates.
      input_fn: function that returns the data, see `pipeline.feed.feed`.
    """
    runtime = runtimes.evaluating
    traced = runtime.program(ModeKeys.EVAL, runtime.feed(input_fn, ModeKeys.EVAL))
    values = traced.metrics.results([traced.metrics.zeros()])
    return {"loss": 0.0, **values}
