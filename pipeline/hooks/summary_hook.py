# SPDX-License-Identifier: Apache-2.0
"""Writes scalars and summaries for TensorBoard."""

import os
from collections.abc import Mapping
from typing import Any

from ..contract.hooks import Hook, Report, RunContext
from ..contract.summaries import Summary
from .events import EventWriter


class StepCounterHook(Hook):
    """Writes the speed only, as `global_step/sec`."""

    def __init__(self, every_steps: int | None = 100) -> None:
        """Sets the steps between two points; None writes none."""
        self.every_steps = every_steps
        self._writer: EventWriter | None = None

    def begin(self, run: RunContext) -> None:
        """Prepares the file."""
        self._writer = EventWriter(run.model_dir)

    def after_step(self, run: RunContext) -> None:
        """Writes a point, in the process that leads."""
        if run.is_chief:
            report = run.report
            self._writer.write(report.step, self._values(report))
            self._writer.write_summaries(report.step, report.summaries)

    def end(self, run: RunContext) -> None:
        """Writes a point for the rest of the steps."""
        report = run.report
        if run.is_chief and report.num_steps and self.every_steps:
            self._writer.write(report.step, self._values(report))

    def _values(self, report: Report) -> Mapping[str, Any]:
        return {"global_step/sec": report.steps_per_sec}


class SummaryHook(StepCounterHook):
    """Writes loss, metrics, scalars, learning rates, speed and summaries to `model_dir`.

    Evaluations are written to their folders, with the same tags.
    """

    wants_summaries = True

    def __init__(self, every_steps: int | None = 100, *, writes_evaluations: bool = True) -> None:
        """Sets the steps between two points.

        Args:
          every_steps: steps between two points of the training; None writes none.
          writes_evaluations: False if an evaluator job writes them.
        """
        super().__init__(every_steps)
        self._writes_evaluations = writes_evaluations
        self._evaluations: dict[str, EventWriter] = {}

    def begin(self, run: RunContext) -> None:
        """Prepares the files."""
        super().begin(run)
        self._evaluations = {}

    def after_evaluation(self, run: RunContext, name: str, metrics: Mapping[str, Any]) -> None:
        """Writes a point of an evaluation."""
        if run.is_chief and self._writes_evaluations:
            folder = os.path.join(run.model_dir, f"eval_{name}" if name else "eval")
            writer = self._evaluations.setdefault(folder, EventWriter(folder))
            write_evaluation(writer, metrics, run.summaries.get(name, {}))

    def _values(self, report: Report) -> Mapping[str, Any]:
        return values_of(report)


def values_of(report: Report) -> dict[str, Any]:
    """Returns loss, metrics, scalars, learning rates and speed by the names of their curves."""
    wait = {} if report.input_wait is None else {"input_wait": report.input_wait}
    return {
        "loss": report.loss,
        **report.metrics,
        **report.scalars,
        "global_step/sec": report.steps_per_sec,
        "examples/sec": report.examples_per_sec,
        **wait,
    }


def write_evaluation(
    writer: EventWriter, metrics: Mapping[str, Any], summaries: Mapping[str, Summary]
) -> None:
    """Writes the results of an evaluation at its `global_step`."""
    values = {name: value for name, value in metrics.items() if name != "global_step"}
    writer.write(metrics["global_step"], values)
    writer.write_summaries(metrics["global_step"], summaries)
