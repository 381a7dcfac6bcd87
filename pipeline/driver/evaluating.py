"""Evaluations of a checkpoint, of what is live, or of all checkpoints of a run."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from pipeline.checkpoints import checkpoint, lease
from pipeline.checkpoints.checkpoint_reader import UnreadableCheckpointError
from pipeline.contract import averages
from pipeline.contract.hooks import Hook, Report, Run
from pipeline.contract.spec import ModeKeys
from pipeline.driver.runtime_pair import Runtimes
from pipeline.feed import feed as input_lib
from pipeline.hooks import summary
from pipeline.hooks.stock import log_line
from pipeline.loop import eval_loop
from pipeline.model_dir import storage
from pipeline.process.refusals import RefusedValueError


def evaluate(
    runtimes: Runtimes,
    input_fn: Callable[..., Any],
    *,
    steps: int | None = None,
    hooks: Sequence[Hook] = (),
    checkpoint_path: str | None = None,
    weights: str | None = None,
) -> tuple[Run, Report]:
    """Evaluates once, or once by the weights and once by their average.

    Args:
      runtimes: runtimes of the Estimator, of which one evaluates.
      input_fn: function that returns the data, see `pipeline.feed.feed`.
      steps: most steps; None for all of the input.
      hooks: hooks whose `begin`, `after_loop` and `end` are called.
      checkpoint_path: path prefix of the checkpoint; None as in `Estimator.evaluate`.
      weights: 'live', 'average' or 'both'; None for the default of `RunConfig.average`.

    Returns:
      The run at the step of the values, and the report of all examples. Of both, the
      average's loss and metrics stand among the metrics as `ema/loss`.

    Raises:
      ValueError: an empty input, an endless one without `steps`, no checkpoint.
    """
    average = runtimes.config.average
    kinds = averages.to_measure(weights, average)
    checkpoint_path = runtimes.found(checkpoint_path)
    runtime = runtimes.to_use(checkpoint_path, together=True)
    feed = runtime.feed(input_fn, ModeKeys.EVAL)
    if feed.plan.endless and steps is None:
        raise input_lib.endless_input_error(input_fn)
    # Before values are loaded: this builds layers, and so makes their variables.
    program = runtime.program(ModeKeys.EVAL, feed)
    runtimes.prepare(runtime, checkpoint_path, "evaluating", together=True)
    run = runtime.run()

    def measured(which: str) -> Report:
        with runtime.weights(which):
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
        return report

    has_begun = runtime.has_average()
    if averages.AVERAGE in kinds and run.leads:
        logging.info("eval | step %d | %s", run.step, runtime.average_in_words())
    report = measured(kinds[0])
    if len(kinds) > 1:
        # A stop that a hook asked for ends each pass by itself.
        reasons, run.stop_reasons = run.stop_reasons, []
        # What is live is not measured twice.
        other = measured(kinds[1]) if has_begun else report
        # The hooks saw both, and may have asked twice for the same reason.
        run.stop_reasons = list(dict.fromkeys([*reasons, *run.stop_reasons]))
        report = _side_by_side(report, other, average.kind)
    return run, report


def told(
    run: Run, report: Report, name: str | None, writer: summary.Writer
) -> dict[str, Any]:
    """Returns what an evaluation found, in the log and in TensorBoard, too.

    Args:
      run: run at the step of the values.
      report: report of all examples.
      name: name of the evaluation, or None.
      writer: writer of its events, used by the process that leads.
    """
    if run.leads:
        phase = f"eval/{name}" if name else "eval"
        logging.info("%s", log_line(phase, report))
        with storage.writing(run.model_dir, "the summary of the evaluation"):
            writer.scalars(run.step, report.values())
            writer.summaries(run.step, report.summaries)
    return {"loss": report.loss, **report.metrics, "global_step": run.step}


def each_checkpoint(
    model_dir: str, evaluate: Callable[..., dict[str, Any]]
) -> list[dict[str, Any]]:
    """Evaluates every checkpoint of a run, by step; the log has them as a table.

    One that is damaged, or deleted meanwhile, is named in a warning and left out.

    Args:
      model_dir: folder of the run.
      evaluate: function of `checkpoint_path` that evaluates that one.

    Returns:
      The result of each evaluation.

    Raises:
      ValueError: there is no checkpoint that can be read.
    """
    found = []
    for path in checkpoint.committed(model_dir):
        try:
            with lease.reading(path):
                found.append(evaluate(checkpoint_path=path))
        except (lease.CheckpointGoneError, UnreadableCheckpointError) as error:
            logging.warning("eval | %s is left out: %s", path, error)
    if not found:
        raise RefusedValueError(
            f"{model_dir} has no checkpoint to evaluate: train first, or give the "
            "model_dir of a training."
        )
    logging.info("%s", "\n".join(["eval | all checkpoints", *table(found)]))
    return found


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns evaluations as the lines of a table; a column for each number.

    Args:
      found: results of `Estimator.evaluate`, of the same metrics.
    """
    names = [name for name in found[0] if np.ndim(found[0][name]) == 0]
    names.sort(key=lambda name: name != "global_step")
    rows = [names, *([f"{each[name]:.6g}" for name in names] for each in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]


def metrics(runtimes: Runtimes, input_fn: Callable[..., Any]) -> dict[str, Any]:
    """Returns what an evaluation will return, of no example yet; computes nothing.

    Args:
      runtimes: runtimes of the Estimator, of which one evaluates.
      input_fn: function that returns the data, see `pipeline.feed.feed`.
    """
    runtime = runtimes.evaluating
    traced = runtime.program(ModeKeys.EVAL, runtime.feed(input_fn, ModeKeys.EVAL))
    values = traced.metrics.results([traced.metrics.zeros()])
    values = {"loss": 0.0, **values, **dict.fromkeys(traced.metrics.host.names, 0.0)}
    average = runtimes.config.average
    if len(averages.to_measure(None, average)) > 1:
        values |= {f"{average.kind}/{name}": value for name, value in values.items()}
    return values


def _side_by_side(report: Report, other: Report, kind: str) -> Report:
    """Returns a report with those of the average in it, by names of its kind.

    Raises:
      ValueError: model_fn has metrics of these names.
    """
    values = {"loss": other.loss, **other.metrics}
    added = {f"{kind}/{name}": value for name, value in values.items()}
    taken = sorted(added.keys() & report.metrics.keys())
    if taken:
        raise RefusedValueError(
            f"model_fn's metrics {taken} have the names of the average's: name them "
            "otherwise, or evaluate one alone, by ExponentialAverage(evaluate='live')."
        )
    drawn = other.summaries if other is not report else {}
    pictures = {f"{kind}/{name}": seen for name, seen in drawn.items()}
    return dataclasses.replace(
        report,
        metrics={**report.metrics, **added},
        summaries={**report.summaries, **pictures},
    )
