"""Makes TPUStrategy: finds the TPU, connects to it, initialises it.

This follows TensorFlow's documentation and sources, and is tested with stand-ins for
TensorFlow's calls: no TPU has run it. docs/tpu.md says what was tested instead.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import logging

from pipeline.cluster import ports
from pipeline.contract.run_config import RunConfig
from pipeline.process.refusals import RefusedRuntimeError, RefusedValueError

# The TPU of this machine, as against a TPU that is reached by its name or address.
LOCAL = "local"
# Wait for an answer from one address.
_REACH_SECS = 20.0
# TensorFlow's port, for an address without one.
_PORT = 8470


def _reach(name: str) -> None:
    """Connects to each address of a TPU once: TensorFlow would wait for ever.

    Raises:
      OSError: nothing listens at an address.
    """
    for address in _addresses(name):
        ports.reach(address, timeout_secs=_REACH_SECS)


def _addresses(name: str) -> list[str]:
    """Returns `host:port` of each host of a TPU that is named by its addresses."""
    hosts = [address.removeprefix("grpc://") for address in name.split(",")]
    addresses = [host if ":" in host else f"{host}:{_PORT}" for host in hosts]
    for address in addresses:
        example = f"--tpu=grpc://ADDRESS:{_PORT}"
        ports.split(address, source=f"--tpu={name}", example=example)
    return addresses


@dataclasses.dataclass(frozen=True)
class Api:
    """TensorFlow's calls, in the order in which they are made.

    Attributes:
      reach: raises OSError where nothing listens at an address.
      resolver: finds the TPU's hosts by its name, zone and project.
      connect: connects to these hosts; returns at once for the TPU of this machine.
      initialize: clears the TPU, with all variables on it; returns its topology.
      assign: assigns replicas to cores of the topology.
      strategy: makes the strategy on the TPU that the resolver has found.
    """

    reach: Callable[[str], None] = _reach
    resolver: Callable[..., Any] = tf.distribute.cluster_resolver.TPUClusterResolver
    connect: Callable[..., Any] = tf.config.experimental_connect_to_cluster
    initialize: Callable[..., Any] = tf.tpu.experimental.initialize_tpu_system
    assign: Callable[..., Any] = tf.tpu.experimental.DeviceAssignment.build
    strategy: Callable[..., Any] = tf.distribute.TPUStrategy


def tpu(
    config: RunConfig,
    *,
    name: str = LOCAL,
    zone: str | None = None,
    project: str | None = None,
    num_replicas: int | None = None,
) -> tf.distribute.Strategy:
    """Returns TPUStrategy on the TPU of this machine, or on a TPU that is named.

    One process drives all hosts of a TPU. See docs/tpu.md; no TPU has run it.

    Args:
      config: how to run.
      name: 'local' on a Cloud TPU VM of one host; else the TPU's name, or its address
        grpc://10.0.0.2:8470, or several addresses with commas. Empty takes the name
        from the environment's TPU_NAME.
      zone: zone of a TPU that is given by name; None for this machine's zone.
      project: project of a TPU that is given by name; None for this machine's project.
      num_replicas: cores to compute on, one replica each; None for all cores.

    Raises:
      ValueError: no TPU can run the RunConfig.
      RuntimeError: the TPU was not found.
    """
    _check_config(config, name)
    return connected(name, zone, project, num_replicas)


# Once for each process: initialising a TPU again loses the variables that are on it.
@functools.cache
def connected(
    name: str,
    zone: str | None,
    project: str | None,
    num_replicas: int | None,
    *,
    api: Api = Api(),  # noqa: B008 (frozen)
) -> tf.distribute.Strategy:
    """Returns the strategy on an initialised TPU; the same one for the same arguments.

    Args:
      name: name or addresses of the TPU, see `tpu`.
      zone: zone of a TPU that is given by name.
      project: project of a TPU that is given by name.
      num_replicas: cores to compute on; None for all cores.
      api: TensorFlow's calls, or stand-ins.

    Raises:
      RuntimeError: the TPU was not found.
      ValueError: the TPU has too few cores for the replicas.
    """
    if name.startswith("grpc://"):
        _addresses(name)  # A port that cannot be is refused before anything waits.
    logging.info("tpu | looking for %r; this waits until it answers", name)
    with _explained(name, zone, project):
        if name.startswith("grpc://"):
            api.reach(name)
        resolver = api.resolver(tpu=name, zone=zone, project=project)
        api.connect(resolver)
        topology = api.initialize(resolver)
    if num_replicas is None:
        return api.strategy(resolver)
    try:
        assignment = api.assign(topology, num_replicas=num_replicas)
    except ValueError as error:
        raise RefusedValueError(
            f"tpu.num_replicas is {num_replicas}, which TPU {name!r} cannot place "
            f"({error}): leave it out for all of its cores."
        ) from error
    return api.strategy(resolver, experimental_device_assignment=assignment)


@contextlib.contextmanager
def _explained(name: str, zone: str | None, project: str | None) -> Iterator[None]:
    """Says which flag to write where TensorFlow's calls do not find a TPU."""
    given = f"--tpu={name}" + "".join(
        f" --tpu_{key}={value}"
        for key, value in (("zone", zone), ("project", project))
        if value
    )
    try:
        yield
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        raise RefusedRuntimeError(
            f"{given}: no TPU was found ({_first_line(error)}). {_advice(name, error)}"
        ) from error


def _advice(name: str, error: Exception) -> str:
    """Returns what to write instead, by how the TPU was named and what went wrong."""
    if name == LOCAL:
        return (
            "On a Cloud TPU VM, install a TensorFlow that brings libtpu (docs/tpu.md); "
            "for a TPU elsewhere write --tpu=NAME --tpu_zone=ZONE "
            "--tpu_project=PROJECT; to check a configuration without any, --dry_run."
        )
    if "API client" in str(error):
        return (
            "TensorFlow asks Google for the addresses of a TPU by name: pip install "
            "cloud-tpu-client, or write --tpu=grpc://ADDRESS:8470, or on the TPU VM "
            "itself --tpu=local."
        )
    if name.startswith("grpc://") and isinstance(error, (OSError, ValueError)):
        return (
            "Nothing listens there: write --tpu=grpc://ADDRESS:8470 of one that does."
        )
    if isinstance(error, OSError):
        return (
            "Zone and project were not given, and only a machine in Google's cloud can "
            "look them up: write --tpu_zone=ZONE --tpu_project=PROJECT."
        )
    return (
        "Write the name, zone and project that `gcloud compute tpus tpu-vm list "
        "--zone=ZONE` shows: --tpu=NAME --tpu_zone=ZONE --tpu_project=PROJECT; on a "
        "TPU VM of one host --tpu=local."
    )


def _first_line(error: Exception) -> str:
    """Returns an error's text without the graph's nodes, which TensorFlow adds."""
    return str(error).partition("\n")[0].partition(" used by {{")[0].rstrip(".")


def _check_config(config: RunConfig, name: str) -> None:
    """Raises for a RunConfig that no TPU can run; warns of a model_dir on one host."""
    if config.run_eagerly:
        raise RefusedValueError(
            "RunConfig.run_eagerly is True, and a TPU runs only what is compiled: "
            "leave it out, or debug with --execution=single_host."
        )
    if config.precision == "mixed_float16":
        raise RefusedValueError(
            "RunConfig.precision is 'mixed_float16', and what TPUs have is bfloat16: "
            "write precision='mixed_bfloat16'."
        )
    tasks = config.num_worker_replicas + config.num_ps_replicas
    if tasks > 1:
        raise RefusedValueError(
            f"TF_CONFIG names {tasks} tasks, and one process drives all hosts of a "
            "TPU: unset TF_CONFIG, and start the program on one of them."
        )
    remote = name != LOCAL
    if remote and config.model_dir and not config.model_dir.startswith("gs://"):
        logging.warning(
            "model_dir %s: each host of TPU %r writes its part of a checkpoint to a "
            "folder of its own by that name; write --model_dir=gs://BUCKET/FOLDER.",
            config.model_dir,
            name,
        )
