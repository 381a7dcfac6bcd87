"""Connects rules on evaluations with a training: their checks, and the return to the best weights.

a rule with restore_best asks to stop
write which rule returns to which step, so that a restart ends there at once
restore the best checkpoint, delete the newer ones
evaluate and export as at each end
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from ..contract.hooks import Hook, Run
from ..contract.run_config import RunConfig
from ..errors import UserValueError
from ..hooks.metric_hook import MetricHook
from ..hooks.rules import StopIfNoImprovement, StoppingRule
from ..model_dir.files import read_json, write_atomic
from .specs import EvalSpec

_FILE = "restored_best.json"


def bound(specs: Iterable[EvalSpec]) -> list[StoppingRule]:
    """Returns the rules of evaluations as hooks of the training."""
    return [
        dataclasses.replace(rule, evaluation=spec.name)
        for spec in specs
        for rule in spec.early_stopping
    ]


def check(
    hooks: Sequence[Hook], metrics: Mapping[str, Sequence[str] | None], config: RunConfig
) -> None:
    """Checks that hooks that follow a metric will get it.

    Args:
      hooks: hooks of a training.
      metrics: names of the metrics by the name of the evaluation; None where an evaluator job
        makes it.
      config: how to run.

    Raises:
      UserValueError: there is no such evaluation or metric, or no checkpoint to return to.
    """
    for hook in hooks:
        if not isinstance(hook, MetricHook):
            continue
        name = hook.evaluation or ""
        if name not in metrics:
            raise UserValueError(
                f"{hook.title}.evaluation is {hook.evaluation!r}, and the evaluations of this "
                f"training are {sorted(metrics)}: expected one of them. Set it to the name of an "
                "EvalSpec of train_and_evaluate."
            )
        if metrics[name] is not None:
            hook.check_metric(metrics[name])
        restores = isinstance(hook, StopIfNoImprovement) and hook.restore_best
        if restores and (metrics[name] is None or config.save_checkpoints_steps == 0):
            raise UserValueError(
                f"{hook.title}.restore_best is True: expected checkpoints and evaluations of this "
                "process. Set RunConfig(evaluation='inline'), and save_checkpoints_steps above 0."
            )


class BestWeights:
    """The return of one training to its best checkpoint."""

    def __init__(self, hooks: Sequence[Hook], model_dir: str, run_id: str | None) -> None:
        """Takes the hooks of the training.

        Args:
          hooks: hooks of the training.
          model_dir: directory of the run.
          run_id: id of the run.
        """
        rules = [hook for hook in hooks if isinstance(hook, StopIfNoImprovement)]
        self._rules = [rule for rule in rules if rule.restore_best]
        self._path = os.path.join(model_dir, _FILE)
        self._run_id = run_id

    def begin(self, run: Run) -> None:
        """Ends a training at once that one of the rules has ended at this step before."""
        known = read_json(self._path, dict) if self._rules and run.leads else None
        for rule in self._rules:
            if known == self._content(rule, run.step, (known or {}).get("reason")):
                run.request_stop(known["reason"])

    def rule(self, run: Run) -> StopIfNoImprovement | None:
        """Returns the rule that ended the training; None if none of them did."""
        for rule in self._rules:
            if f"{rule.title}: {rule.decide(rule.history(run))}" in run.stop_reasons:
                return rule
        return None

    def write(self, rule: StopIfNoImprovement, run: Run, step: int) -> None:
        """Writes that the training ends at an earlier step.

        Args:
          rule: the rule.
          run: the run, at the step that it reached.
          step: step of the best checkpoint.
        """
        reason = f"{rule.title}: {rule.decide(rule.history(run))}"
        logging.info("train | returning from step %d to the best one, %d", run.step, step)
        write_atomic(self._path, json.dumps(self._content(rule, step, reason), indent=2))

    def _content(self, rule: StopIfNoImprovement, step: int, reason: Any) -> dict[str, Any]:
        return {"run_id": self._run_id, "rule": repr(rule), "step": step, "reason": reason}
