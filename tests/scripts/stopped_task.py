"""A cluster with a parameter server of which one task is stopped, not killed.

    python -m tests.scripts.stopped_task out_dir TASK

The chief stops the task, or itself, after a step. Where it stopped the server, it drops
a function, as it does after an evaluation: TensorFlow tells all tasks, and keeps
Python's lock until they have answered.
"""

import functools
import os
import pathlib
import signal
import sys

import tensorflow as tf

import pipeline as ge
from pipeline import PeerLostError
from pipeline.cluster import liveness
from pipeline.strategy import parameter_server
from tests import fakes
from tests.scripts import forked_servers

OUT, VICTIM = pathlib.Path(sys.argv[1]), sys.argv[2]
LOST_AFTER_SECS = 3
STEP = 10
ROW = functools.partial(
    parameter_server.parameter_server,
    steps_per_closure=5,
    lost_after_secs=LOST_AFTER_SECS,
    start_timeout_secs=120,
)


class StopAt(ge.Hook):
    """Stops the victim after a step."""

    def next_step(self, step):
        return STEP if step < STEP else None

    def after_step(self, run):
        del run
        constant = tf.function(lambda: tf.constant(0)).get_concrete_function()
        sys.stderr.write(f"stopping {VICTIM}\n")
        os.kill(forked_servers.pid_of(OUT, VICTIM), signal.SIGSTOP)
        if VICTIM == "ps 0":
            del constant


def run_task():
    """Trains, or serves the chief."""
    x, y = fakes.classification_data(rows=160)
    estimator = fakes.make_estimator(
        OUT / "model", execution="parameter_server", train_distribute=ROW
    )
    input_fn = fakes.make_input_fn(x, y, batch_size=8, change=lambda d: d.repeat())
    try:
        estimator.train(input_fn, max_steps=100_000, hooks=[StopAt()])
    except PeerLostError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(75)


if __name__ == "__main__":
    liveness._NOTICE_SECS = 2.0
    forked_servers.run(OUT, run_task, stopped=VICTIM)
