"""The replicas of a strategy: how many, which are here, and sums over all of them."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

CentralStorage = tf.distribute.experimental.CentralStorageStrategy
# Strategies that trace a step once for all replicas. The number of the replica that is
# running is a tensor there, which cannot choose a batch: batches have to be arguments.
ONE_TRACE: tuple[type[tf.distribute.Strategy], ...] = (tf.distribute.TPUStrategy,)
_ON_ONE_CPU = tf.distribute.ReductionToOneDevice()


@dataclasses.dataclass(frozen=True)
class Replicas:
    """A strategy's replicas, and which of them this process has.

    Attributes:
      total: number of replicas of all processes, which share a global batch.
      local: number of replicas of this process.
      process: number of this process, and of the input pipeline that it reads; 0 leads.
      num_processes: number of processes that train in step.
    """

    total: int = 1
    local: int = 1
    process: int = 0
    num_processes: int = 1

    @property
    def first(self) -> int:
        """The number of this process' first replica among all."""
        return self.process * self.local

    @classmethod
    def of(cls, strategy: tf.distribute.Strategy) -> "Replicas":
        """Returns the replicas of `strategy`."""
        total = strategy.num_replicas_in_sync
        if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            return cls(total=total, local=total)
        local = len(strategy.extended.worker_devices)
        resolver = strategy.cluster_resolver
        process = 0
        if total > local:
            chiefs = resolver.cluster_spec().as_dict().get("chief", ())
            is_worker = resolver.task_type == "worker"
            process = resolver.task_id + (len(chiefs) if is_worker else 0)
        return cls(total, local, process, total // local)

    def running(self) -> int:
        """Returns which local replica runs, from 0; in replica context, as traced."""
        if self.total == 1:
            return 0
        context = tf.distribute.get_replica_context()
        replica = int(tf.get_static_value(context.replica_id_in_sync_group))
        return replica - self.first


def has_one_trace(strategy: tf.distribute.Strategy) -> bool:
    """Whether one trace serves all replicas, see `ONE_TRACE`."""
    return isinstance(strategy, ONE_TRACE)


def run_each(
    strategy: tf.distribute.Strategy, fn: Callable[[Any], Any], inputs: Any
) -> Any:
    """Calls `fn` on each replica with an input of its own; in cross-replica context.

    Args:
      strategy: strategy of the replicas.
      fn: called in replica context.
      inputs: inputs in the order of local replicas; where one trace serves all of them,
        a nest of values that differ by replica, as a distributed iterator gives them.

    Returns:
      The results of `fn`, as `strategy.run` returns them.
    """
    if has_one_trace(strategy):
        return strategy.run(fn, args=(inputs,))
    replicas = Replicas.of(strategy)
    return strategy.run(lambda: fn(inputs[replicas.running()]))


def by_replica(strategy: tf.distribute.Strategy, results: Any) -> list[Any]:
    """Returns what `run_each` returned as a list of nests, by local replica."""

    def of_replica(value: Any, index: int) -> Any:
        values = strategy.experimental_local_results(value)
        return values[index if len(values) > 1 else 0]  # One if all are the same.

    return [
        tf.nest.map_structure(lambda value, i=i: of_replica(value, i), results)
        for i in range(Replicas.of(strategy).local)
    ]


def all_reduce(op: tf.distribute.ReduceOp, values: Any) -> Any:
    """Returns the sum or mean of `values` over all replicas; in replica context.

    Mirrored CPUs add up on one of them, whatever the strategy was built with.
    TensorFlow's default there is a collective: it is slower, and its keys collide where
    two strategies of one process train different models.

    Args:
      op: SUM or MEAN.
      values: nest of tensors, of the same shapes on each replica.
    """
    context = tf.distribute.get_replica_context()
    if not _mirrors_cpus(context.strategy):
        return context.all_reduce(op, values)

    # In one merge call for all values, as each has the replicas wait for each other.
    def reduced(_: tf.distribute.Strategy, *flat: Any) -> tuple[Any, ...]:
        return tuple(_ON_ONE_CPU.batch_reduce(op, [(each, each) for each in flat]))

    flat = context.merge_call(reduced, args=tuple(tf.nest.flatten(values)))
    return tf.nest.pack_sequence_as(values, flat)


def aggregated(
    strategy: tf.distribute.Strategy, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the options of a new variable, with an aggregation where it needs one.

    CentralStorage has one copy of each variable. The values that the replicas assign to
    it, such as BatchNormalization's statistics, have to become one: the mean of floats,
    the first replica's of integers. Keras asks for no aggregation. It assigns to
    trainable ones as well: what a constraint makes of a kernel, Nadam's product.

    Args:
      strategy: strategy under which the variable is created.
      options: options of `tf.Variable`.
    """
    none = tf.VariableAggregation.NONE
    asked = options.get("aggregation") not in (None, none)
    if asked or not isinstance(strategy, CentralStorage):
        return dict(options)
    floating = tf.as_dtype(options.get("dtype") or tf.float32).is_floating
    mean, first = tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA
    return {**options, "aggregation": mean if floating else first}


def aggregating(strategy: tf.distribute.Strategy) -> Any:
    """Returns a context whose variables have the options of `aggregated`."""

    def create(next_creator: Any, **kwargs: Any) -> tf.Variable:
        return next_creator(**aggregated(strategy, kwargs))

    return tf.variable_creator_scope(create)


def draw_by_replica(
    strategy: tf.distribute.Strategy, parts: Iterable[tuple[str, Any]], stride: int
) -> None:
    """Has each replica draw numbers of its own where all share a generator's state.

    CentralStorage has one copy of the state, which all replicas read before the first
    of them moves it on: dropout would drop the same units on each. So would parameter
    servers' workers that read it in one instant.

    Args:
      strategy: strategy of the replicas; any other one leaves generators as they are.
      parts: parts of modules by name, random streams among them.
      stride: distance between the replicas' streams.
    """
    ways = {
        CentralStorage: _drawn_by_replica,
        tf.distribute.ParameterServerStrategy: functools.partial(
            _drawn_by_worker, strategy
        ),
    }
    draw = next((ways[kind] for kind in ways if isinstance(strategy, kind)), None)
    if draw is None:
        return
    for _, part in parts:
        if isinstance(part, keras.random.SeedGenerator):
            part.next = functools.partial(draw, type(part).next, part, stride)


def _drawn_by_replica(
    draw: Callable[..., tf.Tensor],
    generator: keras.random.SeedGenerator,
    stride: int,
    ordered: bool = True,
) -> tf.Tensor:
    """Returns the seed that a generator draws, moved away from the other replicas'."""
    seed, context = draw(generator, ordered), tf.distribute.get_replica_context()
    # A model_fn that is built runs on no replica.
    replica = 0 if context is None else context.replica_id_in_sync_group
    return seed + tf.stack([tf.cast(replica, seed.dtype) * stride, 0])


def _drawn_by_worker(
    strategy: Any,
    draw: Callable[..., tf.Tensor],
    generator: keras.random.SeedGenerator,
    stride: int,
    ordered: bool = True,
) -> tf.Tensor:
    """Returns the seed that a generator draws, moved away from the other workers'."""
    if strategy.running is None:  # A model_fn that is built runs on no worker.
        return draw(generator, ordered)
    # Keras reads the count and writes it, which takes back what others added meanwhile:
    # a worker would draw again what it drew before.
    state = generator.state.value
    state.assign_add(tf.constant([0, 1], state.dtype))
    seed = tf.identity(state)
    return seed + tf.stack([tf.cast(strategy.running, seed.dtype) * stride, -1])


def _mirrors_cpus(strategy: tf.distribute.Strategy) -> bool:
    devices = strategy.extended.worker_devices
    mirrors = type(strategy) is tf.distribute.MirroredStrategy
    return mirrors and all("CPU" in device.upper() for device in devices)
