"""The best checkpoints of a model_dir, by the record of its evaluations.

`best.json` says by which metrics checkpoints are to stay, and which ones these are. Its
rules are what retention and `checkpoint_path="best"` go by. Which checkpoints are best
is computed anew from the record each time: what the file says of that is for people.
"""

import dataclasses
import json
import math
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pipeline.model_dir import atomic_file, evaluation_record
from pipeline.process.refusals import RefusedTypeError

FILE = "best.json"

# Whether a checkpoint is there, by its name, "model.ckpt-10", and its identity: whole,
# and the one that was evaluated, not another one of its step.
IsThere = Callable[[str, str], bool]

_ENDS = {1: "st", 2: "nd", 3: "rd"}


@dataclasses.dataclass(frozen=True)
class Rule:
    """A reason for which checkpoints stay: the k best by a metric of an evaluation.

    Attributes:
      evaluation: folder of the evaluation in model_dir, "eval" or "eval_NAME".
      metric: name of the metric.
      higher_is_better: whether more is better.
      k: number of checkpoints that stay.
    """

    evaluation: str
    metric: str
    higher_is_better: bool
    k: int = 1


@dataclasses.dataclass(frozen=True)
class Best:
    """One of the best checkpoints.

    Attributes:
      step: its global step.
      path: its path prefix, relative to model_dir.
      value: the metric's value.
      why: reason in words, "the highest accuracy of 7 evaluations".
      metrics: all metrics of the evaluation, by name.
    """

    step: int
    path: str
    value: float
    why: str
    metrics: Mapping[str, Any]


def ranked(model_dir: str, rule: Rule, is_there: IsThere) -> list[Best]:
    """Returns the best checkpoints that are there, the best one first.

    Of equal values the earlier step is better. NaN is never among them, and neither is
    an evaluation that does not say which checkpoint it is of.

    Args:
      model_dir: folder of the run.
      rule: metric to go by, and how many there are at most.
      is_there: function that tells whether a checkpoint is there.
    """
    by_step = {
        line.step: line
        for line in evaluation_record.read(os.path.join(model_dir, rule.evaluation))
        if _is_number(line.metrics.get(rule.metric))
    }
    sign = -1 if rule.higher_is_better else 1
    lines = sorted(
        by_step.values(), key=lambda line: (sign * line.metrics[rule.metric], line.step)
    )
    found: list[Best] = []
    for place, line in enumerate(lines, 1):
        if len(found) == rule.k:
            break
        name, identity = line.checkpoint, line.identity
        if name and identity and is_there(name, identity):
            most = "highest" if rule.higher_is_better else "lowest"
            most = most if place == 1 else f"{_ordinal(place)} {most}"
            why = f"the {most} {rule.metric} of {len(lines)} evaluations"
            value = line.metrics[rule.metric]
            found.append(Best(line.step, name, value, why, line.metrics))
    return found


def rules(model_dir: str) -> list[Rule]:
    """Returns the rules of `best.json`; none where there is no such file."""
    return list(_read(model_dir) or ())


def kept(model_dir: str, is_there: IsThere) -> set[str]:
    """Returns the names of the checkpoints that are to stay, "model.ckpt-10".

    Where `best.json` names another one it is written anew: the caller may delete that.

    Args:
      model_dir: folder of the run.
      is_there: function that tells whether a checkpoint is there.
    """
    said = _read(model_dir)
    if not said:
        return set()
    found = {rule: ranked(model_dir, rule, is_there) for rule in said}
    names = {best.path for bests in found.values() for best in bests}
    if not names.issuperset(name for listed in said.values() for name in listed):
        _write(model_dir, found)
    return names


def write(
    model_dir: str,
    rules_now: Sequence[Rule],
    is_there: IsThere,
    *,
    replaced: Collection[str] | None = None,
) -> dict[Rule, list[Best]]:
    """Writes `best.json`: its rules, and which checkpoints are best now.

    Args:
      model_dir: folder of the run.
      rules_now: rules to go by from now on.
      is_there: function that tells whether a checkpoint is there.
      replaced: folders of the evaluations whose rules these are; the rules of others
        stay. None for all.

    Returns:
      The best checkpoints by rule, also by the rules that stayed.
    """
    said = _read(model_dir)
    others = [r for r in said or () if replaced is not None]
    others = [r for r in others if r.evaluation not in replaced]
    found = {
        rule: ranked(model_dir, rule, is_there)
        for rule in _merged([*others, *rules_now])
    }
    if found or said is not None:
        _write(model_dir, found)
    return found


def _merged(given: Sequence[Rule]) -> list[Rule]:
    """Returns one rule for each metric of an evaluation: the one that keeps most."""
    largest: dict[tuple[str, str], Rule] = {}
    for rule in given:
        key = rule.evaluation, rule.metric
        if key not in largest or largest[key].k < rule.k:
            largest[key] = rule
    return list(largest.values())


def _write(model_dir: str, found: Mapping[Rule, Sequence[Best]]) -> None:
    """Writes the file, or removes it where there are no rules.

    An evaluator and the training may both write. Each writes all that there is.
    """
    path = os.path.join(model_dir, FILE)
    if not found:
        atomic_file.remove(path)
        return
    content: dict[str, dict[str, Any]] = {}
    for rule, bests in found.items():
        content.setdefault(rule.evaluation, {})[rule.metric] = {
            "higher_is_better": rule.higher_is_better,
            "k": rule.k,
            "best": [dataclasses.asdict(best) for best in bests],
        }
    text = json.dumps(content, indent=2, default=lambda value: value.tolist())
    text = f"{text}\n"
    if atomic_file.read(path) != text:
        atomic_file.write(path, text, writer=f"{os.getpid()}-{threading.get_ident()}")


def _read(model_dir: str) -> dict[Rule, list[str]] | None:
    """Returns the names that are listed by each rule; None where there is no file."""
    return atomic_file.read_json(
        os.path.join(model_dir, FILE),
        _parsed,
        instead="what is to stay is not known until the next evaluation",
    )


def _parsed(content: Any) -> dict[Rule, list[str]]:
    found = {}
    for evaluation, by_metric in content.items():
        for metric, held in by_metric.items():
            higher, k = held["higher_is_better"], held["k"]
            if not isinstance(higher, bool) or not isinstance(k, int):
                raise RefusedTypeError(f"higher_is_better {higher!r}, k {k!r}")
            names = [best["path"] for best in held["best"]]
            found[Rule(evaluation, metric, higher, k)] = names
    return found


def _ordinal(place: int) -> str:
    is_teen = place % 100 in (11, 12, 13)
    return f"{place}{'th' if is_teen else _ENDS.get(place % 10, 'th')}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not math.isnan(value)
