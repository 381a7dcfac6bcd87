"""A worker's outcomes: `worker.py FOLDER REPLICAS RESULT`; FOLDER/paths.json has checkpoints."""

import json
import pathlib
import pickle
import sys

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy

from outcome import outcome


def set_replicas(number):
    """Gives this process several replicas on CPUs, for which TensorFlow has no public way."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * number,
    )
    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    extended._initialize_local_devices = lambda self, resolver, worker: (
        tuple(f"{worker}/device:CPU:{i}" for i in range(number)),
        "CPU",
    )


if __name__ == "__main__":
    folder, replicas, result = sys.argv[1:]
    if int(replicas) > 1:
        set_replicas(int(replicas))
    paths = json.loads(pathlib.Path(folder, "paths.json").read_text())
    found = {
        kind: outcome(
            f"{folder}/{kind}",
            per_replica=kind == "per_replica",
            paths=paths,
            execution="multi_worker",
        )
        for kind in ("split", "per_replica")
    }
    pathlib.Path(result).write_bytes(pickle.dumps(found))
