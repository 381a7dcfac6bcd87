"""KeepBest: the checkpoints that stay as long as an evaluation finds them best."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.hooks import early_stopping
from pipeline.hooks.metric_hook import StoppingRule
from pipeline.mistakes import checks, habits
from pipeline.process import metric_names
from pipeline.process.refusals import RefusedKeyError, RefusedValueError, near


@habits.named
@dataclasses.dataclass(frozen=True)
class KeepBest:
    """The k best checkpoints by a metric of an evaluation, which stay.

    They stay beside the newest `RunConfig.keep_checkpoint_max`. One that is displaced
    by a better one is deleted as any old one is. `model_dir/best.json` lists them, and
    `checkpoint_path="best"` takes the best one. Of equal values the earlier stays; NaN
    is never best.

    Attributes:
      metric: name of the metric, "loss" included.
      k: number of checkpoints that stay.
      higher_is_better: whether more is better. None: by the metric's name, as of
        "accuracy" or "loss"; a name that does not tell is refused.
    """

    metric: str
    k: int = 1
    _: dataclasses.KW_ONLY
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise RefusedValueError(
                f"KeepBest.metric is {self.metric!r}: write the name of a metric, "
                "KeepBest('accuracy')."
            )
        if not checks.is_int(self.k) or self.k < 1:
            raise RefusedValueError(
                f"KeepBest.k is {self.k!r}: write an int > 0, KeepBest("
                f"{self.metric!r}, 3)."
            )
        higher = self.higher_is_better
        if higher is None:
            object.__setattr__(self, "higher_is_better", is_higher_better(self.metric))
        elif not isinstance(higher, bool):
            raise RefusedValueError(
                f"KeepBest.higher_is_better is {higher!r}: write True or False."
            )


def is_higher_better(metric: str) -> bool:
    """Returns whether more of a metric is better, by its name.

    Args:
      metric: name of the metric, such as "ema/top_5_accuracy" or "valMSE".

    Raises:
      ValueError: the name does not tell.
    """
    higher = metric_names.higher_is_better(metric)
    if higher is None:
        raise RefusedValueError(
            f"KeepBest({metric!r}) does not say whether more is better: write "
            f"KeepBest({metric!r}, higher_is_better=True), or False."
        )
    return higher


def checked(keep_best: Any) -> tuple[KeepBest, ...]:
    """Returns the KeepBests that a user gave an EvalSpec, one or several.

    Raises:
      TypeError: an item is no KeepBest.
      ValueError: two of them are of the same metric.
    """
    given = (keep_best,) if isinstance(keep_best, KeepBest) else keep_best or ()
    checks.check_all("EvalSpec.keep_best", given, KeepBest)
    metrics = [each.metric for each in given]
    if len(set(metrics)) < len(metrics):
        raise RefusedValueError(
            f"EvalSpec.keep_best names the metrics {metrics}: give one KeepBest a "
            "metric."
        )
    return tuple(given)


def with_rules(
    keep_best: Sequence[KeepBest], rules: Sequence[StoppingRule]
) -> tuple[KeepBest, ...]:
    """Returns the KeepBests, and one for each rule that goes back to the best.

    Args:
      keep_best: KeepBests of an evaluation.
      rules: its rules of early stopping.

    Raises:
      ValueError: a rule takes the lowest value of a metric for the best, and a KeepBest
        the highest, or the other way round.
    """
    found = {each.metric: each for each in keep_best}
    for rule in early_stopping.that_restore(rules):
        higher = rule.higher_is_better
        own = KeepBest(rule.metric, higher_is_better=higher)
        if found.setdefault(rule.metric, own).higher_is_better != higher:
            raise RefusedValueError(
                f"{rule.title} and {found[rule.metric]} do not agree on what is best: "
                f"write KeepBest({rule.metric!r}, higher_is_better={higher})."
            )
    return tuple(found.values())


def check(keep_best: Sequence[KeepBest], metrics: Mapping[str, Any]) -> None:
    """Checks that an evaluation has the metrics by which checkpoints are to stay.

    Args:
      keep_best: KeepBests of the evaluation.
      metrics: values by name.

    Raises:
      KeyError: it has no such metric; lists those that it has.
      ValueError: the metric is an array.
    """
    for each in keep_best:
        if each.metric not in metrics:
            names = sorted(metrics)
            raise RefusedKeyError(
                f"KeepBest({each.metric!r}) goes by a metric that the evaluation does "
                f"not have.{near(each.metric, names)} Write one that it has: {names}."
            )
        if np.ndim(metrics[each.metric]) > 0:
            raise RefusedValueError(
                f"KeepBest({each.metric!r}) goes by an array of shape "
                f"{np.shape(metrics[each.metric])}: write the name of a metric that is "
                "a number."
            )
