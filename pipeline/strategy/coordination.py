"""Connects the workers that train in step, once in a process.

The tasks meet before TensorFlow connects them (`rendezvous`) and are watched while it
does (`link_watch`), as TensorFlow waits for an absent task in silence, without end.
"""

import dataclasses
import functools

import tensorflow as tf
from tensorflow.python.eager import context

from pipeline.cluster import link_watch, rendezvous
from pipeline.cluster.tf_config import Cluster
from pipeline.process import signals
from pipeline.process.refusals import RefusedRuntimeError

_JOBS = ("chief", "worker")
# What TensorFlow says where the program has computed something before.
_TOO_LATE = "must be configured at program startup"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options for connecting the tasks of a cluster.

    TensorFlow connects a process to a cluster once, and the options of a later call
    change nothing. So all options are equal, and `connected` has one strategy for them.

    Attributes:
      communication: TensorFlow's options of the collectives.
      heartbeat_timeout_secs: seconds of silence after which a task counts as dead.
      start_timeout_secs: seconds to wait until all tasks have started.
    """

    communication: tf.distribute.experimental.CommunicationOptions = dataclasses.field(
        compare=False
    )
    heartbeat_timeout_secs: float = dataclasses.field(compare=False)
    start_timeout_secs: float = dataclasses.field(compare=False)


@functools.cache
def connected(
    cluster: Cluster, options: Options
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Returns the strategy of this process, made once all tasks are there.

    Args:
      cluster: chief and workers.
      options: options for connecting; those of the first call for a cluster count.

    Raises:
      PeerLostError: a task did not start in time; names it.
      RuntimeError: the program has computed something by TensorFlow before.
      ValueError: the port of this task is in use, or another task has another cluster.
    """
    cluster_spec = tf.train.ClusterSpec(dict(cluster.jobs))
    # In this order: once TensorFlow connects, no Python runs until all tasks are there;
    # the heartbeat is fixed as it connects; and it takes SIGTERM for itself.
    links = rendezvous.meet(
        cluster.training_tasks,
        cluster.global_id_in_cluster,
        timeout_secs=options.start_timeout_secs,
    )
    set_heartbeat_timeout(cluster_spec, options.heartbeat_timeout_secs)
    with link_watch.watched(
        links,
        silence_secs=options.heartbeat_timeout_secs,
        deadline_secs=options.start_timeout_secs,
    ):
        strategy = _strategy(_resolver(cluster, cluster_spec), options.communication)
    signals.take_back()
    return strategy


def set_heartbeat_timeout(cluster_spec: tf.train.ClusterSpec, seconds: float) -> None:
    """Sets the silence after which a task counts as dead, before there is a strategy.

    TensorFlow's own is 10 s, and `tf.distribute` has no public way to change it.

    Args:
      cluster_spec: tasks that train in step.
      seconds: seconds without a heartbeat.
    """
    sizes = {job: len(tasks) for job, tasks in cluster_spec.as_dict().items()}
    make_job = context.coordination_config_pb2.CoordinatedJob
    context.context().configure_coordination_service(
        "standalone",
        service_leader=f"/job:{next(j for j in _JOBS if j in sizes)}/replica:0/task:0",
        coordinated_jobs=[
            make_job(name=job, num_tasks=sizes[job]) for job in _JOBS if job in sizes
        ],
        heartbeat_timeout_in_ms=int(1000 * seconds),
    )


def _strategy(
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
    communication: tf.distribute.experimental.CommunicationOptions,
) -> tf.distribute.MultiWorkerMirroredStrategy:
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(resolver, communication)
    except RuntimeError as error:
        if _TOO_LATE not in str(error):
            raise
        raise RefusedRuntimeError(
            "the program has computed something by TensorFlow before, and workers that "
            "train in step can be connected at its start alone: move what makes "
            "tensors, datasets or Keras layers into input_fn, model_fn or a factory "
            "of modules, or behind the first call that trains."
        ) from error


def _resolver(
    cluster: Cluster, cluster_spec: tf.train.ClusterSpec
) -> tf.distribute.cluster_resolver.ClusterResolver:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster_spec,
        task_type=cluster.task_type,
        task_id=cluster.task_id,
        num_accelerators={"GPU": len(tf.config.list_physical_devices("GPU"))},
        rpc_layer="grpc",
    )
