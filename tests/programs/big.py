"""Trains a model of 20 MB: `big.py MODEL_DIR sync|async`, with PAUSE in the environment."""

import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge


class Network(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        # 20 MB, so that a kill finds a save that is being written.
        self.big = self.add_weight(shape=(5_000_000,), trainable=False, initializer="ones")

    def call(self, x):
        return self.dense(x) + self.big[0]


def make_network():
    keras.utils.set_random_seed(1)
    return Network()


def model_fn(features, labels, mode, network, optimizer):
    loss = tf.square(network(features)[:, 0] - labels)
    return ge.EstimatorSpec(
        mode, loss=loss, train_op=ge.TrainOp(optimizer, network.trainable_variables)
    )


X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


def data():
    return tf.data.Dataset.from_tensor_slices((X, X[:, 0])).shuffle(64, seed=1).repeat().batch(8)


class Pause(ge.Hook):
    every_steps = 2

    def after_step(self, run):
        print("STEP", run.step, flush=True)
        time.sleep(float(os.environ.get("PAUSE", "0")))


model_dir, is_async = sys.argv[1], sys.argv[2] == "async"
config = ge.RunConfig(
    model_dir=model_dir,
    save_checkpoints_steps=10,
    async_checkpoint=is_async,
    keep_checkpoint_max=None,
    tf_random_seed=1,
)
modules = {"network": make_network, "optimizer": lambda: keras.optimizers.Adam(0.1)}
estimator = ge.Estimator(model_fn, modules=modules, config=config)
try:
    estimator.train(data, max_steps=50, hooks=[Pause()])
    print("WEIGHTS", estimator.get_variable_value("network/dense/kernel").ravel().tolist())
except ge.UserError as error:
    print("ERROR", type(error).__name__, error)
