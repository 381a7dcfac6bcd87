"""Learning rates over time, besides Keras' own schedules."""

import itertools
from collections.abc import Sequence

import gin
import keras

from pipeline import RefusedValueError


@gin.configurable
def piecewise_by_epoch(
    epochs: Sequence[float] = (3, 7),
    rates: Sequence[float] = (1e-3, 1e-4, 1e-5),
    *,
    steps_per_epoch: int,
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Makes a schedule of constant rates, which change at the beginning of epochs.

    The defaults are the `decay` of TensorFlow's distributed tutorials: epochs 0, 1 and
    2 have the first rate, 3 to 6 the second, and all later epochs the third.

    Args:
      epochs: epochs at whose beginning the next rate applies, from 0; increasing.
      rates: learning rates, one more than `epochs`.
      steps_per_epoch: updates of the optimizer in an epoch, of all replicas: examples /
        global batch size.

    Raises:
      ValueError: the numbers do not fit each other.
    """
    if len(rates) != len(epochs) + 1:
        raise RefusedValueError(
            f"{len(rates)} rates for {len(epochs)} epochs at which they change: give "
            f"{len(epochs) + 1}."
        )
    if steps_per_epoch < 1:
        raise RefusedValueError(
            f"steps_per_epoch is {steps_per_epoch}: write examples // global batch "
            "size, at least 1."
        )
    # Parts of epochs are allowed: they are rounded to steps.
    starts = [round(epoch * steps_per_epoch) for epoch in epochs]
    if not starts or any(a >= b for a, b in itertools.pairwise([0, *starts])):
        raise RefusedValueError(
            f"epochs are {list(epochs)}: write one or more, in increasing order, the "
            "first above 0, such as epochs=(3, 7)."
        )
    # Keras keeps a rate up to its boundary, and that step included.
    return keras.optimizers.schedules.PiecewiseConstantDecay(
        [start - 1 for start in starts], [float(rate) for rate in rates]
    )


@gin.configurable
def warmup_cosine(
    peak_rate: float = 1e-3,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    final_rate: float = 0.0,
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Makes a schedule that rises linearly to `peak_rate`, then falls along a cosine.

    Args:
      peak_rate: learning rate at step `warmup_steps`.
      total_steps: updates of the optimizer, warm-up included; later updates have
        `final_rate`.
      warmup_steps: updates in which the rate rises from 0, so that the first changes
        nothing; 0 begins at the peak.
      final_rate: learning rate at step `total_steps`.

    Raises:
      ValueError: the numbers do not fit each other.
    """
    if not 0 <= warmup_steps < total_steps:
        raise RefusedValueError(
            f"warmup_steps is {warmup_steps} of total_steps {total_steps}: write fewer "
            "warm-up steps than steps, from 0 on."
        )
    if not 0 <= final_rate <= peak_rate or not peak_rate:
        raise RefusedValueError(
            f"final_rate is {final_rate} and peak_rate {peak_rate}: write a peak_rate "
            "above 0, and a final_rate from 0 to that."
        )
    fall = {"decay_steps": total_steps - warmup_steps, "alpha": final_rate / peak_rate}
    if not warmup_steps:
        return keras.optimizers.schedules.CosineDecay(peak_rate, **fall)
    return keras.optimizers.schedules.CosineDecay(
        0.0, warmup_target=peak_rate, warmup_steps=warmup_steps, **fall
    )
