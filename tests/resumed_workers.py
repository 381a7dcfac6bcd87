"""Trainings of two workers that are broken off, and go on."""

import json
import os

import numpy as np
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint
from tests import fakes

TASK = json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def make_estimator(model_dir, **options):
    return fakes.make_estimator(model_dir, execution="multi_worker", **options)


def endless(change=lambda dataset: dataset):
    x, y = fakes.classification_data(200)
    return fakes.make_input_fn(
        x, y, batch_size=16, per_replica=True, change=lambda d: change(d).repeat()
    )


def goes_on(folder):
    """An uninterrupted run and one in two parts, with all that is random.

    Then one step more, for which another learning rate is configured.
    """
    input_fn = endless(lambda d: d.shuffle(200, seed=3))

    def train(name, *max_steps):
        for steps in max_steps:
            make_estimator(
                folder / name,
                network=lambda: fakes.network(dropout=0.3),
                average=ge.ExponentialAverage(0.9),
            ).train(input_fn, max_steps=steps)
        return fakes.weights(folder / name)

    whole, parts = train("whole", 40), train("parts", 11, 40)
    made = []

    def optimizer():
        made.append(fakes.adam(learning_rate=0.002))
        return made[0]

    estimator = make_estimator(
        folder / "parts",
        network=lambda: fakes.network(dropout=0.3),
        optimizer=optimizer,
        average=ge.ExponentialAverage(0.9),
    )
    estimator.train(input_fn, max_steps=41)
    most = max(float(np.abs(whole[key] - parts[key]).max()) for key in whole)
    return most, round(float(made[0].learning_rate.numpy()), 6)


def starts_anywhere(folder):
    """20 batches in one process and 25 in the other: broken off in between, and later.

    A pass has 25 steps; the run of 40 is in its second one.
    """
    calls = []

    def input_fn(mode, input_context, first_batch):
        del mode
        calls.append(first_batch)
        x, y = fakes.classification_data(200, seed=TASK)
        indices = tf.data.Dataset.range(first_batch, 20 + 5 * TASK)
        size = input_context.get_per_replica_batch_size(16)

        def batch(index):
            rows = tf.random.stateless_uniform([size], [3, index], 0, 200, tf.int32)
            return tf.gather(x, rows), tf.gather(y, rows)

        return indices.map(batch)

    def train(name, *parts):
        for steps in parts:
            make_estimator(folder / name).train(input_fn, steps=steps)
        return fakes.weights(folder / name)

    whole = train("whole", 12, 28)
    calls.clear()
    parts = train("parts", 12, 18, 10)
    difference = max(float(np.abs(whole[key] - parts[key]).max()) for key in whole)
    saved = [path.name for path in folder.glob("parts/input/*.index")]
    return {"difference": difference, "calls": calls, "saved": saved}


def damaged_checkpoint(folder):
    """Of two, the newer one is cut short; for the second process the older one is."""
    estimator = make_estimator(folder, save_checkpoints_steps=5)
    estimator.train(endless(), max_steps=10)
    estimator.wait_for_peers()
    if TASK == 0:
        os.truncate(folder / "model.ckpt-10.data-00000-of-00001", 100)
    restore = checkpoint.restore

    def fails_on_one(state, path, **options):
        if TASK == 1 and path.endswith("-5"):
            raise ge.UnreadableCheckpointError(f"checkpoint {path} cannot be read.")
        restore(state, path, **options)

    checkpoint.restore = fails_on_one
    begun = fakes.Recorder()
    again = make_estimator(folder, save_checkpoints_steps=5)
    again.wait_for_peers()
    try:
        again.train(endless(), steps=3, hooks=[begun])
    finally:
        checkpoint.restore = restore
    return {"steps": begun.steps, "saved": fakes.checkpoint_steps(folder)}


def another_model_dir(folder):
    """The second process has a model_dir of its own, with another checkpoint."""
    make_estimator(folder / "shared").train(endless(), max_steps=5)
    mine = folder / ("shared" if TASK == 0 else "mine")
    try:
        make_estimator(mine).train(endless(), max_steps=10)
    except ValueError as error:
        return str(error)
