"""Averages of weights: what is averaged, when, and by how much each step counts.

    average_n = average_(n-1) + share_n * (weights - average_(n-1))

holds for each kind, with n the number of steps that were taken in. The first share is
1. So what is stored is the average itself, and nothing has to be corrected on reading.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from pipeline.mistakes import habits
from pipeline.mistakes.checks import is_int, is_number
from pipeline.process.refusals import RefusedValueError

LIVE, AVERAGE, BOTH = "live", "average", "both"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Average:
    """The part that all kinds of averages share.

    Attributes:
      modules: regular expressions, or one; those that match a module's name or a
        variable's full name, `network/dense/.*`, in full are averaged. None for all
        modules but the optimizers. Only floats of a fixed shape have an average.
      start_step: global step after which steps count.
      every: steps from one that counts to the next.
      evaluate: weights that evaluations measure by default: 'both', with the average's
        metrics under `ema/` or `swa/`; 'average' or 'live' alone.
      serve: weights that predictions and exports take by default: 'average' or 'live'.
    """

    kind: ClassVar[str]

    modules: str | Sequence[str] | None = None
    start_step: int = 0
    every: int = 1
    evaluate: str = BOTH
    serve: str = AVERAGE

    def __post_init__(self) -> None:
        own = type(self).__name__
        for name, least in (("start_step", 0), ("every", 1)):
            value = getattr(self, name)
            if not is_int(value) or value < least:
                raise RefusedValueError(
                    f"{own}.{name} is {value!r}: write an integer of at least {least}, "
                    f"such as {name}={max(least, 100)}."
                )
        for name, choices in (
            ("evaluate", (BOTH, AVERAGE, LIVE)),
            ("serve", (AVERAGE, LIVE)),
        ):
            if getattr(self, name) not in choices:
                raise RefusedValueError(
                    f"{own}.{name} is {getattr(self, name)!r}: write one of "
                    f"{', '.join(map(repr, choices))}."
                )
        if isinstance(self.modules, Sequence) and not isinstance(self.modules, str):
            object.__setattr__(self, "modules", tuple(self.modules))
        if self.patterns is not None and not all(self.patterns or [None]):
            raise RefusedValueError(
                f"{own}.modules is {self.modules!r}, which chooses nothing: write "
                "modules='network', or leave it out for all."
            )
        for pattern in self.patterns or ():
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise RefusedValueError(
                    f"{own}.modules has {pattern!r}, which is no regular expression "
                    f"({error}): write 'network', or 'network/dense/.*'."
                ) from error

    @property
    def patterns(self) -> Sequence[Any] | None:
        """The expressions of `modules` in a sequence, or None."""
        one = self.modules is not None and not isinstance(self.modules, tuple)
        return (self.modules,) if one else self.modules

    @property
    def counts_each_step(self) -> bool:
        """Whether no step is left out."""
        return self.start_step == 0 and self.every == 1

    def chooses(self, name: str) -> bool:
        """Returns whether a variable is averaged.

        Args:
          name: full name of a variable that is no optimizer's.
        """
        if self.patterns is None:
            return True
        names = name, name.partition("/")[0]
        return any(re.fullmatch(p, each) for p in self.patterns for each in names)

    def steps_until(self, step: tf.Tensor) -> tf.Tensor:
        """Returns how many steps count from the first one to `step`.

        Args:
          step: global step, int64 scalar.
        """
        return tf.maximum(step - self.start_step, 0) // self.every

    def share(self, number: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """Returns how far the average goes towards the weights.

        Args:
          number: steps taken in so far, with the new ones; float64 scalar.
          new: steps that these weights stand for, mostly 1; float64 scalar.

        Returns:
          Float64 scalar; exactly 1 for the first weights.
        """
        raise NotImplementedError


@habits.named
@dataclasses.dataclass(frozen=True)
class ExponentialAverage(Average):
    """An average in which a step counts `decay` times as much as the one after it.

    Attributes:
      decay: factor, above 0 and below 1. 0.999 averages over some 1,000 steps.
      debias: whether the first steps count by the same law among each other, as Adam's
        moments do. False: the average begins as the first step's weights, which count
        for the steps before too, as in Keras' `use_ema`.
    """

    kind = "ema"

    decay: float = 0.999
    _: dataclasses.KW_ONLY
    debias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.decay) or not 0 < self.decay < 1:
            raise RefusedValueError(
                f"ExponentialAverage.decay is {self.decay!r}: write a number between "
                "0 and 1, such as decay=0.999."
            )
        if not isinstance(self.debias, bool):
            raise RefusedValueError(
                f"ExponentialAverage.debias is {self.debias!r}: write True or False."
            )

    def share(self, number: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """See `Average`."""
        # 1 - decay ** n, which subtracts nearly equal numbers where n is small.
        log = math.log(self.decay)
        part = -tf.math.expm1(new * log)
        if self.debias:
            return part / -tf.math.expm1(number * log)
        return tf.where(number <= new, tf.ones_like(part), part)


@habits.named
@dataclasses.dataclass(frozen=True)
class StochasticWeightAverage(Average):
    """The plain mean of the weights since a step (SWA, Izmailov et al., 2018).

    Attributes:
      start_step: global step after which steps count, where the learning rate is high
        enough to explore: three quarters of the training, say.
    """

    kind = "swa"

    start_step: int = dataclasses.field()

    def share(self, number: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """See `Average`."""
        return new / number


KINDS: tuple[type[Average], ...] = (ExponentialAverage, StochasticWeightAverage)


def check(value: Any) -> None:
    """Checks the field `RunConfig.average`.

    Raises:
      ValueError: it is neither None nor an average.
    """
    if value is not None and not isinstance(value, KINDS):
        raise RefusedValueError(
            f"RunConfig.average is {value!r}: write "
            "average=ExponentialAverage(decay=0.999), in gin @ExponentialAverage(), "
            "or leave it out."
        )


def to_measure(weights: str | None, average: Average | None) -> tuple[str, ...]:
    """Returns which weights an evaluation measures: 'live', 'average', or both.

    Args:
      weights: choice of the caller; None for the default of `average`.
      average: `RunConfig.average`.

    Raises:
      ValueError: there is no such choice, or no average.
    """
    default = average.evaluate if average is not None else LIVE
    chosen = _chosen(weights, average, default, (LIVE, AVERAGE, BOTH))
    return (LIVE, AVERAGE) if chosen == BOTH else (chosen,)


def to_serve(weights: str | None, average: Average | None) -> str:
    """Returns which weights a prediction or an export takes: 'live' or 'average'.

    Args:
      weights: choice of the caller; None for the default of `average`.
      average: `RunConfig.average`.

    Raises:
      ValueError: there is no such choice, or no average.
    """
    default = average.serve if average is not None else LIVE
    return _chosen(weights, average, default, (LIVE, AVERAGE))


def measured(metric: str, average: Average | None) -> str | None:
    """Returns which weights a metric of an evaluation was measured on.

    Args:
      metric: name of the metric: `accuracy`, or `ema/accuracy`.
      average: `RunConfig.average`.

    Returns:
      'live' or 'average'; None where there is no average.
    """
    if average is None:
        return None
    if average.evaluate != BOTH:
        return average.evaluate
    return AVERAGE if metric.startswith(f"{average.kind}/") else LIVE


def _chosen(
    weights: str | None, average: Average | None, default: str, choices: Sequence[str]
) -> str:
    chosen = default if weights is None else weights
    if chosen not in choices:
        raise RefusedValueError(
            f"weights is {weights!r}: write one of {', '.join(map(repr, choices))}."
        )
    if chosen != LIVE and average is None:
        raise RefusedValueError(
            f"weights is {weights!r}, and there is no average: write "
            "RunConfig(average=ExponentialAverage()), or weights='live'."
        )
    return chosen
