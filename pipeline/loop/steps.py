"""One step on every replica: loss, gradients, update, metrics.

What is minimised is sum(loss * weights) / sum(weights) over all replicas and
micro-batches, plus the regularization once. Each replica takes the gradient of its own
weighted mean plus the regularization. The mean of these gradients, weighted by the
replicas' sums of weights, is the gradient of the whole: the replicas' shares add up to
1, so the regularization counts once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pipeline.contract.model_fn import BoundModelFn
from pipeline.contract.spec import EstimatorSpec
from pipeline.contract.train_op import TrainOp
from pipeline.feed.batch import Batch, choose, rows_in, same_shapes
from pipeline.loop import losses
from pipeline.loop.gradients import Gradient, Norms, Untrained, gradient_of
from pipeline.loop.losses import Totals
from pipeline.loop.metrics import MetricSet
from pipeline.loop.updates import Updates, turn
from pipeline.rows.slices import plus, spec_of_sums
from pipeline.strategy import loss_scale
from pipeline.strategy.modules import Modules
from pipeline.strategy.replicas import all_reduce, by_replica, has_one_trace, run_each
from pipeline.tracing.compiling import told_of_xla
from pipeline.tracing.summary_states import States, SummarySet, number, placed

# Batches by local replica and micro-batch; or by micro-batch, of values that differ by
# replica, see `replicas.run_each`.
Batches = Sequence[Sequence[Batch]] | Sequence[Batch]


class TrainStep:
    """Updates the modules by one step's batches.

    It is called in cross-replica context, and traced into a loop:

        for each group of train ops that share a forward pass:
            on each replica: for each micro-batch: forward, backward
            all-reduce the gradients
            on each replica: clip, let each optimizer update its variables
    """

    def __init__(
        self,
        model_fn: BoundModelFn,
        modules: Modules,
        outline: EstimatorSpec,
        metrics: MetricSet,
        *,
        alike: bool = True,
        sparse: bool = True,
        jit_compile: bool | None = False,
        summaries: SummarySet | None = None,
        norms: Norms | None = None,
    ) -> None:
        """Groups the train ops by the forward passes that they share.

        Args:
          model_fn: takes features, labels and step, and returns the spec of TRAIN.
          modules: modules to train.
          outline: spec that `modules.build` returned. Its train ops say what is done,
            and an op of a later trace is known by its place among them.
          metrics: metrics of the outline.
          alike: whether other processes' batches have the same type specs.
          sparse: whether a table's gradient holds only the rows that were used.
          jit_compile: whether XLA compiles what a replica computes by itself.
          summaries: summaries that the totals hold; None for none.
          norms: norms that are among the summaries; None for none.
        """
        self._alike, self._norms, self._sparse = alike, norms, sparse
        self._model_fn = model_fn
        self._strategy = modules.strategy
        self._metrics, self._summaries = metrics, summaries
        self._ops = outline.train_op
        self._jit_compile = jit_compile
        # Whether one call of `strategy.run` does all of a step: on a TPU each call is a
        # program by itself. Updates under a condition need calls of their own.
        self._at_once = has_one_trace(self._strategy) and not (
            loss_scale.is_used(modules.driver_state)
            or any(len(op.at) < op.every for op in self._ops)
        )
        self._groups = _groups(self._ops)
        # By the number of an op, the variables that its loss depends on. A trace finds
        # them out.
        self._trained: dict[int, list[Any]] = {}
        self._untrained = Untrained(self._ops, modules)
        used = {id(op.optimizer) for op in self._ops}
        named = {n: m for n, m in modules.by_name.items() if id(m) in used}
        self._optimizers = list(named.values())
        self.rate_names = [f"learning_rate/{name}" for name in named]
        if len(named) == 1:
            self.rate_names = ["learning_rate"]
        self._updates = Updates(
            self._ops, modules.strategy, modules.driver_state, sparse=sparse
        )

    def __call__(self, batches: Batches, step: tf.Tensor) -> Totals:
        """Runs one step.

        Args:
          batches: batches of all local replicas.
          step: int64 scalar, updates made before.

        Returns:
          Totals over all local replicas, of the first group's last forward pass.
        """
        first, *later = self._groups
        before = self._norms.snapshot() if self._norms else None
        totals = self._train(first, batches, step)
        norms: States = {}
        for group in later:
            norms |= self._train_if_due(group, batches, step)
        totals = losses.sum_over_replicas(self._strategy, totals)
        if self._norms:
            norms |= self._norms.of_update(before)
            totals.summaries.update(norms)
        return totals

    def learning_rates(self) -> dict[str, tf.Tensor]:
        """Returns each optimizer's rate for its next update.

        Returns:
          Float32 scalars by the names in `rate_names`.
        """
        return {
            name: tf.cast(optimizer.learning_rate, tf.float32)
            for name, optimizer in zip(self.rate_names, self._optimizers, strict=True)
        }

    def _train(self, group: Sequence[int], batches: Batches, step: tf.Tensor) -> Any:
        """Updates by the ops of a group.

        Returns:
          Totals by replica, of the last forward pass.
        """
        passes = max(self._ops[i].repeat for i in group)
        for left in reversed(range(passes)):
            active = [i for i in group if self._ops[i].repeat > left]
            totals, values = self._gradients(batches, step, active)
            if not self._at_once:
                self._updates.apply(active, values, self._trained, step)
        return totals

    def _train_if_due(
        self, group: Sequence[int], batches: Batches, step: tf.Tensor
    ) -> States:
        """Updates by the ops of a group whose turn has come; returns their norms."""
        names = self._norms.of_ops(group) if self._norms else ()

        def train() -> tuple[bool, States]:
            *_, states = self._train(group, batches, step)
            local = self._strategy.experimental_local_results
            mine = {name: states[name] for name in names}
            return True, tf.nest.map_structure(lambda value: local(value)[0], mine)

        def nothing() -> tuple[bool, States]:
            return True, {name: number(tf.zeros([])) for name in names}

        turns = [turn(self._ops[i], step) for i in group]
        if any(turn is None for turn in turns):
            return train()[1]
        return tf.cond(tf.reduce_any(turns), train, nothing)[1]

    def _gradients(
        self, batches: Batches, step: tf.Tensor, active: Sequence[int]
    ) -> tuple[Any, list[Any]]:
        """Returns totals by replica, and the active ops' all-reduced gradients.

        Where one call does all of a step, the gradients are applied in it, and none is
        returned.
        """

        def on_replica(mine: Sequence[Batch]) -> tuple[Any, list[Any]]:
            totals, gradients = self._local(mine, step, active)
            values = self._all_reduce(gradients, alike)
            for i, mine_of_op in zip(active, values, strict=True):
                if self._norms:
                    given = mine_of_op, self._trained[i], self._updates.factor(i)
                    totals.summaries.update(self._norms.of_gradient(i, *given))
            if self._at_once:
                self._updates.apply_here(active, values, self._trained, step)
            return totals.as_tree(), [] if self._at_once else values

        # Every eager tensor has a static shape; another process' may have another one.
        alike = self._alike and tf.inside_function() and same_shapes(batches)
        return run_each(self._strategy, on_replica, batches)

    def _local(
        self, mine: Sequence[Batch], step: tf.Tensor, active: Sequence[int]
    ) -> tuple[Totals, list[Gradient]]:
        """Returns totals and gradients of one replica, which asks no other replica.

        Args:
          mine: the replica's batches, by micro-batch.
          step: int64 scalar, updates made before.
          active: numbers of the ops whose gradients are wanted.
        """

        def compute() -> tuple[Any, Any, Any]:
            totals, gradients = self._one(mine[0], step, active)
            if len(mine) > 1:
                totals, gradients = self._rest(mine, step, active, totals, gradients)
            weights = [g.weight for g in gradients]
            return totals.as_tree(), [g.values for g in gradients], weights

        totals, values, weights = _compiled(compute, self._jit_compile)()
        gradients = [Gradient(list(v), w) for v, w in zip(values, weights, strict=True)]
        return Totals(*totals), gradients

    def _one(
        self, batch: Batch, step: tf.Tensor, active: Sequence[int]
    ) -> tuple[Totals, list[Gradient]]:
        """Does one micro-batch forward and backward; returns totals and gradients."""
        with tf.GradientTape(persistent=len(self._ops) > 1) as tape:
            spec = self._model_fn(batch.features, batch.labels, step)
            rows = rows_in(batch.features)
            loss, weight = losses.objective(spec, rows)
            given = loss, losses.weight_of_gradient(spec, weight), rows
            objectives = [losses.of_op(op, *given) for op in spec.train_op]
            scaled = [self._updates.scaled(i, o) for i, (o, _) in enumerate(objectives)]
        gradients = []
        for i in active:
            given = tape, scaled[i], spec.train_op[i], self._updates.factor(i)
            values, self._trained[i] = gradient_of(*given)
            self._untrained.of_op(spec.train_op[i], self._trained[i])
            gradient = Gradient(values, losses.shared(objectives[i][1], batch.share))
            gradients.append(gradient if self._sparse else gradient.as_dense())
        given = batch, self._metrics, self._summaries
        return losses.totals_of(spec, loss, weight, *given), gradients

    def _rest(
        self,
        mine: Sequence[Batch],
        step: tf.Tensor,
        active: Sequence[int],
        totals: Totals,
        gradients: list[Gradient],
    ) -> tuple[Totals, list[Gradient]]:
        """Adds the second and all later micro-batches to the first one's results.

        It is a loop in the graph, which traces model_fn once for all of them.
        """
        number = losses.num_counted(mine, self._strategy)

        def sum_of(gradient: Gradient) -> Gradient:
            # XLA has no shapes that grow, as those of rows do.
            return (gradient.as_dense() if self._jit_compile else gradient).as_sum()

        def body(index: tf.Tensor, tree: Any, values: Any, weights: Any) -> Any:
            totals, gradients = self._one(choose(mine, index), step, active)
            totals.summaries.update(placed(totals.summaries, index))
            more = [sum_of(g) for g in gradients]
            values = tf.nest.map_structure(plus, values, [g.values for g in more])
            weights = [w + g.weight for w, g in zip(weights, more, strict=True)]
            return index + 1, Totals(*tree).plus(totals).as_tree(), values, weights

        first = [sum_of(g) for g in gradients]
        values, weights = [g.values for g in first], [g.weight for g in first]
        start = tf.constant(1), totals.as_tree(), values, weights
        _, tree, values, weights = tf.while_loop(
            lambda index, *_: index < number,
            body,
            start,
            shape_invariants=tf.nest.map_structure(spec_of_sums, start),
        )
        sums = [Gradient(v, w) for v, w in zip(values, weights, strict=True)]
        return Totals(*tree), [g.as_mean() for g in sums]

    def _all_reduce(self, gradients: list[Gradient], alike: bool) -> list[list[Any]]:
        """Returns each gradient's mean over replicas by weights; in replica context.

        Args:
          gradients: this replica's gradients.
          alike: whether a weight that is static is the same on every replica.
        """
        values = [g.values for g in gradients]
        if self._strategy.num_replicas_in_sync == 1:
            return values
        # With equal weights the plain mean is the same, and sums up no weights.
        if alike and all(isinstance(g.weight, float) for g in gradients):
            return all_reduce(tf.distribute.ReduceOp.MEAN, values)
        weighted = [g.as_sum() for g in gradients]
        sums, weights = all_reduce(
            tf.distribute.ReduceOp.SUM,
            ([g.values for g in weighted], [g.weight for g in weighted]),
        )
        pairs = zip(sums, weights, strict=True)
        return [Gradient(v, w).as_mean().values for v, w in pairs]


class EvalStep:
    """The loss and metrics of one step's batches; changes no module."""

    def __init__(
        self,
        model_fn: BoundModelFn,
        modules: Modules,
        metrics: MetricSet,
        *,
        jit_compile: bool | None = False,
        summaries: SummarySet | None = None,
    ) -> None:
        """Takes what the step computes with.

        Args:
          model_fn: takes features, labels and step, and returns the spec of EVAL.
          modules: modules to evaluate.
          metrics: metrics of the mode.
          jit_compile: whether XLA compiles what a replica computes by itself.
          summaries: summaries that the totals hold; None for none.
        """
        self._summaries = summaries
        self._model_fn = model_fn
        self._strategy = modules.strategy
        self._global_step = modules.global_step
        self._metrics = metrics
        self._jit_compile = jit_compile

    def __call__(self, batches: Batches, step: tf.Tensor) -> Totals:
        """Returns the totals over all local replicas.

        Args:
          batches: batches of all local replicas, each of one micro-batch.
          step: number of the step in this evaluation, for host metrics: model_fn gets
            the global step that is evaluated.
        """
        global_step = tf.identity(self._global_step)

        def on_replica(mine: Sequence[Batch]) -> Any:
            (batch,) = mine

            def compute() -> Any:
                spec = self._model_fn(batch.features, batch.labels, global_step)
                loss, weight = losses.objective(spec, rows_in(batch.features))
                given = batch, self._metrics, self._summaries
                totals = losses.totals_of(spec, loss, weight, *given)
                return totals.as_tree(), self._metrics.host.tensors(spec)

            share = tf.ones([]) if batch.share is None else batch.share
            return *_compiled(compute, self._jit_compile)(), share

        totals, *kept = run_each(self._strategy, on_replica, batches)
        if self._metrics.host:
            self._metrics.host.keep(step, by_replica(self._strategy, kept))
        summed = losses.sum_over_replicas(self._strategy, totals)
        summed.summaries.update(placed(summed.summaries, step))
        return summed


class PredictStep:
    """The predictions of one step's batches."""

    def __init__(self, model_fn: BoundModelFn, modules: Modules) -> None:
        """Takes model_fn, bound to PREDICT, and the modules to predict with."""
        self._model_fn = model_fn
        self._strategy = modules.strategy
        self._global_step = modules.global_step

    def __call__(self, features: Any) -> list[Any]:
        """Returns the predictions by local replica.

        Args:
          features: features of all replicas, as `replicas.run_each` takes its inputs.
        """
        global_step = tf.identity(self._global_step)

        def on_replica(mine: Any) -> Any:
            return self._model_fn(mine, None, global_step).predictions

        predictions = run_each(self._strategy, on_replica, features)
        return by_replica(self._strategy, predictions)


def _groups(ops: Sequence[TrainOp]) -> list[list[int]]:
    """Returns the numbers of the ops, grouped by the forward passes that they share.

    A sequential op begins a new group: its forward pass sees the updates before it.
    """
    groups: list[list[int]] = []
    for i, op in enumerate(ops):
        if op.sequential or not groups:
            groups.append([])
        groups[-1].append(i)
    return groups


def _compiled(fn: Callable[[], Any], jit_compile: bool | None) -> Callable[[], Any]:
    """Returns `fn`, under XLA where that is asked for.

    Args:
      fn: computes on one replica; XLA cannot compile an all-reduce between replicas.
      jit_compile: True, or None for TensorFlow's choice; False leaves `fn` as it is.
    """
    if jit_compile is False:
        return fn
    return tf.function(told_of_xla(fn), jit_compile=jit_compile, autograph=False)
