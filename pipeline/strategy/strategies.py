"""Makes the strategy that a RunConfig asks for: one table, one function a row.

Each row is a function of the RunConfig. Its other parameters are set by gin:

    RunConfig.execution = 'multi_worker'          # --execution picks a row, too
    multi_worker.communication = 'nccl'

    RunConfig.train_distribute = @mirrored        # or a row by name
    mirrored.cross_device_ops = 'hierarchical_copy'
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline.cluster.tf_config import EVALUATOR
from pipeline.contract.run_config import RunConfig
from pipeline.process import run_log
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy import coordination, tpu
from pipeline.strategy.parameter_server import ParameterServers, parameter_server
from pipeline.strategy.replicas import CentralStorage

_CROSS_DEVICE_OPS: Mapping[str, Callable[[], Any] | None] = {
    "auto": None,
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}
_COMMUNICATION = {
    name: getattr(tf.distribute.experimental.CommunicationImplementation, name.upper())
    for name in ("auto", "ring", "nccl")
}


def create(config: RunConfig) -> tf.distribute.Strategy:
    """Returns the strategy to train on; in an evaluator's job, to evaluate on.

    Args:
      config: how to run; `train_distribute` wins, else `execution` and `devices`.

    Raises:
      ValueError: this version does not offer the execution; TF_CONFIG names several
        tasks, and the execution is for one; or this machine lacks the devices.
    """
    look_for_devices()
    if config.task_type == EVALUATOR:
        return resolved(config.eval_distribute or single_host, config)
    if config.train_distribute is not None:
        return resolved(config.train_distribute, config)
    if config.execution not in BY_EXECUTION:
        raise RefusedValueError(
            f"execution is {config.execution!r}; this version offers "
            f"{sorted(BY_EXECUTION)}. A strategy built by hand can be given as "
            "RunConfig(train_distribute=...)."
        )
    return resolved(BY_EXECUTION[config.execution], config)


def resolved(
    choice: tf.distribute.Strategy | Callable[[RunConfig], tf.distribute.Strategy],
    config: RunConfig,
) -> tf.distribute.Strategy:
    """Returns the strategy that a user chose.

    Args:
      choice: `RunConfig.train_distribute` or `eval_distribute`: a strategy, or a row,
        which makes one.
      config: how to run.

    Raises:
      ValueError: this version does not train on such a strategy.
    """
    is_made = isinstance(choice, tf.distribute.Strategy)
    strategy = choice if is_made else choice(config)
    _check_supported(strategy)
    return strategy


def single_host(
    config: RunConfig, *, cross_device_ops: str = "auto"
) -> tf.distribute.Strategy:
    """Returns a strategy for all local GPUs, or for the devices asked for.

    Several devices are mirrored. A single device that was asked for by name gets
    OneDeviceStrategy. Without a name TensorFlow's own placement is as good, and faster:
    one replica runs without a strategy.

    Args:
      config: how to run; `devices` chooses.
      cross_device_ops: see `mirrored`.

    Raises:
      ValueError: this machine lacks the devices, or TF_CONFIG names several training
        tasks.
    """
    tasks = config.num_worker_replicas + config.num_ps_replicas
    if tasks > 1:
        raise RefusedValueError(
            f"TF_CONFIG names {tasks} tasks, and execution 'single_host' would train "
            "each by itself, all into one model_dir: write --execution=multi_worker "
            "or RunConfig(execution='multi_worker'), with parameter servers "
            "'parameter_server', or unset TF_CONFIG."
        )
    names = _devices(config)
    if config.devices is None and len(names) < 2:
        return tf.distribute.get_strategy()
    if len(names) == 1:
        return one_device(config)
    return mirrored(config, cross_device_ops=cross_device_ops)


def one_device(config: RunConfig) -> tf.distribute.Strategy:
    """Returns OneDeviceStrategy on the device asked for, or on the first one.

    Args:
      config: how to run; `devices` None is the first GPU or, without one, the CPU.

    Raises:
      ValueError: several devices are asked for.
    """
    names = _devices(config)
    if config.devices is not None and len(names) > 1:
        raise RefusedValueError(
            f"one_device was given the devices {names}: leave one, or write "
            "RunConfig.train_distribute = @mirrored."
        )
    return tf.distribute.OneDeviceStrategy(f"/{names[0]}")


def mirrored(
    config: RunConfig, *, cross_device_ops: str = "auto"
) -> tf.distribute.Strategy:
    """Returns MirroredStrategy: each device has a copy of each variable.

    Args:
      config: how to run; `devices` None is all GPUs or, without one, the CPU.
      cross_device_ops: how gradients are added up: 'nccl', 'hierarchical_copy',
        'one_device', or 'auto', which is NCCL on GPUs and one device on CPUs.

    Raises:
      ValueError: `cross_device_ops` is unknown.
    """
    _check_choice("mirrored.cross_device_ops", cross_device_ops, _CROSS_DEVICE_OPS)
    return _mirrored(tuple(_devices(config)), cross_device_ops)


def central_storage(
    config: RunConfig, *, parameter_device: str | None = None
) -> tf.distribute.Strategy:
    """Returns CentralStorageStrategy: local devices share one copy of each variable.

    Args:
      config: how to run; `devices` compute. None is all GPUs or, without one, the CPU.
      parameter_device: device that holds the variables, 'CPU:0'; None lets TensorFlow
        choose: the CPU for several GPUs, else the one device.
    """
    names = [f"/{name}" for name in _devices(config)]
    return CentralStorage(
        compute_devices=names,
        parameter_device=f"/{parameter_device.lstrip('/')}"
        if parameter_device
        else None,
    )


def multi_worker(
    config: RunConfig,
    *,
    communication: str = "auto",
    collective_timeout_secs: float | None = None,
    heartbeat_timeout_secs: float = 10.0,
    start_timeout_secs: float = 600.0,
) -> tf.distribute.Strategy:
    """Returns MultiWorkerMirroredStrategy on the cluster's chief and workers, in step.

    TensorFlow must not have run anything before in this process. The tasks that start
    first wait for the others. A process has one such strategy for as long as it lives.

    Args:
      config: how to run; `cluster` says who takes part.
      communication: 'ring' (any device), 'nccl' (GPUs) or 'auto'.
      collective_timeout_secs: seconds that an all-reduce waits for a worker that lives
        and does not take part, such as one that is stuck in the user's code. It must
        exceed the longest time that one worker computes alone. TensorFlow keeps a
        thread waiting so long for each all-reduce: 60 s at 500 steps a second are more
        threads than a process may have. None waits for ever.
      heartbeat_timeout_secs: seconds of silence after which a worker counts as dead.
      start_timeout_secs: seconds to wait until all tasks have started.

    Raises:
      ValueError: TF_CONFIG names no cluster, or one with parameter servers; or
        `communication` is unknown.
      PeerLostError: a task did not start in time.
    """
    _check_choice("multi_worker.communication", communication, _COMMUNICATION)
    cluster = config.cluster
    if not cluster.jobs:
        raise RefusedValueError(
            "execution is 'multi_worker', and TF_CONFIG names no cluster: set it in "
            "each process (docs/multi_worker.md), start them by python -m "
            "pipeline.launch --workers=2 -- ..., or write --execution=single_host."
        )
    if cluster.num_ps_replicas:
        raise RefusedValueError(
            "execution is 'multi_worker', and TF_CONFIG names parameter servers: "
            'write --execution=parameter_server, or take "ps" out of it.'
        )
    return coordination.connected(
        cluster,
        coordination.Options(
            communication=tf.distribute.experimental.CommunicationOptions(
                implementation=_COMMUNICATION[communication],
                timeout_seconds=collective_timeout_secs,
            ),
            heartbeat_timeout_secs=heartbeat_timeout_secs,
            start_timeout_secs=start_timeout_secs,
        ),
    )


BY_EXECUTION: dict[str, Callable[[RunConfig], tf.distribute.Strategy]] = {
    "single_host": single_host,
    "multi_worker": multi_worker,
    "tpu": tpu.tpu,
    "parameter_server": parameter_server,
}
ROWS = (*BY_EXECUTION.values(), one_device, mirrored, central_storage)


@functools.cache
def look_for_devices() -> None:
    """Looks for GPUs while the log is quiet: TensorFlow warns where it finds none."""
    with run_log.quiet():
        tf.config.list_physical_devices("GPU")


@functools.cache
def _mirrored(names: tuple[str, ...], cross_device_ops: str) -> tf.distribute.Strategy:
    """Returns one strategy for the same devices in all calls.

    On CPUs 'auto' is one device, as in `replicas.all_reduce`, so that sums in users'
    own code go the same way as the driver's.
    """
    if cross_device_ops == "auto" and all("CPU" in name for name in names):
        cross_device_ops = "one_device"
    make = _CROSS_DEVICE_OPS[cross_device_ops]
    return tf.distribute.MirroredStrategy(
        [f"/{name}" for name in names],
        cross_device_ops=make() if make is not None else None,
    )


def _devices(config: RunConfig) -> list[str]:
    """Returns the names of the devices to compute on, 'GPU:0'.

    Without `RunConfig.devices`, these are all GPUs or, where there is none, the CPU.
    """
    if config.devices is None:
        names = [_short_name(d) for d in tf.config.list_logical_devices("GPU")]
        return names or ["CPU:0"]
    names = [_normal(name) for name in config.devices]
    _split_cpu(names)
    _check_present(names)
    return names


def _check_choice(name: str, value: Any, choices: Mapping[str, Any]) -> None:
    """Raises where the argument called `name` has a value that is no choice."""
    if value not in choices:
        raise RefusedValueError(
            f"{name} is {value!r}; it is one of {sorted(choices)}. Write "
            f"{name} = 'auto'."
        )


def _check_supported(strategy: Any) -> None:
    """Raises where a strategy is of a kind that this version does not train on."""
    kinds = (
        type(tf.distribute.get_strategy()),
        tf.distribute.OneDeviceStrategy,
        tf.distribute.MirroredStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
        CentralStorage,
        tf.distribute.TPUStrategy,
        ParameterServers,
    )
    if not isinstance(strategy, kinds):
        raise RefusedValueError(
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


def absent(config: RunConfig) -> list[str]:
    """Returns a RunConfig's devices that are not here; leaves TensorFlow unset."""
    there = present()
    names = map(_normal, config.devices or ())
    return [name for name in names if "CPU" not in name and name not in there]


def present() -> list[str]:
    """Returns the devices of this machine, in TensorFlow's short form."""
    return [_short_name(each) for each in tf.config.list_physical_devices()]


def _check_present(names: Sequence[str]) -> None:
    """Raises where this machine lacks a device."""
    present = [_short_name(device) for device in tf.config.list_logical_devices()]
    absent = [name for name in names if name not in present]
    if absent:
        raise RefusedValueError(
            f"devices {absent} are not among this machine's {present}. Write "
            "devices=['GPU:0', 'GPU:1'], or leave devices out for all GPUs; logical "
            "CPUs must be asked for before TensorFlow first runs."
        )


def _normal(name: str) -> str:
    """Returns 'GPU:0' of a user's 'gpu:0' or '/device:GPU:0'."""
    return name.upper().removeprefix("/").removeprefix("DEVICE:")


def _short_name(device: Any) -> str:
    """Returns 'GPU:0' of a device that TensorFlow calls '/device:GPU:0'."""
    return device.name.upper().partition("DEVICE:")[2]
