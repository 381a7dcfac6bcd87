# SPDX-License-Identifier: Apache-2.0
"""Lowers learning rates when a metric no longer improves."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import tensorflow as tf
from absl import logging

from ..contract.checks import Check, integer, is_number, number
from ..contract.hooks import RunContext
from ..contract.old_names import reject_unknown_arguments
from ..errors import UserTypeError
from ..loop.early_stopping import History, MetricHook


@reject_unknown_arguments
@dataclasses.dataclass(frozen=True)
class ReduceOnPlateau(MetricHook):
    """Multiplies learning rates when a metric has not improved for long enough.

    A rate is the number or schedule of the optimizer, times a factor. The factor follows
    from the record of evaluations alone: it is not saved, and another rate that is configured at
    a restart is multiplied by it as well.

    Attributes:
      metric: see `EarlyStopping`, and so for `mode`, `min_delta`, `min_steps` and `evaluation`.
      patience_steps: number of global steps from the best evaluation, or from the last reduction,
        after which an evaluation without improvement reduces rates.
      factor: number between 0 and 1 by which rates are multiplied.
      cooldown_steps: global steps after a reduction in which patience does not count.
      min_rate: rate below which none is lowered.
      optimizers: names of the modules whose rates are lowered; None for all optimizers.
    """

    _: dataclasses.KW_ONLY
    factor: float = 0.1
    cooldown_steps: int = 0
    min_rate: float = 0.0
    optimizers: Sequence[str] | None = None
    # Of the copies that a training makes.
    _rate_factor: tf.Variable | None = dataclasses.field(
        default=None, init=False, repr=False, compare=False
    )

    _checks: ClassVar[Mapping[str, Check]] = {
        **MetricHook._checks,
        "patience_steps": integer(1, example=5000),
        "factor": Check(lambda v: is_number(v) and 0 < v < 1, "a number between 0 and 1", "0.1"),
        "cooldown_steps": integer(0, example=1000),
        "min_rate": number(0, example=1e-6),
        "optimizers": Check(
            lambda v: isinstance(v, list | tuple) and all(isinstance(n, str) for n in v),
            "a list of names of modules",
            "['optimizer']",
            optional=True,
            error=UserTypeError,
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizers is not None:
            object.__setattr__(self, "optimizers", tuple(self.optimizers))

    def scaling(self, rate_factor: tf.Variable) -> "ReduceOnPlateau":
        """Returns a copy that sets this variable, by which optimizers multiply their rates."""
        own = copy.copy(self)
        object.__setattr__(own, "_rate_factor", rate_factor)
        return own

    def reductions(self, history: History) -> list[int]:
        """Returns the steps of the evaluations after which the rates were reduced.

        Args:
          history: evaluations by step.
        """
        progress = self.progress(history, cooldown_steps=self.cooldown_steps)
        return [step for step, _, over in progress if over]

    def act(self, run: RunContext, history: History) -> None:
        """Sets the factor of the learning rates."""
        steps, variable = self.reductions(history), self._rate_factor
        before, after = float(variable.numpy()), self.factor ** len(steps)
        variable.assign(after)
        if run.is_chief and steps and before != float(variable.numpy()):
            logging.info(
                "train | step %d | the learning rate is multiplied by %.6g | no improvement of %s "
                "up to step %d",
                run.step,
                after,
                self.metric,
                steps[-1],
            )
