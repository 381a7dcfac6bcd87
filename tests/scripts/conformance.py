"""Strategy x mode in each process of a multi-worker cluster, for `conformance_test`.

A process has one cluster, which takes seconds to form, so that it does at once all that
there is to test; see `tests.clusters`.
"""

import json

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy

import pipeline as ge
from tests import clusters, fakes

EPOCHS = 2


def make_estimator(model_dir):
    return fakes.make_estimator(
        model_dir,
        execution="multi_worker",
        network=lambda: fakes.network(l2=0.01),
        params={"clip_norm": 0.2},
    )


def conformance(folder):
    """Both kinds of input: train, evaluate, predict, export, restore others'."""
    x, y = fakes.classification_data()
    found = {}
    for kind, per_replica in (("split", False), ("per_replica", True)):
        estimator = make_estimator(folder / kind)
        recorder = fakes.Recorder()
        input_fn = fakes.make_input_fn(x, y, batch_size=32, per_replica=per_replica)
        for _ in range(EPOCHS):
            estimator.train(input_fn, hooks=[recorder])
        found[kind] = {
            "recorded": recorder.values,
            "evaluated": estimator.evaluate(input_fn),
            "logits": logits_of(estimator, x, per_replica),
        }
    found["restored"] = restored(folder, estimator)
    if estimator.config.is_chief:
        spec = tf.TensorSpec([None, x.shape[1]])
        found["exported"] = estimator.export_saved_model(
            str(folder / "export"), ge.build_raw_serving_input_receiver_fn(spec)
        )
    estimator.wait_for_peers()
    return found


def conformance_two_each(folder):
    """The same, of processes with two replicas each, as with two GPUs.

    TensorFlow takes one replica of CPUs, and has no public way to ask for more.
    """
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )

    def two(extended, resolver, worker_device):
        del extended, resolver
        return tuple(f"{worker_device}/device:CPU:{i}" for i in range(2)), "CPU"

    strategy = collective_all_reduce_strategy.CollectiveAllReduceExtended
    strategy._initialize_local_devices = two
    return conformance(folder)


def restores(folder):
    """Restores others' checkpoints, without one of its own."""
    return restored(folder, make_estimator(folder / "run"))


def restored(folder, estimator):
    """What it predicts from each checkpoint that the test names."""
    x, _ = fakes.classification_data()
    return {
        path: logits_of(estimator, x, True, checkpoint_path=path)
        for path in json.loads((folder / "others.json").read_text())
    }


def logits_of(estimator, x, per_replica, checkpoint_path=None):
    predictions = estimator.predict(
        fakes.make_input_fn(x, batch_size=32, per_replica=per_replica),
        predict_keys="logits",
        checkpoint_path=checkpoint_path,
    )
    return [each["logits"].tolist() for each in predictions]


if __name__ == "__main__":
    scenarios = (conformance, conformance_two_each, restores)
    clusters.main({scenario.__name__: scenario for scenario in scenarios})
