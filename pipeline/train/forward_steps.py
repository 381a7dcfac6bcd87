# SPDX-License-Identifier: Apache-2.0
"""Steps without updates: of evaluations and of predictions."""

import functools
from typing import Any

import tensorflow as tf

from ..data.batch import Batch
from ..distribute.replicas import Replicas
from . import losses
from .fetches import Fetches
from .metrics import MetricSet
from .step import Batches, BoundModelFn, compiled
from .totals import Totals, sum_of, totals_of, zeros_of


class EvalStep:
    """One step of an evaluation, which changes no variable."""

    def __init__(
        self,
        model_fn: BoundModelFn,
        metrics: MetricSet,
        replicas: Replicas,
        global_step: tf.Variable,
        *,
        fetches: Fetches | None = None,
        jit_compile: bool = False,
    ) -> None:
        """Takes model_fn in mode EVAL; the totals have the tensors of `fetches`."""
        self._model_fn = model_fn
        self._fetches = fetches
        self._global_step = global_step
        self._metrics = metrics
        self._replicas = replicas
        self._jit_compile = jit_compile

    def zeros(self) -> Totals:
        """Returns the totals of no step."""
        return zeros_of(self._metrics, (), self._fetches)

    def __call__(self, batches: Batches, step: tf.Tensor) -> Totals:
        """Returns the totals of one step's batches; `step` counts the steps of the evaluation."""
        [batch] = batches
        global_step = tf.identity(self._global_step)
        forward = compiled(functools.partial(self._forward, global_step), self._jit_compile)
        return sum_of(self._replicas.run(forward, batch), batches, self._fetches)

    def _forward(self, step: tf.Tensor, batch: Batch) -> Totals:
        with losses.per_replica_means():
            spec = self._model_fn(batch.features, batch.labels, step)
        total = losses.total_loss(spec, batch)
        totals = totals_of(spec, batch, total, self._metrics, self._fetches)
        return totals._replace(scalars={})


class PredictStep(EvalStep):
    """One step of a prediction, which fetches `EstimatorSpec.predictions`."""

    def __init__(
        self, model_fn: BoundModelFn, fetches: Fetches, replicas: Replicas, global_step: tf.Variable
    ) -> None:
        """Takes model_fn in mode PREDICT, and the predictions to fetch."""
        super().__init__(model_fn, MetricSet({}), replicas, global_step, fetches=fetches)

    def __call__(self, batches: Batches, step: tf.Tensor) -> Totals:
        """Returns the totals of one step's batches: the predictions, and else 0."""
        [batch] = batches
        global_step = tf.identity(self._global_step)

        def forward(each: Batch) -> Any:
            return self._fetches.of(self._model_fn(each.features, None, global_step))

        parts = [part for [part] in self._replicas.run(forward, batch)]
        return self.zeros()._replace(fetched=self._fetches.joined(parts, batches))
