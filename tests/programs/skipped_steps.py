"""Trains alone or as a worker, skips bad batches: `skipped_steps.py MODEL_DIR RESULT SLEEP`.

Prints `STEP n` after each step, and sleeps; writes the weights at the end. Three of twelve batches
have a NaN in one example, in each of two passes.
"""

import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 8, 4)).astype("float32")
Y = RNG.integers(3, size=(12, 8))
X[[2, 5, 6], 1, 3] = np.nan


def input_fn():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).unbatch()
    data = data.map(lambda x, y: (x, y), num_parallel_calls=2).batch(8)
    return data.shuffle(12, seed=5).repeat(2)


def make_network():
    layers = keras.layers
    extra = [] if "TF_CONFIG" in os.environ else [layers.BatchNormalization(), layers.Dropout(0.2)]
    return keras.Sequential([layers.Dense(8), *extra, layers.Dense(3)])


def model_fn(features, labels, mode, network, optimizer):
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
    )


class Slow(ge.Hook):
    every_steps = 1

    def after_step(self, run):
        print("STEP", run.step, flush=True)
        time.sleep(sleep)


if __name__ == "__main__":
    model_dir, result, sleep = sys.argv[1], sys.argv[2], float(sys.argv[3])
    estimator = ge.Estimator(
        model_fn,
        modules={"network": make_network, "optimizer": lambda: keras.optimizers.Adam(0.01)},
        config=ge.RunConfig(
            model_dir,
            tf_random_seed=1,
            save_checkpoints_steps=4,
            on_nan="restore",
            max_skipped_steps=6,
            execution="multi_worker" if "TF_CONFIG" in os.environ else "single_host",
        ),
    )
    hooks = [Slow()] if sleep else []
    estimator.train(input_fn, hooks)
    weights = [variable.numpy().ravel() for variable in estimator.state.variables().values()]
    np.save(result, np.concatenate(weights))
