# SPDX-License-Identifier: Apache-2.0
"""The life of a worker or a parameter server, which serves the chief until that ends."""

import math
import signal
import time

import tensorflow as tf
from absl import logging

from ..cluster import connect, start_barrier
from ..cluster.stuck_tasks import Answer, Silence
from ..cluster.tf_config import Cluster
from ..errors import EXIT_RESTART, PreemptedError, TaskLostError
from ..run import signals
from ..run.run import exit_now

_POLL_SECS = 0.5
# Polls in a row that find the chief's port closed until the chief counts as ended.
_POLLS_UNTIL_ENDED = 3
# Seconds for which a worker serves after a signal: the chief needs it to finish its call.
_LEAVE_SECS = 20.0


class ChiefEnded(SystemExit):
    """The chief that this task served has ended. A program that does not catch it exits with 0."""

    def __init__(self) -> None:
        super().__init__(0)


def serve(cluster: Cluster, *, start_timeout_secs: float, lost_after_secs: float) -> None:
    """Serves the chief until it has ended.

        wait until all tasks have started
        until the port of the chief is closed in three polls:
            after a signal: a worker leaves 20 s later, a server with the chief

    When all tasks get a signal, the chief needs the others to save. A worker does not wait for
    the chief, which may have got no signal and continues with the other workers. Such a worker
    ends here with 75: while an interpreter shuts down, TensorFlow's server computes NaN.

    Args:
      cluster: the tasks; this process is a worker or a server.
      start_timeout_secs: seconds to wait for the other tasks.
      lost_after_secs: seconds of silence after which a stopped chief is considered failed.

    Raises:
      ChiefEnded: always, except for the following.
      TaskLostError: a task did not start in time, or the chief is stopped.
      PreemptedError: this task received a signal, and then the chief ended.
      UserValueError: the port of this task is in use, or another task has another cluster.
    """
    start_barrier.meet(
        cluster.tasks, cluster.global_id, timeout_secs=start_timeout_secs, joins=True
    )
    # TensorFlow's server runs as long as the object exists.
    server = tf.distribute.Server(
        tf.train.ClusterSpec(dict(cluster.jobs)),
        job_name=cluster.task_type,
        task_index=cluster.task_id,
        protocol="grpc",
    )
    logging.info("%s | serving at %s", cluster.name, server.target)
    silence = Silence({"chief 0": cluster.tasks["chief 0"]}, lost_after_secs)
    # The chief's server starts after the barrier.
    connect_until = time.monotonic() + connect.CONNECT_SECS
    leave_at, is_leaving, has_started, closed = math.inf, False, False, 0
    with signals.training() as received:
        while closed < _POLLS_UNTIL_ENDED and time.monotonic() < leave_at:
            answer = silence.ask()["chief 0"]
            if not has_started and time.monotonic() > connect_until:
                raise TaskLostError("chief 0 of the cluster ended before it had connected.")
            has_started = has_started or answer is Answer.RUNS
            closed = closed + 1 if has_started and answer is Answer.ENDED else 0
            if received.number is not None and not is_leaving:
                is_leaving = True
                name = signal.Signals(received.number).name
                logging.warning("%s | %s: serving while the chief saves", cluster.name, name)
                if cluster.task_type == "worker":
                    leave_at = time.monotonic() + _LEAVE_SECS
            time.sleep(_POLL_SECS)
    if received.number is None:
        logging.info("%s | the chief has ended", cluster.name)
        raise ChiefEnded
    name = signal.Signals(received.number).name
    message = f"{cluster.name} was stopped by {name}. The same command takes part again."
    logging.warning(message)  # A SystemExit prints nothing.
    if closed < _POLLS_UNTIL_ENDED:
        exit_now(EXIT_RESTART)
    raise PreemptedError(message)
