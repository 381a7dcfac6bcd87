"""Trains on each number once, twice over: `data_workers.py FOLDER NUMBER`.

Prints how often each was trained on. The second pass waits at its tenth step for FOLDER/go.
"""

import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

FOLDER, NUMBER = pathlib.Path(sys.argv[1]), int(sys.argv[2])


def model_fn(features, labels, mode, counts, optimizer):
    loss = -tf.gather(counts, features)
    return ge.EstimatorSpec(mode, loss=loss, train_op=ge.TrainOp(optimizer, [counts]))


def numbers():
    return tf.data.Dataset.range(NUMBER).shuffle(NUMBER, seed=1).batch(1)


class Wait(ge.Hook):
    every_steps = 1

    def after_step(self, run):
        if run.step == NUMBER + 10:
            print("WAITING", flush=True)
        while run.step == NUMBER + 10 and not (FOLDER / "go").exists():
            time.sleep(0.01)


def main():
    modules = {
        "counts": lambda: tf.Variable(tf.zeros([NUMBER])),
        "optimizer": lambda: keras.optimizers.SGD(1.0),
    }
    config = ge.RunConfig(
        str(FOLDER / "run"), execution="multi_worker", save_checkpoints_steps=NUMBER
    )
    estimator = ge.Estimator(model_fn, modules=modules, config=config)
    before = np.zeros(NUMBER)
    for _ in range(2):
        estimator.train(numbers, hooks=[Wait()])
        now = np.array(estimator.get_variable_value(estimator.get_variable_names()[0]))
        print(
            "TIMES",
            {
                int(n): int(c)
                for n, c in zip(*np.unique(now - before, return_counts=True), strict=True)
            },
            flush=True,
        )
        before = now


ge.run(main)
