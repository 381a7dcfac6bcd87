# SPDX-License-Identifier: Apache-2.0
"""The devices of this machine, by the names of `RunConfig.devices`."""

import functools

import tensorflow as tf

from ..contract.run_config import RunConfig
from ..errors import UserValueError
from ..run import startup


@functools.cache
def find() -> None:
    """Lists the devices once, since TensorFlow writes lines to stderr when it looks for GPUs."""
    with startup.quiet():
        tf.config.list_physical_devices()


def of(config: RunConfig) -> list[str]:
    """Returns the devices to train on: those of `config.devices`, or all GPUs, or the CPU.

    Creates the logical CPUs that `config.devices` names, if TensorFlow has not started yet.

    Args:
      config: its `devices`.

    Returns:
      Names such as 'GPU:0'.

    Raises:
      UserValueError: this machine lacks a device.
    """
    if config.devices is None:
        # Listing logical devices starts TensorFlow, after which workers cannot be connected.
        has_gpus = tf.config.list_physical_devices("GPU")
        gpus = tf.config.list_logical_devices("GPU") if has_gpus else []
        return [_name(each) for each in gpus] or ["CPU:0"]
    _make_logical_cpus(config.devices)
    present = [_name(each) for each in tf.config.list_logical_devices()]
    missing = [name for name in config.devices if name not in present]
    if missing:
        raise UserValueError(
            f"RunConfig.devices has {missing}: expected devices of this machine, {present}. "
            "Logical CPUs can only be created before the program uses TensorFlow: call "
            "connect(config) first."
        )
    return list(config.devices)


def _make_logical_cpus(names: tuple[str, ...]) -> None:
    number = 1 + max((int(n.partition(":")[2]) for n in names if n.startswith("CPU")), default=0)
    [cpu, *_] = tf.config.list_physical_devices("CPU")
    if number == 1 or tf.config.get_logical_device_configuration(cpu):
        return
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * number
        )
    except RuntimeError:
        return  # TensorFlow has started; `of` lists the devices that there are.


def _name(device: tf.config.LogicalDevice) -> str:
    return device.name.upper().partition("DEVICE:")[2]
