"""Connects the chief to parameter servers and workers, and waits for their work.

Parameter servers hold the variables. Workers compute, each at its own pace. TensorFlow
waits for a task in silence and without end. So each wait for another task has a limit
of its own here, after which it ends with an error that names the task.
"""

import functools
import inspect
import time

import tensorflow as tf
from absl import logging

from pipeline.cluster import link_watch, liveness, ports, server
from pipeline.cluster.ports import PeerLostError
from pipeline.cluster.tf_config import Cluster
from pipeline.contract.run_config import RunConfig
from pipeline.process.refusals import Refusal, RefusedValueError
from pipeline.strategy import sharding

# Longest pause between two looks at whether work is done.
_MOST_PAUSE_SECS = 0.02
# Pause between two looks at whether the tasks are there.
_CHECK_SECS = 1.0
# A value that workers cannot follow, and why, by field of RunConfig.
_REFUSED = {
    "precision": (
        "mixed_float16",
        "workers cannot share a loss scale; write precision='mixed_bfloat16'.",
    ),
    "jit_compile": (
        True,
        "XLA cannot read variables of another host; write jit_compile=False.",
    ),
    "run_eagerly": (
        True,
        "workers run graphs; write execution='single_host' to debug.",
    ),
}
_partitioners = tf.distribute.experimental.partitioners


class ServesError(Refusal, ValueError):
    """This task serves the chief, and has no strategy of its own.

    Attributes:
      waits: arguments of `server.serve`, as the strategy was configured.
    """

    def __init__(self, cluster: Cluster, **waits: float) -> None:
        """Says which task it is, and what to call; for `waits` see the class."""
        super().__init__(
            f"{cluster} serves the chief, and trains nothing by itself: call "
            "train_and_evaluate or Estimator.train, or pipeline.cluster.server.serve."
        )
        self.waits = waits


class ParameterServers(tf.distribute.ParameterServerStrategy):
    """ParameterServerStrategy, and how the chief deals with the workers.

    Attributes:
      cluster: the tasks.
      partitioner: cuts the tables that a layer asks to have cut.
      steps_per_closure: most steps that a worker does in one go.
      lost_after_secs: seconds that the chief waits for workers that it needs.
      resume_input: whether workers skip what was read of their data before.
      watch: watch that finds the tasks that do not reply any more.
      running: number of the worker that runs what is traced now, an int64 scalar; None
        where none does.
    """

    running: tf.Tensor | None = None

    def __init__(
        self,
        cluster: Cluster,
        *,
        partitioner: sharding.Partitioner,
        steps_per_closure: int,
        lost_after_secs: float,
        resume_input: bool,
    ) -> None:
        """Connects to the workers and servers, which are up.

        Args:
          cluster: the tasks; this process is the chief.
          partitioner: see the class.
          steps_per_closure: see the class.
          lost_after_secs: see the class.
          resume_input: see the class.
        """
        self.cluster = cluster
        self.partitioner = partitioner
        self.steps_per_closure = steps_per_closure
        self.lost_after_secs = lost_after_secs
        self.resume_input = resume_input
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(dict(cluster.jobs)),
            task_type=cluster.task_type,
            task_id=cluster.task_id,
            rpc_layer="grpc",
        )
        tasks = cluster.training_tasks
        # Made before TensorFlow asks anything of a task, which may be stopped by then.
        self.watch = liveness.Watch(
            {name: tasks[name] for name in tasks if name != "chief 0"},
            lost_after_secs=lost_after_secs,
        )
        super().__init__(resolver)

    @property
    def num_workers(self) -> int:
        """The number of tasks that compute."""
        return len(self.cluster.jobs["worker"])

    @functools.cached_property
    def worker_steps(self) -> tf.Variable:
        """The steps of the training data that each worker has done: an int64 vector.

        It lies on a server, where a worker finds it that takes another worker's place.
        """
        with self.scope():
            zeros = tf.zeros([self.num_workers], tf.int64)
            return tf.Variable(zeros, trainable=False, name="worker_steps")


def parameter_server(
    config: RunConfig,
    *,
    min_shard_bytes: int = 256 << 10,
    max_shards: int | None = None,
    steps_per_closure: int = 100,
    lost_after_secs: float = 300.0,
    start_timeout_secs: float = 600.0,
    resume_input: bool = True,
) -> ParameterServers:
    """Returns ParameterServerStrategy on the cluster's workers and ps; the chief leads.

    Each worker updates the servers' variables without waiting for the others, by
    gradients of values that may be some steps old. A worker's batch is one step.

    Args:
      config: how to run; `cluster` says who takes part.
      min_shard_bytes: least bytes of a shard of a table that is cut, see
        `models.Embedding`.
      max_shards: most shards of one table; None for one on each server.
      steps_per_closure: most steps that the chief hands to a worker in one go. More
        steps cost less time between them, and more are done again where a worker dies.
      lost_after_secs: seconds that the chief waits for workers that died, where no
        worker is left or the others' data have ended; and seconds that each task waits
        for a task that is stopped.
      start_timeout_secs: seconds to wait until all tasks have started.
      resume_input: whether a worker that took another's place, and a resumed run, go
        on in the data where they were, by reading over what was read before; else
        they begin the data anew, at once.

    Raises:
      ValueError: TF_CONFIG lacks a chief, a worker or a parameter server; workers
        cannot do what a field asks; a port is in use; or this task is not the chief.
      PeerLostError: a task did not start in time.
    """
    jobs = config.cluster.jobs
    absent = [job for job in ("chief", "worker", "ps") if job not in jobs]
    if absent:
        raise RefusedValueError(
            f"execution is 'parameter_server', and TF_CONFIG names no {absent[0]!r}: "
            'its "cluster" must list "chief", "worker" and "ps". Start them by python '
            "-m pipeline.launch --workers=2 --ps=1 -- ..., or write "
            "--execution=single_host."
        )
    if config.task_type != "chief":
        raise ServesError(
            config.cluster,
            start_timeout_secs=start_timeout_secs,
            lost_after_secs=lost_after_secs,
        )
    for field, (value, reason) in _REFUSED.items():
        if getattr(config, field) == value:
            raise RefusedValueError(
                f"RunConfig.{field} is {value!r}, and execution 'parameter_server': "
                f"{reason}"
            )
    return _connected(
        config.cluster,
        min_shard_bytes,
        max_shards,
        steps_per_closure,
        lost_after_secs,
        start_timeout_secs,
        resume_input,
    )


def serve(config: RunConfig) -> None:
    """Serves the chief, see `server.serve`, with the waits that the strategy is given.

    Args:
      config: how to run; `cluster` says which task this is, `train_distribute` may be
        `parameter_server` with other waits than its defaults.
    """
    # gin and functools wrap the function, and give it the user's waits. Calling it in
    # a task that serves raises an error that holds them.
    make = config.train_distribute
    row = make.func if isinstance(make, functools.partial) else make
    if not callable(row) or inspect.unwrap(row) is not parameter_server:
        make = parameter_server
    waits = {}
    try:
        make(config)
    except ServesError as error:
        waits = error.waits
    server.serve(config.cluster, **waits)


# Cached, for TensorFlow connects a process to a cluster once.
@functools.cache
def _connected(
    cluster: Cluster,
    min_shard_bytes: int,
    max_shards: int | None,
    steps_per_closure: int,
    lost_after_secs: float,
    start_timeout_secs: float,
    resume_input: bool,
) -> ParameterServers:
    """Waits for all tasks, and returns the strategy on them."""
    tasks = cluster.training_tasks
    ports.check_port("chief 0", tasks["chief 0"])
    served = {name: tasks[name] for name in tasks if name != "chief 0"}
    server.wait_for(served, timeout_secs=start_timeout_secs)
    logging.info("cluster | all %d tasks are there", len(tasks))
    # A task that ends right now would have TensorFlow wait for it without end, while
    # no Python runs.
    with link_watch.watched(
        {},
        silence_secs=lost_after_secs,
        deadline_secs=start_timeout_secs,
    ):
        return ParameterServers(
            cluster,
            partitioner=_partitioners.MinSizePartitioner(
                min_shard_bytes, max_shards or cluster.num_ps_replicas
            ),
            steps_per_closure=steps_per_closure,
            lost_after_secs=lost_after_secs,
            resume_input=resume_input,
        )


def wait_until_done(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    strategy: ParameterServers,
) -> None:
    """Waits until all scheduled work is done; raises what any of it failed with.

    Args:
      coordinator: coordinator of the workers.
      strategy: strategy of the workers.

    Raises:
      PeerLostError: no worker answers any more, or a task is stopped.
    """
    began = checked = answered = time.monotonic()
    workers, limit = strategy.cluster.jobs["worker"], strategy.lost_after_secs
    while not coordinator.done():
        now = time.monotonic()
        # Short at first: work that takes little time is not waited for much longer.
        time.sleep(min((now - began) / 20 + 1e-4, _MOST_PAUSE_SECS))
        if now - checked < _CHECK_SECS:
            continue
        checked = now
        strategy.watch.check()
        if any(ports.answers(address) for address in workers):
            answered = now
        elif now - answered > limit:
            raise PeerLostError(
                f"no worker ({', '.join(workers)}) has answered for {limit:g} s. Start "
                "all tasks again: they go on from the last checkpoint. "
                "parameter_server.lost_after_secs says how long to wait."
            )
