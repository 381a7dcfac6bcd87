# SPDX-License-Identifier: Apache-2.0
"""find_learning_rate: trains while the learning rate grows.

A rate that is too low changes nothing, and one that is too high makes the loss grow. Between them
the loss falls, and where it falls fastest is a rate to begin with.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..contract.checks import check, integer, is_number
from ..contract.hooks import Hook, RunContext
from ..contract.run_config import RunConfig
from ..errors import UserRuntimeError, UserValueError
from ..estimator.estimator import Estimator
from ..model_dir.files import check_writable, write_atomic

_WINDOW = 5  # Steps whose mean loss shows a divergence.


@dataclasses.dataclass(frozen=True)
class LearningRates:
    """The losses of a training whose learning rate grew, by step.

    Attributes:
      rates: learning rate of each step.
      losses: loss of each step's batch, before its update.
      suggestion: rate at which the loss falls fastest; None if it does not fall.
      diverged: whether the training ended because the loss grew beyond bounds.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    suggestion: float | None
    diverged: bool

    def lines(self) -> Iterator[str]:
        """Yields a table of at most 25 rates and losses, and the suggestion."""
        for row in range(0, len(self.rates), math.ceil(len(self.rates) / 25)):
            yield f"learning_rate {self.rates[row]:<10.3g} loss {self.losses[row]:.4g}"
        if self.diverged:
            yield f"the loss diverges at {self.rates[-1]:.3g}"
        best = self.suggestion
        yield f"suggestion {'none: the loss does not fall' if best is None else f'{best:.2g}'}"


def find_learning_rate(
    estimator: Estimator,
    input_fn: Callable[..., Any],
    *,
    lowest: float = 1e-6,
    highest: float = 10.0,
    steps: int = 100,
) -> LearningRates:
    """Trains from the initial values, each step at a higher learning rate, and drops the weights.

    The curve is written to `model_dir/find_learning_rate/rates.csv`.

    Args:
      estimator: the Estimator, which does not change.
      input_fn: function that returns the training data.
      lowest: learning rate of the first step.
      highest: learning rate of the last step; training ends before if the loss diverges.
      steps: number of steps. The rates or schedules of all optimizers are replaced.

    Returns:
      The curve, and a suggestion.

    Raises:
      UserRuntimeError: parameter servers train, whose steps have no order.
      UserValueError: an argument is wrong, or no module is an optimizer.
    """
    check("find_learning_rate.steps", steps, integer(2, example=100))
    if not (is_number(lowest) and is_number(highest) and 0 < lowest < highest):
        raise UserValueError(
            f"find_learning_rate.lowest is {lowest!r} and highest is {highest!r}: expected numbers "
            "above 0, the lower one first. Set lowest=1e-6, highest=10.0."
        )
    if estimator.config.cluster.has_servers:
        raise UserRuntimeError(
            "find_learning_rate sets the rate of each step, which parameter servers do not have: "
            "expected one machine. Set execution='single_host'."
        )
    folder = os.path.join(estimator.model_dir, "find_learning_rate")
    if estimator.config.is_chief:
        check_writable(folder)
    growing = _Growing(np.geomspace(lowest, highest, steps).tolist())
    factories = {name: growing.followed_by(each) for name, each in estimator.factories.items()}
    trained = estimator.with_config(_without_files(estimator.config, folder), modules=factories)
    modules = trained.state.modules
    if not any(isinstance(each, keras.optimizers.Optimizer) for each in modules.values()):
        raise UserValueError(
            f"find_learning_rate: the modules are {sorted(modules)}: expected an optimizer among "
            "them. Set modules={'optimizer': ...}."
        )
    trained.train(input_fn, max_steps=steps, hooks=[growing])
    rates, losses = growing.rates[: len(growing.losses)], growing.losses
    if estimator.config.is_chief:
        rows = ["step,learning_rate,loss"]
        rows += [f"{step + 1},{rates[step]!r},{loss!r}" for step, loss in enumerate(losses)]
        write_atomic(os.path.join(folder, "rates.csv"), "\n".join([*rows, ""]))
    return LearningRates(rates, losses, _steepest(rates, losses), growing.has_diverged)


class _Growing(Hook):
    """Sets the learning rate of each step, and keeps the losses."""

    every_steps = 1

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = rates
        self.losses: list[float] = []
        self._variables: list[tf.Variable] = []

    def followed_by(self, factory: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a factory of the same module; an optimizer uses the rates."""

        @functools.wraps(factory, updated=())
        def make(*args: Any, **kwargs: Any) -> Any:
            module = factory(*args, **kwargs)
            if isinstance(module, keras.optimizers.Optimizer):
                first = tf.VariableAggregation.ONLY_FIRST_REPLICA
                rate = tf.Variable(self.rates[0], trainable=False, aggregation=first)
                self._variables.append(rate)
                module.learning_rate = lambda: tf.convert_to_tensor(rate)
            return module

        return make

    def after_step(self, run: RunContext) -> None:
        """Sets the rate of the next step, or stops."""
        self.losses.append(run.report.loss)
        if self.has_diverged:
            run.request_stop(f"the loss diverges: {self.losses[-1]:.4g}")
        elif len(self.losses) < len(self.rates):
            for variable in self._variables:
                variable.assign(self.rates[len(self.losses)])

    @property
    def has_diverged(self) -> bool:
        """Whether the loss has grown by more than it was at first, or than it had fallen."""
        first, last = np.mean(self.losses[:_WINDOW]), np.mean(self.losses[-_WINDOW:])
        return not last <= first + max(abs(first), first - min(self.losses))  # Also for NaN.


def _without_files(config: RunConfig, folder: str) -> RunConfig:
    """Returns a RunConfig with which a training writes nothing."""
    fields = dataclasses.fields(RunConfig)
    keeps = {each.name: each.default for each in fields if each.name.startswith("keep_")}
    return config.replace(
        model_dir=folder,
        save_checkpoints_steps=0,
        save_summary_steps=None,
        log_step_count_steps=None,
        average=None,
        on_nan="warn",
        metric_writers=(),
        **keeps,
    )


def _steepest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Returns the rate at which the loss falls fastest over some steps, before it is lowest."""
    width = max(_WINDOW, len(losses) // 8)
    finite = losses[: -1 if not math.isfinite(losses[-1]) else None]
    if len(finite) < 2 * width:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(finite, width)
    means = windows.mean(axis=1)
    lowest = int(np.argmin(means))
    if means[lowest] >= means[0] - 2 * windows[0].std() / math.sqrt(width):
        return None  # Within the noise of the first losses.
    slopes = windows[: lowest + 1] @ (np.arange(width) - (width - 1) / 2)  # Of least squares.
    return float(rates[int(np.argmin(slopes)) + width // 2])
