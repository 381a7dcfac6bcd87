# SPDX-License-Identifier: Apache-2.0
"""Updates the averages of the weights after steps."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..distribute.weight_averages import Averages
from .compiled_loop import Detail, Steps
from .step import Batches, Step
from .totals import Totals


class AveragedStep:
    """A training step, and an update of the averages after it."""

    def __init__(self, step: Step, averages: Averages) -> None:
        """Takes the step and the averages of its variables."""
        self._step = step
        self._averages = averages

    def zeros(self) -> Totals:
        """Returns the totals of no step."""
        return self._step.zeros()

    def __call__(self, batches: Batches, step: tf.Tensor) -> Totals:
        """Runs the step after global step `step`, in cross-replica context."""
        totals = self._step(batches, step)
        # The next step waits for the loss; it must not change the weights before.
        with tf.control_dependencies([self._averages.update(step, step + 1)]):
            return totals._replace(loss=tf.identity(totals.loss))


def averaged_calls(loop: Callable[..., Steps], averages: Averages) -> Callable[..., Steps]:
    """Returns a loop on parameter servers that updates the averages after each call.

    Only then all values belong to one step. They count for all steps of the call.
    """

    def run(iterator: Any, start: int, stop: int, *, detail: Detail = Detail.SUMS) -> Steps:
        steps = loop(iterator, start, stop, detail=detail)
        averages.update(tf.constant(start, tf.int64), tf.constant(steps.step, tf.int64))
        return steps

    return run
