"""Runs workers and parameter servers: they serve the chief, and end when it ends.

TensorFlow's own server never returns. So a task asks for the chief's port twice a
second, and ends when the chief has ended, in whatever way.
"""

import math
import signal
import time
from collections.abc import Callable, Mapping

import tensorflow as tf
from absl import logging

from pipeline.cluster import liveness
from pipeline.cluster.ports import absent_error, answers, check_port
from pipeline.cluster.tf_config import Cluster
from pipeline.process.signals import Notes, PreemptedError

# Pause between two looks at the chief's port.
_POLL_SECS = 0.5
# Looks in a row that find the chief's port closed until it counts as gone.
_POLLS_UNTIL_GONE = 3
# Pause between two lines of the log while tasks are missing.
_REPORT_SECS = 10.0
# Time for which a worker goes on after a signal: the chief cannot end a loop without
# it. No longer, as the chief may have got no signal, and goes on with another worker.
_LEAVE_SECS = 20.0


def serve(
    cluster: Cluster,
    *,
    start_timeout_secs: float = 600.0,
    lost_after_secs: float = 300.0,
) -> None:
    """Runs what the chief hands to this task; returns when the chief has ended.

    Where all tasks of a cluster are to end by a signal, the chief needs the others to
    save. So a parameter server goes on until the chief has ended, a worker for 20 s.

    Args:
      cluster: the tasks; this process is a worker or a parameter server.
      start_timeout_secs: seconds to wait for the chief to start.
      lost_after_secs: seconds to wait for a chief that is stopped.

    Raises:
      ValueError: this task's port is in use.
      PeerLostError: the chief did not start in time, or is stopped.
      PreemptedError: this task got SIGTERM or a Ctrl-C, and is not needed any more.
    """
    task = f"{cluster.task_type} {cluster.task_id}"
    check_port(task, cluster.training_tasks[task])
    # The reference keeps the server alive. It ends with the process: TensorFlow has no
    # other way to stop it.
    server = tf.distribute.Server(
        tf.train.ClusterSpec(dict(cluster.jobs)),
        job_name=cluster.task_type,
        task_index=cluster.task_id,
        protocol="grpc",
    )
    logging.info("%s | serving at %s", cluster, server.target)
    chief = cluster.jobs["chief"][0]
    wait_for({"chief 0": chief}, timeout_secs=start_timeout_secs)
    silence = liveness.Silence({"chief 0": chief}, lost_after_secs=lost_after_secs)
    with Notes(answer="got a signal; serves on while the chief saves.") as notes:
        if _watch(silence, until=lambda: notes.received is not None):
            logging.info("%s | the chief has ended", cluster)
            return
        name = signal.Signals(notes.received).name
        logging.info("%s | got %s, serves on while the chief saves", cluster, name)
        leaves = cluster.task_type == "worker"
        deadline = time.monotonic() + (_LEAVE_SECS if leaves else math.inf)
        _watch(silence, until=lambda: time.monotonic() >= deadline)
    raise PreemptedError(
        f"{cluster}: {name} ended it; the same command takes part again."
    )


def _watch(silence: liveness.Silence, *, until: Callable[[], bool]) -> bool:
    """Waits until the chief has ended, or until `until` returns True.

    Returns:
      Whether the chief has ended.

    Raises:
      PeerLostError: the chief is stopped.
    """
    (chief,) = silence.tasks.values()
    closed = 0
    while closed < _POLLS_UNTIL_GONE:
        if until():
            return False
        time.sleep(_POLL_SECS)
        closed = 0 if answers(chief) else closed + 1
        if not closed:
            silence.listen()
    return True


def wait_for(tasks: Mapping[str, str], *, timeout_secs: float) -> None:
    """Waits until every task answers on its port.

    TensorFlow would wait for them in silence, and let no Python run meanwhile.

    Args:
      tasks: addresses by the tasks' names, 'ps 0'.
      timeout_secs: seconds to wait.

    Raises:
      PeerLostError: the time is over; names the tasks that did not start.
    """
    began = reported = time.monotonic()
    missing = dict(tasks)
    while missing := {n: a for n, a in missing.items() if not answers(a)}:
        text = ", ".join(f"{name} ({address})" for name, address in missing.items())
        now = time.monotonic()
        if now - began > timeout_secs:
            raise absent_error(text, setting="parameter_server.start_timeout_secs")
        if now - reported > _REPORT_SECS:
            logging.info("cluster | waiting for %s", text)
            reported = now
        time.sleep(_POLL_SECS / 2)
