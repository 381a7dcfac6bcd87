"""A model that trains in milliseconds, for tests of the driver."""

import pathlib

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).astype("float32")
Y = RNG.integers(3, size=40)


def model_fn(features, labels, mode, network, optimizer):
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions={"logits": logits, "twice": 2 * logits})
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
        metrics={"accuracy": ge.metric(keras.metrics.SparseCategoricalAccuracy, labels, logits)},
    )


def make_network():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [keras.layers.Dense(8), keras.layers.Dropout(0.2), keras.layers.Dense(3)]
    )


def data(batch=8):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch)


def train_input():
    return data().repeat()


def poisoned():
    """Returns data with a NaN in the fourth batch of each pass."""
    values = X.copy()
    values[26] = np.nan
    return tf.data.Dataset.from_tensor_slices((values, Y)).batch(8).repeat()


def eval_input():
    return data()


def features_input():
    return tf.data.Dataset.from_tensor_slices(X).batch(8)


def make(model_dir, *, fn=model_fn, network=make_network, optimizer=None, **options):
    optimizer = optimizer or (lambda: keras.optimizers.SGD(0.1))
    return ge.Estimator(
        fn,
        modules={"network": network, "optimizer": optimizer},
        config=ge.RunConfig(str(model_dir), **options),
    )


def strategy(name):
    """Returns 'mirrored 2' or 'central 2' on logical CPUs; None for 'default'."""
    kind, _, number = name.partition(" ")
    if kind == "default":
        return None
    devices = [f"CPU:{i}" for i in range(int(number))]
    if kind == "central":
        return tf.distribute.experimental.CentralStorageStrategy(devices)
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def weights(estimator):
    return np.concatenate([np.ravel(v.numpy()) for v in estimator.state.variables().values()])


def checkpoints(model_dir):
    """Returns the steps of the checkpoints."""
    paths = pathlib.Path(model_dir).glob("model.ckpt-*.index")
    return sorted(int(path.stem.rpartition("-")[2]) for path in paths)


class Do(ge.Hook):
    """Calls a function with the run after every so many steps."""

    def __init__(self, fn, every_steps=1):
        self.fn, self.every_steps = fn, every_steps

    def after_step(self, run):
        self.fn(run)


class Losses(ge.Hook):
    """Keeps the loss of each step."""

    every_steps = 1

    def __init__(self):
        self.values = []

    def after_step(self, run):
        self.values.append(run.report.loss)


def points(folder):
    """Returns `{tag: {step: value}}` of the event files in a folder."""
    result = {}
    for path in sorted(pathlib.Path(folder).glob("events.*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                result.setdefault(value.tag, {})[event.step] = value.simple_value
    return result
