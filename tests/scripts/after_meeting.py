"""A task of a cluster of which one dies right after all have met.

    python -m tests.scripts.after_meeting tensorflow|sleep TASK SIGNAL

Nobody here lets Python run meanwhile: TensorFlow, or a `sleep` that keeps the lock.
"""

import ctypes
import json
import os
import signal
import sys

from pipeline.cluster import link_watch, rendezvous

WAY, VICTIM, HOW = sys.argv[1], int(sys.argv[2]), signal.Signals[sys.argv[3]]
CONFIG = json.loads(os.environ["TF_CONFIG"])
INDEX = CONFIG["task"]["index"]
TASKS = {f"worker {i}": a for i, a in enumerate(CONFIG["cluster"]["worker"])}
MEET = rendezvous.meet
TIMEOUTS = {"silence_secs": 2, "deadline_secs": 120}


def meet_and_die(*args, **kwargs):
    links = MEET(*args, **kwargs)
    sys.stderr.write("met\n")
    if INDEX == VICTIM:
        os.kill(os.getpid(), HOW)
    return links


def sleep():
    links = meet_and_die(TASKS, INDEX, timeout_secs=120)
    with link_watch.watched(links, **TIMEOUTS):
        ctypes.PyDLL(None).sleep(120 if VICTIM >= 0 else 2)


def tensorflow():
    import tensorflow as tf

    from pipeline.cluster import tf_config
    from pipeline.strategy import coordination

    rendezvous.meet = meet_and_die
    coordination.connected(
        tf_config.parse_tf_config(os.environ["TF_CONFIG"]),
        coordination.Options(
            communication=tf.distribute.experimental.CommunicationOptions(),
            heartbeat_timeout_secs=TIMEOUTS["silence_secs"],
            start_timeout_secs=TIMEOUTS["deadline_secs"],
        ),
    )


if __name__ == "__main__":
    link_watch._START_SECS = 4.0
    {"sleep": sleep, "tensorflow": tensorflow}[WAY]()
