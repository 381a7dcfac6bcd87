"""Runs steps of one second until a signal: `slow.py MODEL_DIR MODE [key=value ...]`.

Modes: train; slow_down, 200 steps of 10 ms and then slower ones; evaluate, in a training; predict,
and evaluate_alone, without a training. Keys are fields of RunConfig. Prints READY before the first
slow step, and `STEP n TIME` after each.
"""

import ast
import os
import pathlib
import sys
import time

import tensorflow as tf

sys.path.append(str(pathlib.Path(__file__).parents[1]))

import gin_estimator as ge
from small import data, features_input, make

MODEL_DIR, MODE = sys.argv[1:3]
options = dict(each.split("=") for each in sys.argv[3:])
options = {key: ast.literal_eval(value) for key, value in options.items()}
count = 0


def pause():
    global count
    if not count:
        os.write(1, b"READY\n")
    time.sleep(0.2 if MODE == "slow_down" else 1.0)
    count += 1
    os.write(1, b"STEP %d %.2f\n" % (count, time.monotonic()))


def slow(dataset):
    def wait(index, element):
        with tf.control_dependencies([tf.numpy_function(pause, [], [])]):
            return tf.nest.map_structure(tf.identity, element)

    return dataset.repeat().enumerate().map(wait)


def fast():
    def wait(*element):
        with tf.control_dependencies([tf.numpy_function(lambda: time.sleep(0.01), [], [])]):
            return tf.nest.map_structure(tf.identity, element)

    return data().repeat().take(200).map(wait)


def main():
    one = make(MODEL_DIR, save_checkpoints_steps=5 if MODE == "evaluate" else None, **options)
    if MODE == "train":
        one.train(lambda: slow(data()), max_steps=1000)
    elif MODE == "slow_down":
        one.train(lambda: fast().concatenate(slow(data())), max_steps=2000)
    elif MODE == "evaluate":
        spec = ge.EvalSpec(lambda: slow(data()), steps=1000)
        ge.train_and_evaluate(one, ge.TrainSpec(lambda: data().repeat(), 10), spec)
    elif MODE == "evaluate_alone":
        one.evaluate(lambda: slow(data()), steps=1000)
    elif MODE == "predict":
        for _ in one.predict(lambda: slow(features_input())):
            pass


if __name__ == "__main__":
    ge.run(main)
