"""Learning rates over time, beside those that Keras brings."""

import itertools
from collections.abc import Sequence

import gin
import keras


@gin.configurable
def piecewise_by_epoch(
    epochs: Sequence[float] = (3, 7),
    rates: Sequence[float] = (1e-3, 1e-4, 1e-5),
    *,
    steps_per_epoch: int,
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Constant rates, changed at the beginning of given epochs.

    The defaults are the `decay` of TensorFlow's distributed tutorials: epochs 0, 1
    and 2 at the first rate, 3 to 6 at the second, all later ones at the third.

    Args:
      epochs: those that begin with the next rate, counted from 0; increasing.
      rates: one more than `epochs`.
      steps_per_epoch: updates of the optimizer in an epoch, over all replicas:
        examples / global batch size.

    Raises:
      ValueError: numbers that do not fit each other.
    """
    if len(rates) != len(epochs) + 1:
        raise ValueError(
            f"{len(rates)} rates for {len(epochs)} epochs at which they change: give "
            f"{len(epochs) + 1}."
        )
    if steps_per_epoch < 1:
        raise ValueError(f"steps_per_epoch is {steps_per_epoch}; it must be >= 1.")
    starts = [round(epoch * steps_per_epoch) for epoch in epochs]
    if not starts or any(a >= b for a, b in itertools.pairwise([0, *starts])):
        raise ValueError(
            f"epochs are {list(epochs)}; one or more are needed, each greater than the "
            "one before, the first than 0."
        )
    # Keras keeps a rate up to and including its boundary.
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
    """Rises linearly from 0 to `peak_rate`, then falls along half a cosine.

    Args:
      peak_rate: reached at step `warmup_steps`.
      total_steps: updates of the optimizer, warm-up included; later ones stay at
        `final_rate`.
      warmup_steps: 0 begins at the peak. Otherwise the update at step 0 moves nothing.
      final_rate: reached at `total_steps`.

    Raises:
      ValueError: numbers that do not fit each other.
    """
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            f"warmup_steps is {warmup_steps} of total_steps {total_steps}; it must be "
            "from 0 to below that."
        )
    if not 0 <= final_rate <= peak_rate or not peak_rate:
        raise ValueError(
            f"final_rate is {final_rate} and peak_rate {peak_rate}; "
            "0 <= final_rate <= peak_rate and peak_rate > 0 are needed."
        )
    fall = {"decay_steps": total_steps - warmup_steps, "alpha": final_rate / peak_rate}
    if not warmup_steps:
        return keras.optimizers.schedules.CosineDecay(peak_rate, **fall)
    return keras.optimizers.schedules.CosineDecay(
        0.0, warmup_target=peak_rate, warmup_steps=warmup_steps, **fall
    )
