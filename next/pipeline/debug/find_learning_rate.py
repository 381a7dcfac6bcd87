"""find_learning_rate: trains while the learning rate grows.

A rate that is too low changes nothing, and one that is too high makes the loss grow. Between them
the loss falls, and where it falls fastest is a rate to begin with.
"""

import csv
import dataclasses
import functools
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from ..contract.checks import check, integer, is_number
from ..contract.hooks import Hook, Run
from ..contract.run_config import RunConfig
from ..distribute import strategies
from ..errors import UserRuntimeError, UserValueError
from ..estimator.estimator import Estimator
from ..model_dir.files import write_atomic

_FOLDER = "find_learning_rate"
_FIRST_STEPS = 5  # Steps whose losses are those of the beginning.
_SMOOTHING = 0.9  # Weight of the past in the mean that shows a divergence.
_MOST_ROWS = 25


@dataclasses.dataclass(frozen=True)
class LearningRates:
    """The losses of a training whose learning rate grew, by step.

    Attributes:
      rates: learning rate of each step.
      losses: loss of each step's batch, before its update.
      suggestion: rate at which the loss falls fastest; None if it never falls.
      diverged: whether the training ended because the loss grew beyond bounds.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    suggestion: float | None
    diverged: bool

    def lines(self) -> Iterator[str]:
        """Yields a table of rates and losses, and the suggestion."""
        yield f"{'learning rate':>13}  {'loss':>10}"
        for row in range(0, len(self.rates), math.ceil(len(self.rates) / _MOST_ROWS)):
            yield f"{self.rates[row]:>13.3g}  {self.losses[row]:>10.4g}"
        if self.diverged:
            yield f"the loss diverges at {self.rates[-1]:.3g}"
        if self.suggestion is None:
            yield "no suggestion: the loss does not fall at any of these rates"
        else:
            yield f"suggestion {self.suggestion:.2g}, where the loss falls fastest"


def find_learning_rate(
    estimator: Estimator,
    input_fn: Callable[..., Any],
    *,
    lowest: float = 1e-6,
    highest: float = 10.0,
    steps: int = 100,
    optimizers: Sequence[str] | None = None,
) -> LearningRates:
    """Trains from the initial values, each step at a higher learning rate, and forgets the weights.

    The curve is written to `model_dir/find_learning_rate/rates.csv`.

    Args:
      estimator: the Estimator, which does not change.
      input_fn: function that returns the training data.
      lowest: learning rate of the first step.
      highest: learning rate of the last step; the training ends before if the loss diverges.
      steps: number of steps.
      optimizers: names of the modules whose rates grow; None for all optimizers. A schedule is
        replaced.

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
    if strategies.on_servers(estimator.config):
        raise UserRuntimeError(
            "find_learning_rate sets the rate of each step, and workers of parameter servers take "
            "steps as they come: expected one machine. Set execution='single_host'."
        )
    folder = os.path.join(estimator.model_dir, _FOLDER)
    growing = _Growing(np.geomspace(lowest, highest, steps).tolist())
    factories = _followed(estimator.factories, growing, optimizers)
    trained = estimator.with_config(_without_files(estimator.config, folder), modules=factories)
    _check_optimizers(trained.state.modules, optimizers)
    trained.train(input_fn, max_steps=steps, hooks=[growing])
    rates = growing.rates[: len(growing.losses)]
    suggestion = _steepest(rates, growing.losses)
    found = LearningRates(rates, growing.losses, suggestion, growing.diverged)
    if len(rates) < steps and not found.diverged:
        text = "find_learning_rate | the input ended after %d of %d steps: repeat() it."
        logging.warning(text, len(rates), steps)
    if estimator.config.is_chief:
        write_atomic(os.path.join(folder, "rates.csv"), _as_csv(found))
    return found


class _Growing(Hook):
    """Sets the learning rate of each step, and keeps the losses."""

    every_steps = 1

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = rates
        self.losses: list[float] = []
        self.diverged = False
        self._variables: list[tf.Variable] = []
        self._sum = self._lowest = 0.0

    def follow(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Makes an optimizer use the rates; call it where its variables are created."""
        rate = tf.Variable(
            self.rates[0],
            trainable=False,
            dtype=tf.float32,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self._variables.append(rate)
        optimizer.learning_rate = _Rate(rate)

    def after_step(self, run: Run) -> None:
        """Sets the rate of the next step, or stops."""
        self.losses.append(run.report.loss)
        self.diverged = self._has_diverged()
        if self.diverged:
            run.request_stop(f"the loss diverges: {self.losses[-1]:.4g}")
        elif len(self.losses) < len(self.rates):
            for variable in self._variables:
                variable.assign(self.rates[len(self.losses)])

    def _has_diverged(self) -> bool:
        """Returns whether the loss is above its start by as much as that is, or as it has fallen."""
        self._sum = _SMOOTHING * self._sum + (1 - _SMOOTHING) * self.losses[-1]
        smoothed = self._sum / (1 - _SMOOTHING ** len(self.losses))
        if not math.isfinite(smoothed):
            return True
        first = float(np.mean(self.losses[:_FIRST_STEPS]))
        self._lowest = min(self._lowest if len(self.losses) > 1 else smoothed, smoothed)
        is_high = smoothed > first + max(abs(first), first - self._lowest)
        return len(self.losses) > _FIRST_STEPS and is_high


class _Rate(keras.optimizers.schedules.LearningRateSchedule):
    """The value of a variable, at any step."""

    def __init__(self, variable: tf.Variable) -> None:
        self._variable = variable

    def __call__(self, step: Any) -> tf.Tensor:
        del step
        return tf.convert_to_tensor(self._variable)

    def get_config(self) -> dict[str, Any]:
        """Returns the current rate."""
        return {"rate": float(self._variable)}


def _followed(
    factories: Mapping[str, Callable[..., Any]],
    growing: _Growing,
    optimizers: Sequence[str] | None,
) -> dict[str, Callable[..., Any]]:
    """Returns factories whose optimizers use the rates of a hook."""

    def followed(factory: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(factory, updated=())
        def make(*args: Any, **kwargs: Any) -> Any:
            module = factory(*args, **kwargs)
            if isinstance(module, keras.optimizers.Optimizer):
                growing.follow(module)
            return module

        return make

    chosen = factories if optimizers is None else optimizers
    return {name: followed(f) if name in chosen else f for name, f in factories.items()}


def _check_optimizers(modules: Mapping[str, Any], chosen: Sequence[str] | None) -> None:
    names = [n for n, each in modules.items() if isinstance(each, keras.optimizers.Optimizer)]
    if not names or isinstance(chosen, str) or not {*(chosen or ())} <= {*names}:
        raise UserValueError(
            f"find_learning_rate.optimizers is {chosen!r}: expected names of optimizers among the "
            f"modules, {names}, or None for all of them."
        )


def _without_files(config: RunConfig, folder: str) -> RunConfig:
    """Returns a RunConfig with which a training writes nothing."""
    fields = dataclasses.fields(RunConfig)
    keeps = {f.name: f.default for f in fields if f.name.startswith("keep_checkpoint")}
    return config.replace(
        model_dir=folder,
        save_checkpoints_steps=0,
        save_summary_steps=None,
        log_step_count_steps=None,
        on_nan="warn",
        metric_writers=(),
        **keeps,
    )


def _steepest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Returns the rate at which the mean of some steps falls fastest, before it is lowest.

    Args:
      rates: learning rate of each step, in equal ratios.
      losses: loss of each step.
    """
    width = max(5, len(losses) // 8)
    finite = losses[:-1] if losses and not math.isfinite(losses[-1]) else losses
    if len(finite) < 2 * width:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(finite, width)
    means = windows.mean(axis=1)
    lowest = int(np.argmin(means))
    if means[lowest] >= means[0] - 2 * windows[0].std() / math.sqrt(width):
        return None  # Within the noise of the first losses.
    slopes = windows[: lowest + 1] @ (np.arange(width) - (width - 1) / 2)  # Of least squares.
    return float(rates[int(np.argmin(slopes)) + width // 2])


def _as_csv(found: LearningRates) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", "learning_rate", "loss"])
    table.writerows(zip(range(1, len(found.rates) + 1), found.rates, found.losses, strict=True))
    return text.getvalue()
