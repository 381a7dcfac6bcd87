"""A program as users write it: what it does is its first argument.

own_main.py trains runs/a 1000
"""

import os

import tensorflow as tf

import pipeline as ge
from tests import fakes

X, Y = fakes.classification_data(64)


def estimator(model_dir, **options):
    return fakes.make_estimator(
        model_dir,
        save_checkpoints_steps=100,
        log_step_count_steps=20,
        execution="multi_worker" if "TF_CONFIG" in os.environ else "single_host",
        **options,
    )


def data(repeats=None):
    return fakes.make_input_fn(X, Y, batch_size=16, change=lambda d: d.repeat(repeats))


def trains(model_dir, steps):
    """By one call of `train`, which would be followed by more."""
    estimator(model_dir).train(data(), max_steps=int(steps))
    print("after train")


def trains_and_evaluates(model_dir, steps):
    ge.train_and_evaluate(
        estimator(model_dir),
        ge.TrainSpec(data(), max_steps=int(steps)),
        ge.EvalSpec(fakes.make_input_fn(X, Y, batch_size=16)),
    )
    print("after train_and_evaluate")


def waits_in_tensorflow():
    """As long as TensorFlow waits for another machine: Python runs no handler."""
    print("waiting", flush=True)
    tf.queue.FIFOQueue(1, [tf.int32]).dequeue()


def main(argv):
    return globals()[argv[1]](*argv[2:])


if __name__ == "__main__":
    ge.run(main)
