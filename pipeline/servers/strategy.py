# SPDX-License-Identifier: Apache-2.0
"""Connects the chief to workers and parameter servers, once in a process."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..cluster import connect, start_barrier
from ..cluster.stuck_tasks import Monitor
from ..cluster.tf_config import Cluster

# TensorFlow connects a process once.
_strategies: dict[Cluster, "ParameterServers"] = {}


class ParameterServers(tf.distribute.ParameterServerStrategy):
    """TensorFlow's strategy, and the options of `ge.parameter_server`.

    Attributes:
      cluster: the tasks.
      monitor: finds tasks that are stopped.
      lost_after_secs: seconds without any worker after which training ends.
      allow_lost_updates: whether optimizers may run whose updates overwrite each other.
      table_partitioner: TensorFlow's function of a table's shape that returns the number of its
        shards.
      create_runner: function that `train.runners` calls for the runner of this strategy.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        create_runner: Callable[..., Any],
        lost_after_secs: float,
        allow_lost_updates: bool,
    ) -> None:
        """Connects to the workers and servers, which have started."""
        self.cluster = cluster
        self.create_runner = create_runner
        self.lost_after_secs = lost_after_secs
        self.allow_lost_updates = allow_lost_updates
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(dict(cluster.jobs)),
            task_type=cluster.task_type,
            task_id=cluster.task_id,
            rpc_layer="grpc",
        )
        super().__init__(resolver)
        others = {name: each for name, each in cluster.tasks.items() if name != cluster.name}
        self.monitor = Monitor(others, lost_after_secs)

    @property
    def num_workers(self) -> int:
        """Number of tasks that compute."""
        return len(self.cluster.jobs["worker"])


def connected(
    cluster: Cluster,
    *,
    create_runner: Callable[..., Any],
    start_timeout_secs: float,
    lost_after_secs: float,
    allow_lost_updates: bool,
    min_shard_bytes: int,
    max_shards: int,
) -> ParameterServers:
    """Returns the strategy of the chief after all tasks have started.

    A later call for the same cluster returns the same strategy; its timeouts have no effect.

    Args:
      cluster: the tasks.
      create_runner: see ParameterServers.
      start_timeout_secs: seconds to wait until all tasks have started.
      lost_after_secs: see ParameterServers.
      allow_lost_updates: see ParameterServers.
      min_shard_bytes: least size of a shard of a table.
      max_shards: largest number of shards of a table.

    Raises:
      TaskLostError: a task did not start in time.
      UserValueError: the port of this task is in use, or another task has another cluster.
    """
    if cluster not in _strategies:
        start_barrier.meet(cluster.tasks, cluster.global_id, timeout_secs=start_timeout_secs)
        with connect.limited(cluster):
            _strategies[cluster] = ParameterServers(
                cluster,
                create_runner=create_runner,
                lost_after_secs=lost_after_secs,
                allow_lost_updates=allow_lost_updates,
            )
    strategy = _strategies[cluster]
    strategy.allow_lost_updates = allow_lost_updates
    partitioners = tf.distribute.experimental.partitioners
    strategy.table_partitioner = partitioners.MinSizePartitioner(min_shard_bytes, max_shards)
    return strategy
