"""Trains a model in two calls: `fit_calls.py MODEL_DIR EXECUTION [CALL STEP]`, to be killed there.

Data and model are at the top, and only the chief has the seed of the weights. Step 0 is between
the calls.
"""

import json
import os
import signal
import sys

import gin_estimator as ge

model_dir, execution, *rest = sys.argv[1:]
options = {"devices": ("CPU:0", "CPU:1")} if execution == "two" else {"execution": execution}
config = ge.RunConfig(model_dir, save_checkpoints_steps=1, tf_random_seed=1, **options)
ge.connect(config)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

kill_call, kill_step = map(int, rest or (0, 0))
keras.utils.set_random_seed(3 if config.is_chief else 4)
x = tf.constant(np.random.default_rng(0).normal(size=(97, 4)), tf.float32)
y = tf.cast(tf.reduce_sum(x, axis=1) > 0, tf.int64)
model = keras.Sequential(
    [keras.Input([4]), keras.layers.Dense(8, "relu"), keras.layers.Dense(2, "softmax")]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


class Kill(ge.Hook):
    """Ends the second process, or the only one, without a word."""

    every_steps = 1

    def __init__(self, call):
        self._call = call

    def after_step(self, run):
        kill_at(self._call, run.step)


def kill_at(call, step):
    is_last = execution != "multi_worker" or not config.is_chief
    if is_last and (call, step) == (kill_call, kill_step):
        os.kill(os.getpid(), signal.SIGKILL)


def main():
    options = {"batch_size": 32, "validation_split": 0.2, "config": config}
    first = ge.fit(model, x, y, epochs=2, hooks=[Kill(1)], **options)
    kill_at(2, 0)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.SGD(0.1), model.loss, metrics=["accuracy"])
    second = ge.fit(model, x, y, epochs=4, initial_epoch=2, hooks=[Kill(2)], **options)
    weights = [each.tolist() for each in model.get_weights()]
    history = {name: first.history[name] + second.history[name] for name in first.history}
    print("RESULT", json.dumps({"history": history, "weights": weights}), flush=True)


ge.run(main)
