"""Measures training in several processes of this machine: python -m benchmarks.scaling.

Two workers in lockstep against the loop of TensorFlow's tutorial; a chief, two workers and a
parameter server against its loop that schedules one step at a time. Both ways run in the same
processes.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any

import keras
import tensorflow as tf
from absl import flags, logging

import gin_estimator as ge
from benchmarks import models
from benchmarks.overhead import Task
from benchmarks.rounds import Run, compare, timed

_WORKERS = {"worker": 2}
_SERVERS = {"chief": 1, "worker": 2, "ps": 1}
_SMALL = Task(models.mlp, [16], 32)


def _run_tasks(jobs: dict[str, int], model_dir: str) -> None:
    """Runs this module as each task of a cluster; ends all tasks with the first one."""
    sockets = {job: [socket.create_server(("", 0)) for _ in range(n)] for job, n in jobs.items()}
    cluster = {
        job: [f"localhost:{each.getsockname()[1]}" for each in listed]
        for job, listed in sockets.items()
    }
    for each in sum(sockets.values(), []):
        each.close()
    tasks = []
    for job, listed in cluster.items():
        for index in range(len(listed)):
            config = {"cluster": cluster, "task": {"type": job, "index": index}}
            tasks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.scaling", model_dir],
                    env={
                        **os.environ,
                        "TF_CONFIG": json.dumps(config),
                        "TF_CPP_MIN_LOG_LEVEL": "2",
                    },
                    stdout=None if not tasks else subprocess.DEVNULL,
                    stderr=None if not tasks else subprocess.DEVNULL,
                )
            )
    try:
        tasks[0].wait(300)
    finally:
        for task in tasks:
            task.kill()


def _train_in_lockstep(model_dir: str) -> None:
    strategy = ge.multi_worker()
    ours = _SMALL.estimator(model_dir=model_dir, train_distribute=strategy)
    theirs = _SMALL.loop_of_tutorial(strategy)
    compare(ours, {"2 workers over the tutorial's loop (bar 1.0)": theirs}, 300, 5)


def _train_on_servers(model_dir: str) -> None:
    """Trains as the chief; as a worker or server, serves the chief and exits with it."""
    config = ge.RunConfig(model_dir, execution="parameter_server")
    strategy = ge.parameter_server(config)
    # At a log line or summary the chief waits for all workers.
    ours = _SMALL.estimator(
        model_dir=model_dir,
        train_distribute=strategy,
        log_step_count_steps=None,
        save_summary_steps=None,
    )
    name = "parameter servers, 2 workers over one step a closure (bar 1.0)"
    compare(ours, {name: _closures(strategy)}, 300, 5)


def _closures(strategy: tf.distribute.ParameterServerStrategy) -> Run:
    """Returns the loop of TensorFlow's tutorial on parameter servers."""
    with strategy.scope():
        network, optimizer = models.mlp(), keras.optimizers.Adam()
        optimizer.build(network.trainable_variables)

    def step(features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(models.losses(labels, network(features, training=True)))
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply(gradients, network.trainable_variables)
        return loss

    @tf.function
    def step_of_worker(iterator: Any) -> tf.Tensor:
        return strategy.run(step, args=next(iterator))

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: _SMALL.dataset(32)))

    def run(num_steps: int) -> None:
        for _ in range(num_steps):
            coordinator.schedule(step_of_worker, args=(iterator,))
        coordinator.join()

    return timed(run)


def main() -> None:
    """Prints the ratios; as a task of a cluster, takes part in it."""
    flags.FLAGS.mark_as_parsed()
    logging.set_verbosity(logging.WARNING)
    if "TF_CONFIG" not in os.environ:
        for jobs in (_WORKERS, _SERVERS):
            with tempfile.TemporaryDirectory() as model_dir:
                _run_tasks(jobs, model_dir)
        return
    on_servers = "ps" in json.loads(os.environ["TF_CONFIG"])["cluster"]
    (_train_on_servers if on_servers else _train_in_lockstep)(sys.argv[1])


if __name__ == "__main__":
    main()
