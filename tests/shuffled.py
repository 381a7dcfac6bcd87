"""Examples that workers share by batches, in an order that is left to chance.

found = each_once(model_dir)
assert found["pass"] == EXPECTED
"""

import keras
import numpy as np
import tensorflow as tf

import pipeline as ge
from tests import fakes

ROWS = 60
# Of each number once: a sum alone would not see 1 and 3 in the place of 2 and 2.
EXPECTED = {"sum": sum(range(ROWS)), "squares": sum(i**2 for i in range(ROWS))}


def number_fn(features, mode, network, optimizer):
    """A model_fn whose metrics say which numbers it has seen."""
    return ge.EstimatorSpec(
        mode,
        loss=tf.reduce_mean(network(features[:, None]), 1),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
        metrics={
            "sum": ge.metric(keras.metrics.Sum, features),
            "squares": ge.metric(keras.metrics.Sum, features**2),
        },
    )


def by_tensorflow():
    """Numbers in batches, shuffled by TensorFlow without a seed."""
    numbers = tf.data.Dataset.range(ROWS).map(lambda i: tf.cast(i, tf.float32))
    return numbers.shuffle(ROWS).batch(6)


def by_numpy():
    """The same, by NumPy; once again when a run goes on."""
    numbers = np.random.permutation(ROWS).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(numbers).batch(6)


def each_once(folder):
    """What is seen in a pass that is broken off, in a whole one, in an evaluation."""

    def made(name):
        return fakes.make_estimator(
            folder / name,
            model_fn=number_fn,
            network=lambda: keras.layers.Dense(1),
            optimizer=lambda: keras.optimizers.SGD(0.0),
            execution="multi_worker",
            tf_random_seed=None,
        )

    found = {}
    for input_fn in (by_tensorflow, by_numpy):
        name = input_fn.__name__
        first = _seen(made(name), input_fn, max_steps=3)
        again = made(name)
        rest = _seen(again, input_fn)
        found[f"{name}_parts"] = {key: first[key] + rest[key] for key in EXPECTED}
        found[name] = _seen(again, input_fn)
    evaluated = again.evaluate(by_tensorflow)
    found["evaluated"] = {key: evaluated[key] for key in EXPECTED}
    return found


def _seen(estimator, input_fn, **limits):
    recorder = fakes.Recorder()
    estimator.train(input_fn, hooks=[recorder], **limits)
    return {key: float(recorder.values[-1][key]) for key in EXPECTED}
