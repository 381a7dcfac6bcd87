# SPDX-License-Identifier: Apache-2.0
"""The strategy that a RunConfig chooses, by `train_distribute` or `execution`."""

from collections.abc import Callable

import tensorflow as tf

from ..contract import signatures
from ..contract.run_config import RunConfig, StrategyChoice
from ..distribute import devices
from ..distribute.strategies import multi_worker, single_host
from ..distribute.tpu import tpu
from ..errors import UserTypeError, UserValueError
from ..servers.parameter_server import parameter_server
from ..servers.strategy import ParameterServers

# Functions of a RunConfig by `RunConfig.execution`.
BY_EXECUTION: dict[str, Callable[..., tf.distribute.Strategy]] = {
    "single_host": single_host,
    "multi_worker": multi_worker,
    "parameter_server": parameter_server,
    "tpu": tpu,
}


def create(config: RunConfig) -> tf.distribute.Strategy:
    """Returns the strategy to train on; in an evaluator's task, to evaluate on.

    Raises:
      UserTypeError: `train_distribute` is not a strategy, or one that this project does not know.
      UserValueError: see the function of the strategy.
    """
    if config.task_type == "evaluator":
        return create_for_evaluation(config)
    devices.find()
    if config.train_distribute is not None:
        return _chosen("train_distribute", config.train_distribute, config)
    if config.execution == "multi_worker" and not config.cluster.jobs:
        return single_host(config)  # A SLURM step of one task.
    return BY_EXECUTION[config.execution](config)


def connect(config: RunConfig) -> None:
    """Connects this process to the other tasks of its cluster; alone creates its logical CPUs.

        config = RunConfig("runs/1", execution="multi_worker")
        connect(config)
        x = tf.constant(...)

    Call it first in a program that makes tensors, datasets or models at the top of its file:
    TensorFlow does both only before. On one device it does nothing. A worker or server of
    parameter servers serves the chief in this call, and then exits.

    Raises:
      TaskLostError: a task did not start in time.
      UserRuntimeError: the program has used TensorFlow before.
    """
    if len(config.cluster.tasks) > 1:
        create(config)
    elif config.devices is not None:
        devices.of(config)


def create_for_evaluation(config: RunConfig) -> tf.distribute.Strategy:
    """Returns `eval_distribute`, or the strategy of the local devices; see `create`."""
    devices.find()
    return _chosen("eval_distribute", config.eval_distribute or single_host, config)


def _chosen(field: str, choice: StrategyChoice, config: RunConfig) -> tf.distribute.Strategy:
    strategy = choice
    if callable(choice):
        arguments = signatures.arguments(choice, {"config": config}, role=f"RunConfig.{field}")
        strategy = choice(**arguments)
    known = (
        tf.distribute.OneDeviceStrategy,
        tf.distribute.MirroredStrategy,
        tf.distribute.experimental.CentralStorageStrategy,
        tf.distribute.MultiWorkerMirroredStrategy,
        tf.distribute.ParameterServerStrategy,
        tf.distribute.TPUStrategy,
    )
    default = type(tf.distribute.get_strategy())
    if not isinstance(strategy, (*known, default)):
        name = type(strategy).__name__ if not isinstance(strategy, type) else strategy.__name__
        raise UserTypeError(
            f"RunConfig.{field} is a {name}: expected one of {[each.__name__ for each in known]}, "
            "a subclass, or a function that returns one."
        )
    if isinstance(strategy, tf.distribute.ParameterServerStrategy) and not isinstance(
        strategy, ParameterServers
    ):
        raise UserValueError(
            f"RunConfig.{field} is a ParameterServerStrategy: expected gin_estimator's, which "
            "waits for lost tasks. Set train_distribute=ge.parameter_server."
        )
    return strategy
