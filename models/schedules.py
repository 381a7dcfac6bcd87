# SPDX-License-Identifier: Apache-2.0
"""Learning rate schedules."""

import itertools
from collections.abc import Sequence

import gin
import keras

from gin_estimator import errors

Schedule = keras.optimizers.schedules.LearningRateSchedule


@gin.configurable
def piecewise_by_epoch(
    epochs: Sequence[float] = (3, 7),
    rates: Sequence[float] = (1e-3, 1e-4, 1e-5),
    *,
    steps_per_epoch: int,
) -> Schedule:
    """Returns constant rates that change at the first step of an epoch.

    Args:
      epochs: epochs at which the next rate begins, from 0, increasing.
      rates: learning rates, one more than `epochs`.
      steps_per_epoch: updates in an epoch: examples / global batch size.

    Raises:
      UserValueError: the numbers do not fit each other.
    """
    starts = [round(epoch * steps_per_epoch) for epoch in epochs]
    increasing = all(a < b for a, b in itertools.pairwise([0, *starts]))
    if not starts or not increasing or len(rates) != len(epochs) + 1:
        raise errors.UserValueError(
            f"piecewise_by_epoch has epochs={list(epochs)}, rates={list(rates)} and "
            f"steps_per_epoch={steps_per_epoch}: expected increasing epochs above 0 and one rate "
            "more, such as epochs=(3, 7), rates=(1e-3, 1e-4, 1e-5)."
        )
    # Keras keeps a rate up to and including its boundary.
    boundaries = [start - 1 for start in starts]
    return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, [float(r) for r in rates])


@gin.configurable
def warmup_cosine(
    peak_rate: float = 1e-3, *, total_steps: int, warmup_steps: int = 0, final_rate: float = 0.0
) -> Schedule:
    """Returns a rate that rises linearly, then falls along a cosine.

    Args:
      peak_rate: learning rate at step `warmup_steps`.
      total_steps: number of updates, warm-up included.
      warmup_steps: updates in which the rate rises from 0.
      final_rate: learning rate from step `total_steps` on.

    Raises:
      UserValueError: the numbers do not fit each other.
    """
    if not 0 <= warmup_steps < total_steps:
        raise errors.UserValueError(
            f"warmup_cosine.warmup_steps is {warmup_steps}: expected 0 or more, and less than "
            f"total_steps, {total_steps}."
        )
    if not 0 <= final_rate <= peak_rate or not peak_rate:
        raise errors.UserValueError(
            f"warmup_cosine.final_rate is {final_rate}: expected 0 or more, and at most "
            f"peak_rate, {peak_rate}."
        )
    options = {"decay_steps": total_steps - warmup_steps, "alpha": final_rate / peak_rate}
    if not warmup_steps:
        return keras.optimizers.schedules.CosineDecay(peak_rate, **options)
    return keras.optimizers.schedules.CosineDecay(
        0.0, warmup_target=peak_rate, warmup_steps=warmup_steps, **options
    )
