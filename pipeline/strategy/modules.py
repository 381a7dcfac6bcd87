"""Makes modules of factories under the strategy's scope, with all their variables.

Modules hold all state of a run. Layers that build on first call are built by tracing
model_fn once on one replica's batch, outside of any replica. So their variables are
created under the strategy. Keras alone cannot do this with two replicas.
"""

import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from pipeline.contract import calling
from pipeline.contract.averages import Average
from pipeline.contract.model_fn import call_model_fn
from pipeline.contract.spec import EstimatorSpec
from pipeline.contract.train_op import SpecError
from pipeline.mistakes import shared_state, user_errors
from pipeline.mistakes.checks import kind_of
from pipeline.process.refusals import RefusedTypeError
from pipeline.strategy import loss_scale, sharding, variables
from pipeline.strategy.averages import Averages
from pipeline.strategy.replicas import (
    Replicas,
    aggregated,
    aggregating,
    all_reduce,
    draw_by_replica,
)
from pipeline.tracing import (
    initial_values,
    keras_tables,
    replica_means,
    seeds,
    trace_checks,
)
from pipeline.tracing.batch_sums import rows_of
from pipeline.tracing.compiling import compiled, traced_once

# Odd and large, so that the streams of replicas do not meet.
_SEED_STRIDE = 7919
# Strategies that update variables by merge calls, also of one replica.
_MIRRORING = tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy


class Modules:
    """The modules of a run on its strategy, the global step, and the loss scales.

    Attributes:
      strategy: strategy of the variables.
      by_name: modules by the names under which model_fn takes them.
      global_step: int64 scalar variable, updates made so far.
      driver_state: the driver's own variables by name: the global step, the step at
        which the pass over the training input began, the loss scales, the averages.
      averages: the averages of the variables; None without any.
      seeds: the random numbers that the modules and their traces draw.
    """

    def __init__(
        self,
        factories: Mapping[str, Callable[..., Any]],
        strategy: tf.distribute.Strategy,
        *,
        context: Mapping[str, Any] = types.MappingProxyType({}),
        precision: str = "float32",
        seed: int | None = None,
        average: Average | None = None,
    ) -> None:
        """Calls each factory once under the scope.

        Args:
          factories: factories by module name, see `calling.call_factory`.
          strategy: strategy for the variables.
          context: `params` and `config`, for the factories that require them.
          precision: Keras dtype policy that the factories see.
          seed: seed of the initial values; None leaves the seeds as they are.
          average: what is averaged beside the variables; None for nothing.

        Raises:
          TypeError: a factory is a module already, or returned what TensorFlow cannot
            track.
          ValueError: a factory returned what it has returned before.
        """
        self.seeds = seeds.Seeds(seed)
        self.strategy = strategy
        creating = aggregating(strategy)
        drawing = self.seeds.drawn()
        with drawing, strategy.scope(), creating, loss_scale.dtype_policy(precision):
            self.by_name = {n: _make(n, f, context) for n, f in factories.items()}
            self.driver_state = {
                "global_step": _counter("global_step"),
                "input_start": _counter("input_start"),
            }
            if precision == "mixed_float16":
                loss_scale.add_variables(self.driver_state, 1)
            self.averages = average and Averages(average, strategy, self.driver_state)
        self.global_step = self.driver_state["global_step"]
        self._replicas = Replicas.of(strategy)
        self._said: set[str] = set()
        self._averaged: tuple[list[str], Callable[[], Any]] | None = None
        self._owner = object()
        self._claim()
        self.spread_seeds()

    @property
    def step(self) -> int:
        """The global step, read now."""
        return int(self.global_step.numpy())

    def build(
        self,
        model_fn: Callable[[Any, Any, tf.Tensor], EstimatorSpec],
        element_spec: Any,
    ) -> EstimatorSpec:
        """Traces `model_fn` so that deferred layers and optimizer slots exist.

        Args:
          model_fn: takes features, labels and step; of the mode to build for.
          element_spec: the type specs `(features, labels)` of one replica's batch.

        Returns:
          model_fn's spec, with symbolic tensors: shapes and dtypes count.

        Raises:
          SpecError: model_fn created variables itself; or a train op's optimizer or
            variables are in no module.
        """
        before = self.named_variables()
        created: list[tf.Variable] = []
        inside = False

        def create(next_creator: Any, **kwargs: Any) -> tf.Variable:
            nonlocal inside
            if inside:  # tf.init_scope keeps the creator where Keras entered one first.
                return next_creator(**kwargs)
            known = {k: v for k, v in kwargs.items() if v is not None}
            known = aggregated(self.strategy, known)
            # Made of a value of this trace: model_fn's own.
            if tf.is_symbolic_tensor(known.get("initial_value")):
                raise trace_checks.stray_error([known.get("name")])
            inside = True
            try:
                with tf.init_scope(), self.strategy.scope():
                    created.append(tf.Variable(**known))
            finally:
                inside = False
            return created[-1]

        def trace(element: Any, creator: Any = create) -> EstimatorSpec:
            with tf.variable_creator_scope(creator):
                return model_fn(*element, tf.zeros([], tf.int64))

        mine = self.by_name.values()
        guarded = trace_checks.no_updates(mine, owns=self._owns)
        with self.seeds.drawn(), guarded, sharding.cut_by(self.strategy):
            spec, graph = traced_once(trace, element_spec)
        self.say(trace_checks.remarks(graph, spec, rows_of(element_spec[0])))
        self.say(keras_tables.remarks(variables.parts(self.by_name)))
        given = variables.parts(self.by_name), spec, self._replicas.total
        self.say(replica_means.remarks(*given))
        owned = self._ids()
        stray = [v.name for v in created if id(v) not in owned]
        if stray:
            # Said where model_fn makes them, if it makes them again.
            traced_once(lambda e: trace(e, trace_checks.refuse_variable), element_spec)
            raise trace_checks.stray_error(stray)
        self._build_optimizers(spec, owned)
        self._claim()
        sharding.let_gather(self.named_variables().values())
        if self.averages is not None:
            slots = variables.optimizer_prefixes(self.by_name)
            self.averages.build(self.named_variables(), slots, spec.train_op)
        self.spread_seeds(spread_before=before)
        return spec

    def say(self, remarks: Iterable[str], level: int = logging.WARNING) -> None:
        """Logs what a trace showed, each text once, in the first process."""
        for text in remarks:
            if text not in self._said and self._replicas.process == 0:
                logging.log(level, "%s", text)
            self._said.add(text)

    def named_state(self) -> dict[str, dict[str, Any]]:
        """Returns state by module and name, in the order of `module.variables`.

        Variables are `tf.Variable`s, not Keras' own: asynchronous saving needs these.
        """
        state: dict[str, dict[str, Any]] = {}
        references = {}
        is_optimizer = keras.optimizers.Optimizer
        # Optimizers come last: their slots are named after the variables of others.
        for name in sorted(
            self.by_name, key=lambda n: isinstance(self.by_name[n], is_optimizer)
        ):
            named = variables.named_state(self.by_name[name], references)
            state[name] = {key: variables.raw(v) for key, v in named.items()}
            references.update({f"{name}/{key}": v for key, v in named.items()})
        return {**state, "driver": self.driver_state}

    def named_values(self) -> dict[str, Any]:
        """Returns every variable, and every table with state, by its full name."""
        return variables.flat(self.named_state())

    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns every variable by its full name, `network/dense/kernel`."""
        return variables.variables_of(self.named_state())

    def unbuilt_prefixes(self) -> tuple[str, ...]:
        """Returns full name prefixes of the parts that no mode has built yet."""
        return tuple(
            f"{name}/{prefix}"
            for name, module in self.by_name.items()
            for prefix in variables.unbuilt_parts(module)
        )

    def spread_seeds(self, *, spread_before: Iterable[str] = ()) -> None:
        """Gives each replica a random stream of its own, derived from the first's.

        Mirrored copies of a seed generator's state are equal: dropout would drop the
        same units on every replica. It is called after a build and after a restore.

        Args:
          spread_before: names of variables whose streams are spread already.
        """
        draw_by_replica(self.strategy, variables.parts(self.by_name), _SEED_STRIDE)
        if self._replicas.total == 1:
            return
        for name, variable in self.named_variables().items():
            is_seed = re.search(r"seed_generator_state(_\d+)?$", name)
            if not is_seed or name in spread_before:
                continue
            copies = self.strategy.experimental_local_results(variable)
            base = copies[0].numpy()
            for replica, copy in enumerate(copies, start=self._replicas.first):
                copy.assign(base + [replica * _SEED_STRIDE, 0])

    def synchronize(self) -> None:
        """Averages the variables that each replica keeps for itself, over replicas.

        BatchNormalization's moving statistics are such variables. They are averages
        themselves, so the result does not depend on when this is called.
        """
        own = self.replica_local()
        if self._replicas.total == 1 or not own:
            return
        # Another mode may have built more of them.
        if self._averaged is None or self._averaged[0] != list(own):
            self._averaged = list(own), self._averaging(list(own.values()))
        local = self.strategy.experimental_local_results
        means = self._averaged[1]()
        for variable, values in zip(own.values(), means, strict=True):
            for copy, value in zip(local(variable), local(values), strict=True):
                copy.assign(value)

    def _averaging(self, own: list[tf.Variable]) -> Callable[[], Any]:
        mean = tf.distribute.ReduceOp.MEAN

        def on_replica() -> Any:
            return all_reduce(mean, [tf.identity(variable) for variable in own])

        def averaged() -> Any:  # TPUStrategy derives a name from this function's.
            return self.strategy.run(on_replica)

        return compiled(averaged)

    def replica_local(self) -> dict[str, tf.Variable]:
        """Returns variables of which each replica has its own value; no slots."""
        optimizers = variables.optimizer_prefixes(self.by_name)
        return {
            name: variable
            for name, variable in self.named_variables().items()
            if _is_replica_local(variable) and not name.startswith(optimizers)
        }

    def _claim(self) -> None:
        """Refuses variables and tables that others have, now that these exist."""
        named = self.named_values().items()
        held = {n: shard for n, v in named for shard in sharding.shards_of(v)}
        shared_state.claim(held, self._owner)

    def _ids(self) -> set[int]:
        """Returns the ids of all `tf.Variable`s, each shard by itself."""
        named = self.named_variables()
        return {id(shard) for v in named.values() for shard in sharding.shards_of(v)}

    def _owns(self, variable: Any) -> bool:
        """Whether it is a module's, or that of a metric that a layer has for itself."""
        for module in self.by_name.values():
            kept = getattr(module, "metrics_variables", ())
            if any(variable is each for each in kept):
                return True
        return id(variables.raw(variable)) in self._ids()

    def _build_optimizers(self, spec: EstimatorSpec, owned: set[int]) -> None:
        optimized: dict[int, list[Any]] = {}
        optimizers = {id(m): m for m in self.by_name.values()}
        mirrors = isinstance(self.strategy, _MIRRORING)
        for op in spec.train_op:
            if id(op.optimizer) not in optimizers:
                raise SpecError(
                    f"TrainOp.optimizer {op.optimizer.name} is no module, so that its "
                    "state would be in no checkpoint: hand in its factory, Estimator("
                    "modules={'optimizer': make_optimizer}), and take that argument."
                )
            overwrites = op.optimizer.use_ema and op.optimizer.ema_overwrite_frequency
            if overwrites and (mirrors or self._replicas.total > 1):
                raise SpecError(
                    f"TrainOp.optimizer {op.optimizer.name} has an "
                    "ema_overwrite_frequency, which Keras cannot do under "
                    f"{type(self.strategy).__name__}: leave it out (use_ema alone "
                    "works)."
                )
            known = optimized.setdefault(id(op.optimizer), [])
            known += [v for v in op.variables if all(v is not k for k in known)]
            stray = [v.name for v in op.variables if id(variables.raw(v)) not in owned]
            if stray:
                raise SpecError(
                    f"TrainOp.variables {stray} are in no module, so that they would "
                    "be in no checkpoint: hand them in as modules."
                )
        with self.strategy.scope(), aggregating(self.strategy):
            if loss_scale.is_used(self.driver_state):
                loss_scale.add_variables(self.driver_state, len(spec.train_op))
            for key, trained in optimized.items():
                if not optimizers[key].built:
                    initial_values.build_slots(optimizers[key], trained)


def bind(
    model_fn: Callable[..., Any],
    mode: str,
    modules: Modules,
    context: Mapping[str, Any],
) -> Callable[[Any, Any, tf.Tensor], EstimatorSpec]:
    """Returns model_fn as a function of features, labels and step alone.

    Args:
      model_fn: the user's model_fn.
      mode: one of `ModeKeys`.
      modules: modules, which it takes by name.
      context: `params` and `config`.
    """

    def bound(features: Any, labels: Any, step: tf.Tensor) -> EstimatorSpec:
        modules.seeds.seed_graph()
        late = variables.read_when_run(modules.by_name.values())
        with late, replica_means.kept():
            return call_model_fn(
                model_fn,
                features=features,
                labels=labels,
                mode=mode,
                modules=modules.by_name,
                context={**context, "step": step},
            )

    return bound


def _make(name: str, factory: Callable[..., Any], context: Mapping[str, Any]) -> Any:
    built = variables.is_trackable_module(factory)
    if built or not callable(factory):
        raise RefusedTypeError(
            f"module {name!r} is {kind_of(factory)}, which is "
            f"{'already built' if built else 'no factory'}: its variables must be "
            "created under the strategy. Hand in the factory: modules={"
            f"{name!r}: make_{name}}} (in gin @make_{name} without brackets)."
        )
    with user_errors.noted(lambda: f"the factory of module {name!r}"):
        role = f"the factory of module {name!r},"
        module = calling.call_factory(factory, context, role=role)
    variables.check_module(name, module)
    return module


def _counter(name: str) -> tf.Variable:
    return tf.Variable(
        tf.constant(0, tf.int64),
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def _is_replica_local(variable: tf.Variable) -> bool:
    return (
        isinstance(variable, tf.Variable)
        and not variable.trainable
        and variable.dtype.is_floating
        and variable.aggregation == tf.VariableAggregation.NONE
    )
