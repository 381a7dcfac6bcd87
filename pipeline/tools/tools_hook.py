"""Hands the numbers of a training to the tools of `RunConfig.tools`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from pipeline.contract.hooks import Hook, Run, Tool
from pipeline.hooks import preemption, summary
from pipeline.hooks.stock import measured


def hand_over(
    tools: Sequence[Tool],
    hparams: Mapping[str, Any],
    run: Run,
    evaluations: Iterable[tuple[str | None, Mapping[str, Any]]],
) -> None:
    """Hands evaluations to the tools of a training that has ended.

    Args:
      tools: tools in the order in which they are called.
      hparams: hyperparameters by name.
      run: run at the step at which it has ended.
      evaluations: name and metrics of each evaluation.
    """
    hook = ToolsHook(tools, hparams)
    hook.begin(run)
    for name, metrics in evaluations:
        hook.after_evaluation(run, name, metrics)
    hook.close()


class ToolsHook(Hook):
    """Calls the tools at the steps at which summaries are written.

    One process does, the one that leads.
    """

    only_watches = True

    def __init__(
        self,
        tools: Sequence[Tool],
        hparams: Mapping[str, Any],
        every_steps: int | None = 100,
    ) -> None:
        """Takes the tools.

        Args:
          tools: tools in the order in which they are called.
          hparams: hyperparameters by name.
          every_steps: steps between two windows; None or 0 for one at the run's end.
        """
        self.every_steps = every_steps
        self._tools = tools
        self._hparams = hparams
        self._open: list[Tool] = []
        self._failed: set[int] = set()

    def begin(self, run: Run) -> None:
        self._failed = set()
        self._open = []
        if run.leads:
            begun = [self._call(t, "begin", run, self._hparams) for t in self._tools]
            # One that could not begin has nowhere to write to.
            self._open = [t for t, ok in zip(self._tools, begun, strict=True) if ok]

    def after_step(self, run: Run) -> None:
        if self._open:
            self._write(run.step, measured(run.report), "train")

    def after_evaluation(
        self, run: Run, name: str | None, metrics: Mapping[str, Any]
    ) -> None:
        values = dict(metrics)
        step = values.pop("global_step")
        self._write(step, values, f"eval_{name}" if name else "eval")

    def end(self, run: Run) -> None:
        # The window of a run that a signal broke off is saved, and goes on.
        if self._open and not preemption.is_stopped(run) and run.report.num_steps:
            self.after_step(run)
        self.close()

    def close(self) -> None:
        """Ends with the tools."""
        for tool in self._open:
            self._call(tool, "end")
        self._open = []

    def _write(self, step: int, values: Mapping[str, Any], name: str) -> None:
        for tool in self._open:
            self._call(tool, "write", step, summary.by_element(values), name)

    def _call(self, tool: Tool, method: str, *args: Any) -> bool:
        """Calls a tool's method; returns whether it raised nothing."""
        try:
            getattr(tool, method)(*args)
        # Whatever a tool raises, a network's error or a bug: training is worth more.
        except Exception as error:
            if id(tool) not in self._failed:
                self._failed.add(id(tool))
                logging.warning(
                    "train | %r.%s raised %s: %s | training goes on, and what the tool "
                    "raises from now on is not said.",
                    tool,
                    method,
                    type(error).__name__,
                    error,
                )
            return False
        return True
