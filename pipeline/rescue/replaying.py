"""Makes a bad step again from its files: each element, its examples, the update.

for each batch that was left out: for each element of it:
    forward and backward, with a look at each operation
    not finite: the cause, and the examples that do it alone
    finite: its losses and gradients
all finite: the whole step with its update, and a look at the weights
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.checkpoints.holding import Snapshot
from pipeline.contract.model_fn import BoundModelFn
from pipeline.contract.spec import EstimatorSpec
from pipeline.feed.batch import Batch, pair_of, rows_in
from pipeline.loop.metrics import MetricSet
from pipeline.loop.steps import TrainStep
from pipeline.rescue import suspects
from pipeline.rescue.bad_batches import BadStepFiles
from pipeline.rescue.findings import MOST_RUNS, Replay, ReplayedElement
from pipeline.rescue.traced_step import Seen, TracedStep, specs_of
from pipeline.strategy import loss_scale
from pipeline.strategy.loss_scale import LossScale
from pipeline.strategy.modules import Modules

_MOST_LOSSES = 8


class Replayer:
    """Computes a bad step again, on modules that hold the weights before it."""

    def __init__(
        self, model_fn: BoundModelFn, modules: Modules, outline: EstimatorSpec
    ) -> None:
        """Takes what the step computes with.

        Args:
          model_fn: takes features, labels and step, and returns the spec of TRAIN.
          modules: modules on one replica, which hold the weights before the step.
          outline: spec that `modules.build` returned.
        """
        self._model_fn = model_fn
        self._modules = modules
        self._outline = outline
        self._traced: list[tuple[Any, TracedStep]] = []
        state = modules.driver_state
        self._scales = [
            float(LossScale(state, i).scaled(tf.ones([])))
            if loss_scale.is_used(state)
            else 1.0
            for i in range(len(outline.train_op))
        ]

    def __call__(self, files: BadStepFiles) -> Replay:
        """Computes each element, and where all are finite the whole step.

        Args:
          files: the step's batches.
        """
        elements = tuple(
            self._element(number, position, element)
            for number, read in files.batches.items()
            for position, element in enumerate(read)
        )
        broken: dict[str, None] = {}
        if all(each.cause is None for each in elements):
            before = Snapshot(self._modules)
            for read in files.batches.values():
                broken |= dict.fromkeys(self._broken_by(read))
                before.put(self._modules)
        return Replay(
            files.folder,
            files.weights,
            files.reasons,
            files.missing,
            elements,
            tuple(broken),
        )

    def _element(self, number: int, position: int, element: Any) -> ReplayedElement:
        """Computes one element, and if it is not finite its examples."""
        step = self._step_for(element)
        scales, overflows = self._scales, None
        seen = step(element, scales)
        if not step.is_finite(seen) and max(scales) > 1:
            # A gradient that is finite without the loss scale is no mistake.
            unscaled = step(element, [1.0] * len(scales))
            if step.is_finite(unscaled):
                overflows, scales, seen = max(scales), [1.0] * len(scales), unscaled
        cause = step.cause(seen)
        told = functools.partial(
            ReplayedElement,
            number,
            position,
            float(seen.loss),
            step.norms(seen, scales),
            cause,
            overflows=overflows,
        )
        rows = _examples(element)
        if cause is None:
            return told(None, _largest(step, seen, scales, rows))
        if not rows or set(cause.held) & set(self._modules.named_variables()):
            return told(None, ())

        def is_bad(some: Sequence[int]) -> bool:
            part = suspects.repeated(element, some, rows)
            return not step.is_finite(step(part, scales))

        return told(suspects.guilty(is_bad, rows), ())

    def _step_for(self, element: Any) -> TracedStep:
        """Returns the step that was traced for elements like this one."""
        specs = specs_of(element)
        for known, step in self._traced:
            if known == specs:
                return step
        step = TracedStep(self._model_fn, self._modules, element)
        self._traced.append((specs, step))
        return step

    def _broken_by(self, elements: Sequence[Any]) -> list[str]:
        """Makes the whole step; returns which variables it makes not finite."""
        before = self._not_finite()
        step = TrainStep(
            self._model_fn,
            self._modules,
            self._outline,
            MetricSet(self._outline.metrics, self._outline.scalars),
        )
        batches = [[Batch(*pair_of(element)) for element in elements]]
        step(batches, tf.identity(self._modules.global_step))
        return [name for name in self._not_finite() if name not in before]

    def _not_finite(self) -> list[str]:
        return [
            name
            for name, variable in self._modules.named_variables().items()
            if variable.dtype.is_floating
            and not bool(tf.reduce_all(tf.math.is_finite(variable)))
        ]


def _examples(element: Any) -> int:
    """Returns the number of examples; 0 where there is no batch dimension."""
    leaves = tf.nest.flatten(element)
    if any(leaf.shape.rank == 0 for leaf in leaves):
        return 0
    return int(rows_in(element))


def _largest(
    step: TracedStep, seen: Seen, scales: Sequence[float], rows: int
) -> tuple[tuple[int, float], ...]:
    """Returns the examples of the largest losses, where model_fn or a run tells each.

    Args:
      step: step that was run.
      seen: what it computed of the whole element.
      scales: loss scales of that run.
      rows: number of examples.
    """
    each = seen.each
    if not each.size and 0 < rows <= MOST_RUNS:
        # A scalar is the mean over the batch: each example is run alone.
        parts = (suspects.repeated(seen.element, [row], rows) for row in range(rows))
        each = np.array([float(step(part, scales).loss) for part in parts])
    order = np.argsort(-each, kind="stable")[:_MOST_LOSSES]
    return tuple((int(row), float(each[row])) for row in order)
