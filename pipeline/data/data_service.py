# SPDX-License-Identifier: Apache-2.0
"""Training batches that other processes make: TensorFlow's tf.data service.

Data workers take the examples of a pass as they need them, so that each example comes once, but in
no fixed order: a killed training cannot continue exactly at its position.
"""

import os

import tensorflow as tf
from absl import logging

from ..contract.spec import ModeKeys
from ..errors import UserValueError
from . import fingerprint
from .same_batches import calls_python

ADDRESS = "GIN_ESTIMATOR_DATA_SERVICE"  # Environment variable: grpc://HOST:PORT.
WHY_INEXACT = "data workers yield examples in no fixed order: some come twice, others are missed"
# Each data worker applies these to its own part of the examples.
_OF_THE_WHOLE = {
    "AssertCardinality": "assert_cardinality()",
    "Shard": "shard()",
    "Skip": "skip()",
    "Take": "take()",
    "Zip": "zip() or enumerate()",
}


def address(mode: str) -> str | None:
    """Returns the address of the service for the input of a mode; None for no service."""
    return os.environ.get(ADDRESS) or None if mode == ModeKeys.TRAIN else None


def check(dataset: tf.data.Dataset, name: str, *, num_processes: int) -> None:
    """Checks that data workers can make the batches of a dataset.

    Args:
      dataset: dataset that the input_fn returned.
      name: name of the input_fn, for messages.
      num_processes: number of processes that train.

    Raises:
      UserValueError: they would fail, or yield other examples.
    """
    found = fingerprint.kinds_of(dataset) & _OF_THE_WHOLE.keys()
    if num_processes > 1:
        problem = f"{num_processes} processes train: expected one"
    elif calls_python(dataset):
        problem = f"{name} calls Python code: expected operations of TensorFlow alone"
    elif found:
        names = ", ".join(_OF_THE_WHOLE[each] for each in sorted(found))
        problem = (
            f"{name} uses {names}, which each data worker would apply to its own part of the "
            "data: expected a dataset without it"
        )
    else:
        logging.warning("train | %s is set. After a restart, %s", ADDRESS, WHY_INEXACT)
        return
    raise UserValueError(
        f"{ADDRESS} is {os.environ[ADDRESS]!r}, and {problem}. Train without data workers."
    )


def distributed(dataset: tf.data.Dataset, service: str) -> tf.data.Dataset:
    """Returns the elements as the data workers at an address yield them, each once a pass."""
    dynamic = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    return dataset.apply(tf.data.experimental.service.distribute(dynamic, service))
