# SPDX-License-Identifier: Apache-2.0
"""TPUStrategy: finds the TPU, connects to it and initializes it. It has not run on a TPU."""

import contextlib
import functools
import socket
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from ..cluster.tf_config import split
from ..contract.run_config import RunConfig
from ..errors import UserRuntimeError, UserValueError

LOCAL = "local"
_SECS_PER_ADDRESS = 20.0
_PORT = 8470  # TensorFlow's port of a TPU whose address has none.


def tpu(
    config: RunConfig,
    *,
    name: str = LOCAL,
    zone: str | None = None,
    project: str | None = None,
    num_replicas: int | None = None,
) -> tf.distribute.TPUStrategy:
    """Returns the strategy of a TPU, after connecting to it once in a process. Not run on a TPU.

    One process drives all hosts of a TPU.

    Args:
      config: options of the run.
      name: 'local' on a Cloud TPU VM, the name of a TPU, or its address `grpc://10.0.0.2:8470`;
        several addresses are separated by commas.
      zone: Google Cloud zone of a TPU that is given by its name.
      project: Google Cloud project of such a TPU.
      num_replicas: number of cores to use; None for all.

    Raises:
      UserRuntimeError: the TPU was not found.
      UserValueError: an option is not possible on TPUs.
    """
    for field, value, expected in (
        ("run_eagerly", config.run_eagerly, False),
        ("precision", config.precision == "mixed_float16" and "mixed_float16", "mixed_bfloat16"),
    ):
        if value:
            raise UserValueError(f"RunConfig.{field} is {value!r} on a TPU: expected {expected!r}.")
    if len(config.cluster.tasks) > 1:
        raise UserValueError(
            f"TF_CONFIG has {len(config.cluster.tasks)} tasks: expected none, since one process "
            "drives all hosts of a TPU. Unset TF_CONFIG."
        )
    if name != LOCAL and "://" not in config.model_dir:
        logging.warning(
            "RunConfig.model_dir is %r and tpu.name is %r: each host of the TPU writes its part of "
            "a checkpoint to its own disk. Set model_dir='gs://BUCKET/FOLDER'.",
            config.model_dir,
            name,
        )
    return connected(name, zone, project, num_replicas)


# Initializing a TPU again would lose the variables on it.
@functools.cache
def connected(
    name: str, zone: str | None, project: str | None, num_replicas: int | None
) -> tf.distribute.TPUStrategy:
    """Returns the strategy of an initialized TPU; the same one for the same arguments."""
    addresses = _addresses(name) if name.startswith("grpc://") else []
    logging.info("tpu | connecting to %r", name)
    with _explained(name, zone, project):
        for address in addresses:
            # TensorFlow would wait without end for an address where nothing listens.
            socket.create_connection(address, timeout=_SECS_PER_ADDRESS).close()
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=name, zone=zone, project=project
        )
        tf.config.experimental_connect_to_cluster(resolver)
        topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    if num_replicas is None:
        return tf.distribute.TPUStrategy(resolver)
    try:
        assignment = tf.tpu.experimental.DeviceAssignment.build(topology, num_replicas=num_replicas)
    except ValueError as error:
        raise UserValueError(
            f"tpu.num_replicas is {num_replicas}: expected a number that the TPU can place "
            f"({error}), or None for all cores."
        ) from error
    return tf.distribute.TPUStrategy(resolver, experimental_device_assignment=assignment)


def _addresses(name: str) -> list[tuple[str, int]]:
    """Returns host and port of each host of a TPU."""
    hosts = [host.removeprefix("grpc://") for host in name.split(",")]
    return [split(host if ":" in host else f"{host}:{_PORT}", "tpu.name") for host in hosts]


@contextlib.contextmanager
def _explained(name: str, zone: str | None, project: str | None) -> Iterator[None]:
    try:
        yield
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        first_line = str(error).partition("\n")[0].partition(" used by {{")[0].rstrip(".")
        raise UserRuntimeError(
            f"tpu.name is {name!r}, zone {zone!r}, project {project!r}: no TPU was found "
            f"({first_line}). Set tpu.name='local' on a Cloud TPU VM, with a TensorFlow that has "
            "libtpu; elsewhere set its name, zone and project, as `gcloud compute tpus tpu-vm list "
            "--zone=ZONE` shows them, with cloud-tpu-client installed, or 'grpc://ADDRESS:8470'."
        ) from error
