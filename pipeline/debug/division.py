# SPDX-License-Identifier: Apache-2.0
"""How the workers of a cluster divide an input: one that exists, or one to simulate."""

from typing import NamedTuple

import tensorflow as tf

from ..contract.checks import check, integer
from ..contract.run_config import RunConfig
from ..contract.signatures import name_of
from ..distribute import devices, strategies
from ..errors import UserValueError
from ..estimator import execution


class Division(NamedTuple):
    """The processes and replicas that share an input.

    Attributes:
      num_workers: number of processes that call the input_fn.
      num_replicas: number of replicas of all of them.
      num_ps: number of parameter servers, with which workers do not wait for each other.
      is_central: whether the replicas of a machine share its variables, on one device.
    """

    num_workers: int = 1
    num_replicas: int = 1
    num_ps: int = 0
    is_central: bool = False

    def __str__(self) -> str:
        if self.num_ps:
            return f"a chief, {self.num_workers} workers at their own pace, {self.num_ps} servers"
        each = self.num_replicas // self.num_workers
        return f"workers {self.num_workers} x replicas {each} = {self.num_replicas} in step"


def division_of(
    config: RunConfig,
    *,
    num_workers: int | None = None,
    num_replicas: int | None = None,
    num_ps: int | None = None,
) -> Division:
    """Returns how a training is divided; connects to nothing. For the numbers see `inspect`."""
    given = {"num_workers": num_workers, "num_replicas": num_replicas, "num_ps": num_ps}
    for name, value in given.items():
        check(f"inspect.{name}", value, integer(1, example=4, optional=True))
    if num_ps or config.num_ps_replicas:
        if num_replicas is not None:
            raise UserValueError(
                f"inspect.num_replicas is {num_replicas} with parameter servers: expected None, "
                "since each worker is one replica."
            )
        workers = num_workers or len(config.cluster.jobs.get("worker", "1"))
        return Division(workers, workers, num_ps or config.num_ps_replicas)
    workers = num_workers or config.num_worker_replicas or 1
    replicas, chosen = num_replicas or _local_replicas(config), config.train_distribute
    is_central = isinstance(chosen, tf.distribute.experimental.CentralStorageStrategy) or (
        callable(chosen) and name_of(chosen) == strategies.central_storage.__name__
    )
    return Division(workers, workers * replicas, is_central=is_central)


def _local_replicas(config: RunConfig) -> int:
    chosen = config.train_distribute
    if isinstance(chosen, tf.distribute.Strategy):
        return chosen.num_replicas_in_sync
    if config.execution == "tpu":
        raise UserValueError(
            "inspect.num_replicas is None with execution 'tpu': expected the number of cores. Set "
            "num_replicas=8, or --simulate_replicas=8."
        )
    if config.cluster.jobs:
        return len(tf.config.list_physical_devices("GPU")) or 1
    return execution.create(config).num_replicas_in_sync if chosen else len(devices.of(config))
