# SPDX-License-Identifier: Apache-2.0
"""The best checkpoints by metrics of evaluations: `best.json` has the rules and the winners.

The rules count: winners are computed from the records of evaluations each time, and are
written for people.
"""

import dataclasses
import json
import os
from collections.abc import Iterable
from typing import Any

from . import records
from .evaluation_results import Evaluated, best
from .files import read_json, write_atomic

FILE = "best.json"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule by which checkpoints stay.

    Attributes:
      evaluation: folder of the evaluation, `eval` or `eval_NAME`.
      metric: name of the metric.
      higher_is_better: whether larger values are better.
      k: number of checkpoints that stay.
      run_id: id of the run; evaluations of an earlier one do not count. None counts all.
    """

    evaluation: str
    metric: str
    higher_is_better: bool
    k: int = 1
    run_id: str | None = None


def write(model_dir: str, rules: Iterable[Rule], existing: Iterable[str]) -> None:
    """Writes the rules and their winners.

    Args:
      model_dir: folder of the run.
      rules: rules from now on.
      existing: file names of the checkpoints that exist, `model.ckpt-20`.
    """
    content = [
        {
            **dataclasses.asdict(rule),
            "best": [
                {
                    "step": each.step,
                    "path": each.checkpoint,
                    "value": each.metrics[rule.metric],
                    "why": f"{'highest' if rule.higher_is_better else 'lowest'} {rule.metric}, "
                    f"rank {rank}",
                    "metrics": each.metrics,
                }
                for rank, each in enumerate(winners(model_dir, rule, existing), 1)
            ],
        }
        for rule in rules
    ]
    text = json.dumps(content, indent=2, default=lambda value: value.tolist())
    write_atomic(os.path.join(model_dir, FILE), f"{text}\n")


def rules(model_dir: str) -> list[Rule]:
    """Returns the rules of `best.json`; none without that file."""

    def parse(content: Any) -> list[Rule]:
        names = {field.name for field in dataclasses.fields(Rule)}
        return [Rule(**{name: each[name] for name in names & set(each)}) for each in content]

    return read_json(os.path.join(model_dir, FILE), parse) or []


def winners(model_dir: str, rule: Rule, existing: Iterable[str]) -> list[Evaluated]:
    """Returns the best evaluations whose checkpoints exist, the best first."""
    folder = os.path.join(model_dir, rule.evaluation)
    evaluated, _ = records.read(folder, run_id=rule.run_id)
    present = set(existing)
    return best(
        [each for each in evaluated if each.checkpoint in present],
        rule.metric,
        rule.k,
        higher_is_better=rule.higher_is_better,
    )
