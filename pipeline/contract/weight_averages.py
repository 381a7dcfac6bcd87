# SPDX-License-Identifier: Apache-2.0
"""Averages of the weights: of which variables, over which steps, and how much each step counts.

    average_n = average_(n-1) + share_n * (weights - average_(n-1))

holds for both kinds, with n the number of steps that count. The first share is 1, so the stored
value is the average itself and is not corrected when it is read.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from ..errors import UserValueError
from .checks import Check, boolean, check, check_fields, choice, integer, is_number
from .old_names import reject_unknown_arguments

LIVE, AVERAGE, BOTH = "live", "average", "both"


def _are_patterns(value: Any) -> bool:
    patterns = [value] if isinstance(value, str) else list(value)
    return bool(patterns) and all(pattern and re.compile(pattern) for pattern in patterns)


_CHECKS = {
    "modules": Check(
        _are_patterns, "regular expressions of names", "'network/dense/.*'", optional=True
    ),
    "start_step": integer(0, example=1000),
    "every": integer(1, example=10),
    "evaluate": choice(BOTH, AVERAGE, LIVE),
    "serve": choice(AVERAGE, LIVE),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Average:
    """Options of both kinds of averages.

    Floating-point variables have an average in float32, except those of optimizers; it is the
    weights themselves until a step counts. Checkpoints have it below `driver/ema/` or
    `driver/swa/`: if one lacks it, the average starts again, and if a run keeps none, it is
    dropped. With parameter servers the average moves when the chief waits for the workers, for all
    steps since the last time.

    Attributes:
      modules: regular expressions, or one. Variables are averaged if one of them matches all of
        their name, `network/dense/kernel`, or the name of their module. None for all.
      start_step: global step after which steps count.
      every: number of steps from one that counts to the next.
      evaluate: weights that evaluations measure: 'both', with the results of the average under
        `ema/` or `swa/`; 'average' or 'live'.
      serve: weights that predictions and exports take: 'average' or 'live'.
    """

    kind: ClassVar[str] = ""
    checks: ClassVar[Mapping[str, Check]] = {}

    modules: str | Sequence[str] | None = None
    start_step: int = 0
    every: int = 1
    evaluate: str = BOTH
    serve: str = AVERAGE

    def __post_init__(self) -> None:
        check_fields(self, {**_CHECKS, **self.checks})

    @property
    def patterns(self) -> tuple[str, ...]:
        """The expressions of `modules`; empty for all variables."""
        return (self.modules,) if isinstance(self.modules, str) else tuple(self.modules or ())

    @property
    def counts_each_step(self) -> bool:
        """Whether all steps count."""
        return self.start_step == 0 and self.every == 1

    def chooses(self, name: str) -> bool:
        """Returns whether a variable is averaged, by its full name."""
        return not self.patterns or any(matches(pattern, name) for pattern in self.patterns)

    def num_counted(self, step: tf.Tensor) -> tf.Tensor:
        """Returns how many of the steps up to global step `step`, int64, count."""
        return tf.maximum(step - self.start_step, 0) // self.every

    def share(self, number: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """Returns the share of the current weights in the average; exactly 1 for the first.

        Args:
          number: float64 scalar, number of steps that count, with the new ones.
          new: float64 scalar, number of steps that the current weights count for, mostly 1.
        """
        raise NotImplementedError


@reject_unknown_arguments
@dataclasses.dataclass(frozen=True)
class ExponentialAverage(Average):
    """An average in which each step counts `decay` times as much as the next one.

    `tf.train.ExponentialMovingAverage` is the same with `debias=False`.

    Attributes:
      decay: factor between 0 and 1; 0.999 averages over about 1,000 steps.
      debias: whether the first steps are weighted by the same law, as in Adam. False: the average
        begins with the weights of the first step in place of all steps before it, as in Keras'
        `use_ema`.
    """

    kind: ClassVar[str] = "ema"
    checks: ClassVar[Mapping[str, Check]] = {
        "decay": Check(lambda v: is_number(v) and 0 < v < 1, "a number between 0 and 1", "0.999"),
        "debias": boolean(),
    }

    decay: float = 0.999
    _: dataclasses.KW_ONLY
    debias: bool = True

    def share(self, number: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """See `Average`."""
        # expm1, since 1 - decay ** n would lose digits.
        log = math.log(self.decay)
        part = -tf.math.expm1(new * log)
        if self.debias:
            return part / -tf.math.expm1(number * log)
        return tf.where(number <= new, tf.ones_like(part), part)


@reject_unknown_arguments
@dataclasses.dataclass(frozen=True)
class StochasticWeightAverage(Average):
    """The mean of the weights after the steps that count (SWA, Izmailov et al., 2018).

    Attributes:
      start_step: global step after which steps count, such as three quarters of the training.
    """

    kind: ClassVar[str] = "swa"

    start_step: int = dataclasses.field()

    def share(self, number: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """See `Average`."""
        return new / number


KINDS = (ExponentialAverage, StochasticWeightAverage)


def matches(pattern: str, name: str) -> bool:
    """Returns whether an expression matches the name of a variable, or of its module."""
    return any(re.fullmatch(pattern, each) for each in (name, name.partition("/")[0]))


def to_evaluate(weights: str | None, average: Average | None) -> tuple[str, ...]:
    """Returns which weights to evaluate: those of a caller, or by `Average.evaluate`."""
    chosen = _chosen(weights, average, average.evaluate if average else LIVE, (LIVE, AVERAGE, BOTH))
    return (LIVE, AVERAGE) if chosen == BOTH else (chosen,)


def to_serve(weights: str | None, average: Average | None) -> str:
    """Returns which weights to predict with or to export."""
    return _chosen(weights, average, average.serve if average else LIVE, (LIVE, AVERAGE))


def measured_on(metric: str, average: Average | None) -> str | None:
    """Returns on which weights a metric of an evaluation was measured; None without an average."""
    if average is None or average.evaluate != BOTH:
        return average and average.evaluate
    return AVERAGE if metric.startswith(f"{average.kind}/") else LIVE


def _chosen(
    weights: str | None, average: Average | None, default: str, choices: Sequence[str]
) -> str:
    check("weights", weights, choice(*choices)._replace(optional=True))
    if weights in (AVERAGE, BOTH) and average is None:
        raise UserValueError(
            f"weights is {weights!r}, and RunConfig.average is None: expected 'live'. Set "
            "RunConfig(average=ExponentialAverage(0.999)) to train an average."
        )
    return weights or default
