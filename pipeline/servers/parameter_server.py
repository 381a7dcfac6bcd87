# SPDX-License-Identifier: Apache-2.0
"""The strategy of parameter servers, and what RunConfig may ask of it."""

import tensorflow as tf

from ..contract.checks import check, integer, number
from ..contract.run_config import RunConfig
from ..errors import UserValueError
from . import server_task
from .runner import ServerRunner
from .strategy import connected

# Values of RunConfig that are possible with parameter servers, and the reason.
_ON_SERVERS = {
    "gradient_accumulation_steps": ([1], "the batch of a worker is a step"),
    "precision": (["float32", "mixed_bfloat16"], "workers cannot share a loss scale"),
    "jit_compile": ([False], "XLA cannot read variables of another host"),
    "run_eagerly": ([False], "workers run graphs"),
    "log_norms": ([False], "steps of several workers run at the same time"),
}


def parameter_server(
    config: RunConfig,
    *,
    min_shard_bytes: int = 256 << 10,
    max_shards: int | None = None,
    start_timeout_secs: float = 600.0,
    lost_after_secs: float = 300.0,
    allow_lost_updates: bool = False,
) -> tf.distribute.ParameterServerStrategy:
    """Returns the strategy of the chief, after all workers and servers have started.

    A worker or server serves the chief in this call, which ends by ChiefEnded, a SystemExit.

    Args:
      config: its cluster, with chief, workers and servers.
      min_shard_bytes: least size of a shard of a table, `models.Embedding`, that is cut over the
        servers.
      max_shards: largest number of shards of a table; None for one on each server.
      start_timeout_secs: seconds to wait until all tasks have started.
      lost_after_secs: seconds without any worker, or of a task that is stopped, after which the
        others end with exit code 75.
      allow_lost_updates: whether to train with an optimizer whose updates by several workers
        overwrite each other.

    Raises:
      ChiefEnded: this task served the chief, which has ended.
      TaskLostError: a task did not start in time, or the chief of this task is stopped.
      PreemptedError: this task served the chief, and received a signal.
      UserValueError: the cluster lacks a job, or an option is not possible with servers.
    """
    cluster = config.cluster
    timeouts = {"start_timeout_secs": start_timeout_secs, "lost_after_secs": lost_after_secs}
    for name, secs in timeouts.items():
        check(f"parameter_server.{name}", secs, number(0, above=True, example=600))
    check("parameter_server.min_shard_bytes", min_shard_bytes, integer(1, example=256 << 10))
    check("parameter_server.max_shards", max_shards, integer(1, example=4, optional=True))
    missing = [job for job in ("chief", "worker", "ps") if job not in cluster.jobs]
    if missing:
        raise UserValueError(
            f"execution is 'parameter_server', and the cluster has the jobs {list(cluster.jobs)}: "
            f"expected {missing[0]!r} as well. Set TF_CONFIG in each task."
        )
    for name, (allowed, reason) in _ON_SERVERS.items():
        value = getattr(config, name)
        if value not in allowed:
            raise UserValueError(
                f"RunConfig.{name} is {value!r} on parameter servers: expected "
                f"{' or '.join(map(repr, allowed))}, since {reason}."
            )
    if cluster.task_type != "chief":
        server_task.serve(cluster, **timeouts)
    return connected(
        cluster,
        create_runner=ServerRunner,
        allow_lost_updates=allow_lost_updates,
        min_shard_bytes=min_shard_bytes,
        max_shards=max_shards or len(cluster.jobs["ps"]),
        **timeouts,
    )
