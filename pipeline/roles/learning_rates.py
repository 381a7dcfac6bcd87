"""find_learning_rate: trains while the learning rate grows, to see where it may lie.

A rate that is too low changes nothing, one that is too high lets the loss grow. Between
them the loss falls, and where it falls fastest a training may well begin. The weights
are thrown away, and the run's own checkpoints are neither read nor written.
"""

import csv
import dataclasses
import functools
import io
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from pipeline.contract.hooks import Hook, Run
from pipeline.contract.run_config import RunConfig
from pipeline.driver.estimator import Estimator
from pipeline.hooks import summary
from pipeline.mistakes import checks
from pipeline.model_dir import atomic_file
from pipeline.process.refusals import RefusedRuntimeError, RefusedValueError, near

# Folder in model_dir, and the curve in it.
FOLDER = "find_learning_rate"
FILE = f"{FOLDER}/rates.csv"

# Weight of the past in the mean that smooths the loss.
_SMOOTHING = 0.9
# Steps whose losses count as those of the beginning.
_FIRST_STEPS = 5
# Least number of steps whose losses make up a slope.
_LEAST_WINDOW = 5
_MOST_ROWS = 25
_WIDTH = 30


@dataclasses.dataclass(frozen=True)
class LearningRates:
    """The curve of a range test: one point a step.

    Attributes:
      rates: learning rate of each step, growing.
      losses: loss of each step's batch, before its update.
      smoothed: mean of the losses up to each step, in which late ones count most.
      suggestion: rate at which the loss falls fastest; None where it never falls.
      diverged: whether the last rate let the loss grow beyond all bounds.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    smoothed: Sequence[float]
    suggestion: float | None
    diverged: bool

    def lines(self) -> Iterator[str]:
        """Yields a table for the user: rate, loss, and the smoothed loss as a bar."""
        finite = [loss for loss in self.smoothed if math.isfinite(loss)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
        yield f"{'learning rate':>13}  {'loss':>10}  smoothed"
        every = math.ceil(len(self.rates) / _MOST_ROWS)
        for row in range(0, len(self.rates), every):
            smoothed = self.smoothed[row]
            share = (smoothed - low) / (high - low) if high > low else 0.0
            length = round(share * _WIDTH) if math.isfinite(share) else _WIDTH
            yield (
                f"{self.rates[row]:>13.3g}  {self.losses[row]:>10.4g}  "
                f"{smoothed:<10.4g} {'#' * length}"
            ).rstrip()
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
    """Trains from the initial values, each step at a greater learning rate.

    Writes the curve to `model_dir/find_learning_rate`: `rates.csv`, and events for
    TensorBoard. Stops where the loss diverges. What was trained is dropped.

    Args:
      estimator: Estimator of the model; neither trained nor changed.
      input_fn: function that returns the training data.
      lowest: learning rate of the first step.
      highest: learning rate of the last step.
      steps: number of steps.
      optimizers: names of the modules whose learning rates grow, by the same rate;
        None for all optimizers. Those of others stay as they are.

    Returns:
      The curve, and a suggestion.

    Raises:
      ValueError: an argument is out of range, or no module is an optimizer.
      RuntimeError: parameter servers train, whose steps come in no order.
    """
    check_range(lowest=lowest, highest=highest, steps=steps)
    config = estimator.config
    if config.num_ps_replicas:
        raise RefusedRuntimeError(
            "find_learning_rate sets a rate for each step, and workers of parameter "
            "servers take steps as they come: run it on one machine, "
            "--execution=single_host."
        )
    folder = os.path.join(estimator.model_dir, FOLDER)
    growing = _Growing(lowest, highest, steps)
    recipe = estimator.recipe
    trained = Estimator(
        recipe.model_fn,
        modules=_at_rate(recipe.factories, growing, optimizers),
        config=_alone(config, folder),
        params=recipe.params or None,
        warm_start_from=recipe.warm_start_from,
    )
    trained.train(input_fn, max_steps=steps, hooks=[growing])
    found = growing.curve()
    if len(found.rates) < steps and not found.diverged:
        logging.warning(
            "find_learning_rate | the input ended after %d of %d steps: repeat() it.",
            len(found.rates),
            steps,
        )
    if config.is_chief:
        _write(folder, found)
    return found


class _Growing(Hook):
    """Sets the learning rate of each step, and notes the losses."""

    every_steps = 1

    def __init__(self, lowest: float, highest: float, steps: int) -> None:
        self._all_rates = np.geomspace(lowest, highest, steps).tolist()
        self._losses: list[float] = []
        self._smoothed: list[float] = []
        # One for each optimizer, as each is made of its own factory.
        self._variables: list[tf.Variable] = []
        self._diverged = False

    def add(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Has an optimizer go by this hook's rate."""
        rate = tf.Variable(self._all_rates[0], trainable=False, dtype=tf.float32)
        self._variables.append(rate)
        optimizer.learning_rate = _Rate(rate)

    def after_step(self, run: Run) -> None:
        loss = float(run.report.loss)
        self._losses.append(loss)
        weights = _SMOOTHING ** np.arange(len(self._losses))[::-1]
        self._smoothed.append(float(np.average(self._losses, weights=weights)))
        self._diverged = self._has_diverged()
        if self._diverged:
            run.request_stop(f"the loss is {loss:.4g}, and diverges")
        elif len(self._losses) < len(self._all_rates):
            for variable in self._variables:
                variable.assign(self._all_rates[len(self._losses)])

    def curve(self) -> LearningRates:
        """Returns the points so far."""
        rates = self._all_rates[: len(self._losses)]
        return LearningRates(
            rates,
            self._losses,
            self._smoothed,
            _steepest(rates, self._losses),
            self._diverged,
        )

    def _has_diverged(self) -> bool:
        """Whether the loss has grown by more than it was at first, or has fallen."""
        now = self._smoothed[-1]
        if not math.isfinite(now):
            return True
        if len(self._smoothed) <= _FIRST_STEPS:
            return False
        first = float(np.mean(self._losses[:_FIRST_STEPS]))
        return now > first + max(abs(first), first - min(self._smoothed))


class _Rate(keras.optimizers.schedules.LearningRateSchedule):
    """The value of a variable, whatever the iteration."""

    def __init__(self, variable: tf.Variable) -> None:
        super().__init__()
        self._variable = variable

    def __call__(self, step: Any) -> tf.Tensor:
        del step
        return tf.convert_to_tensor(self._variable)

    def get_config(self) -> dict[str, Any]:
        """Returns the rate of now."""
        return {"rate": float(self._variable)}


def _alone(config: RunConfig, folder: str) -> RunConfig:
    """Returns a RunConfig that saves and writes nothing."""
    return config.replace(
        model_dir=folder,
        save_checkpoints_steps=0,
        keep_checkpoint_every_n_steps=None,
        keep_checkpoint_steps=(),
        save_summary_steps=None,
        log_step_count_steps=None,
        on_nan="warn",
        average=None,
        tools=(),
    )


def _at_rate(
    factories: Mapping[str, Callable[..., Any]],
    growing: _Growing,
    optimizers: Sequence[str] | None,
) -> Mapping[str, Callable[..., Any]]:
    """Returns the factories of an Estimator, whose optimizers go by a hook's rate."""
    unknown = [name for name in optimizers or () if name not in factories]
    if unknown or isinstance(optimizers, str):
        raise RefusedValueError(
            f"find_learning_rate.optimizers is {optimizers!r}: write names of modules, "
            f"of {sorted(factories)}, in a list."
            f"{near(unknown[0], list(factories)) if unknown else ''}"
        )
    found: dict[str, bool] = {}

    def wrapped(name: str, factory: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            module = factory(*args, **kwargs)
            found[name] = isinstance(module, keras.optimizers.Optimizer)
            if found[name] and (optimizers is None or name in optimizers):
                growing.add(module)
            elif name in (optimizers or ()):
                raise RefusedValueError(
                    f"find_learning_rate.optimizers names {name!r}, which is "
                    f"{checks.kind_of(module)}: write the name of an optimizer."
                )
            if len(found) == len(factories) and not any(found.values()):
                raise RefusedValueError(
                    f"none of the modules {sorted(factories)} is a Keras optimizer, "
                    "whose learning rate could grow: hand in its factory as a module, "
                    "Estimator(modules={'optimizer': keras.optimizers.Adam})."
                )
            return module

        # Its arguments are those of the factory, `params` say.
        return functools.update_wrapper(made, factory)

    return {name: wrapped(name, factory) for name, factory in factories.items()}


def _steepest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Returns the rate at which the loss falls fastest, before it is lowest.

    It goes by means and slopes of windows around each step: the smoothed loss lags
    behind, and single losses are noisy.

    Args:
      rates: learning rate of each step, in equal ratios.
      losses: loss of each step.
    """
    width = max(_LEAST_WINDOW, len(losses) // 8)
    finite = list(itertools.takewhile(math.isfinite, losses))
    if len(finite) < 2 * width:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(finite, width)
    means = windows.mean(axis=1)
    lowest = int(np.argmin(means))
    noise = 2 * windows[0].std() / math.sqrt(width)
    if means[lowest] >= means[0] - noise:
        return None
    # Slopes of least squares, but for a factor that all share.
    slopes = windows[: lowest + 1] @ (np.arange(width) - (width - 1) / 2)
    return float(rates[int(np.argmin(slopes)) + width // 2])


def _write(folder: str, found: LearningRates) -> None:
    """Writes the curve as CSV, and as events with a point a step."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", "learning_rate", "loss", "smoothed_loss"])
    points = zip(found.rates, found.losses, found.smoothed, strict=True)
    writer = summary.Writer(folder)
    for step, (rate, loss, smoothed) in enumerate(points, 1):
        table.writerow([step, repr(rate), repr(loss), repr(smoothed)])
        values = {"learning_rate": rate, "loss": loss, "smoothed_loss": smoothed}
        writer.scalars(step, values)
    writer.close()
    atomic_file.write(os.path.join(folder, os.path.basename(FILE)), text.getvalue())


def check_range(
    *, lowest: float = 1e-6, highest: float = 10.0, steps: int = 100
) -> None:
    """Checks the range of a test.

    Args:
      lowest: learning rate of the first step.
      highest: learning rate of the last step.
      steps: number of steps.

    Raises:
      ValueError: they are no range.
    """
    numbers = checks.is_number(lowest) and checks.is_number(highest)
    if not numbers or not 0 < lowest < highest < math.inf:
        raise RefusedValueError(
            f"find_learning_rate goes from {lowest!r} to {highest!r}: write numbers "
            "above 0, the lower one first, lowest=1e-6, highest=10.0."
        )
    checks.check_count("find_learning_rate.steps", steps, least=2)
