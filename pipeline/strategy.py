"""RunConfig -> tf.distribute.Strategy: one table, one function a row."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline.run_config import RunConfig

_CentralStorage = tf.distribute.experimental.CentralStorageStrategy
_ON_ONE_CPU = tf.distribute.ReductionToOneDevice()


def create(config: RunConfig) -> tf.distribute.Strategy:
    """The strategy to train on.

    Args:
      config: `train_distribute` wins; else `execution` and `devices` choose.

    Raises:
      ValueError: an execution that this version does not offer, a cluster of several
        tasks without one, or devices that this machine does not have.
    """
    if config.train_distribute is not None:
        _check_supported(config.train_distribute)
        return config.train_distribute
    tasks = config.num_worker_replicas + config.num_ps_replicas
    if config.execution == "single_host" and tasks > 1:
        raise ValueError(
            f"TF_CONFIG names {tasks} tasks, and execution 'single_host' would train "
            "each by itself, all into one model_dir: unset TF_CONFIG."
        )
    if config.execution not in _BY_EXECUTION:
        raise ValueError(
            f"execution is {config.execution!r}; this version offers "
            f"{sorted(_BY_EXECUTION)}. A strategy built by hand can be given as "
            "RunConfig(train_distribute=...)."
        )
    return _BY_EXECUTION[config.execution](config)


def aggregated(
    strategy: tf.distribute.Strategy, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of a new variable, with an aggregation where one is needed.

    CentralStorage has one copy of each variable, so what the replicas assign to it,
    such as BatchNormalization's statistics, must become one value: the mean of floats,
    the first replica's of integers. Keras asks for none.

    Args:
      strategy: under which the variable is created.
      options: those of `tf.Variable`.
    """
    none = tf.VariableAggregation.NONE
    asked = options.get("trainable") or options.get("aggregation") not in (None, none)
    if asked or not isinstance(strategy, _CentralStorage):
        return dict(options)
    floating = tf.as_dtype(options.get("dtype") or tf.float32).is_floating
    mean, first = tf.VariableAggregation.MEAN, tf.VariableAggregation.ONLY_FIRST_REPLICA
    return {**options, "aggregation": mean if floating else first}


def single_host(config: RunConfig) -> tf.distribute.Strategy:
    """All local GPUs, or the devices asked for; one replica runs without a strategy.

    Several devices are mirrored. One device that was asked for by name gets
    OneDeviceStrategy; else TensorFlow's own placement is as good and faster.
    """
    if config.devices is None:
        names = [_short_name(d) for d in tf.config.list_logical_devices("GPU")]
        if len(names) < 2:
            return tf.distribute.get_strategy()
    else:
        names = [
            name.upper().removeprefix("/").removeprefix("DEVICE:")
            for name in config.devices
        ]
        _split_cpu(names)
        _check_present(names)
    if len(names) == 1:
        return tf.distribute.OneDeviceStrategy(f"/{names[0]}")
    return _mirrored(tuple(names))


def all_reduce(op: tf.distribute.ReduceOp, values: Any) -> Any:
    """The sum or mean of `values` over all replicas, on each; in replica context.

    Mirrored CPUs add up on one of them, whatever the strategy was built with:
    TensorFlow's default there is a collective, slower, and its keys collide between two
    strategies of one process that train different models.

    Args:
      op: SUM or MEAN.
      values: nest of tensors.
    """
    context = tf.distribute.get_replica_context()
    if not _mirrors_cpus(context.strategy):
        return context.all_reduce(op, values)

    def reduced(_: tf.distribute.Strategy, *flat: Any) -> tuple[Any, ...]:
        return tuple(_ON_ONE_CPU.batch_reduce(op, [(each, each) for each in flat]))

    flat = context.merge_call(reduced, args=tuple(tf.nest.flatten(values)))
    return tf.nest.pack_sequence_as(values, flat)


def _mirrors_cpus(strategy: tf.distribute.Strategy) -> bool:
    devices = strategy.extended.worker_devices
    mirrors = type(strategy) is tf.distribute.MirroredStrategy
    return mirrors and all("CPU" in device.upper() for device in devices)


@functools.cache
def _mirrored(names: tuple[str, ...]) -> tf.distribute.Strategy:
    """One strategy for the same devices; what users reduce themselves goes alike."""
    all_cpus = all("CPU" in name for name in names)
    return tf.distribute.MirroredStrategy(
        [f"/{name}" for name in names],
        cross_device_ops=_ON_ONE_CPU if all_cpus else None,
    )


_BY_EXECUTION: dict[str, Callable[[RunConfig], tf.distribute.Strategy]] = {
    "single_host": single_host,
}


def _check_supported(strategy: tf.distribute.Strategy) -> None:
    kinds = (
        type(tf.distribute.get_strategy()),
        tf.distribute.OneDeviceStrategy,
        tf.distribute.MirroredStrategy,
        _CentralStorage,
    )
    if not isinstance(strategy, kinds):
        raise ValueError(
            f"the strategy is a {type(strategy).__name__}; this version trains on "
            f"{[kind.__name__ for kind in kinds[1:]]}, or on none."
        )


def _split_cpu(names: Sequence[str]) -> None:
    """Makes the logical CPUs that `names` ask for, while TensorFlow still can."""
    numbers = [int(name.partition(":")[2] or 0) for name in names if "CPU" in name]
    wanted = max(numbers, default=0) + 1
    physical = tf.config.list_physical_devices("CPU")
    if wanted == 1 or tf.config.get_logical_device_configuration(physical[0]):
        return
    logical = [tf.config.LogicalDeviceConfiguration()] * wanted
    try:
        tf.config.set_logical_device_configuration(physical[0], logical)
    except RuntimeError:
        return  # TensorFlow runs already, and _check_present names what is there.


def _check_present(names: Sequence[str]) -> None:
    present = [_short_name(device) for device in tf.config.list_logical_devices()]
    absent = [name for name in names if name not in present]
    if absent:
        raise ValueError(
            f"devices {absent} are not among this machine's {present}. Write "
            "devices=['GPU:0', 'GPU:1'], or leave devices out for all GPUs; logical "
            "CPUs must be asked for before TensorFlow first runs."
        )


def _short_name(device: tf.config.LogicalDevice) -> str:
    return device.name.upper().partition("DEVICE:")[2]
