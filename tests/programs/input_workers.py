"""Reads the inputs of tests/data/workers_test.py: `input_workers.py FOLDER PHASE`.

Writes the rows of each training to FOLDER/NAME-PHASE-TASK.json.
"""

import json
import sys

import numpy as np
import tensorflow as tf

import gin_estimator as ge
from data.reads import Reads

FOLDER, PHASE = sys.argv[1:]
MAX_STEPS = {"first": 5, "second": 12}[PHASE]


def unequal(input_context):
    """Yields 10 batches of 2 to worker 0 and 7 to worker 1; their number is known."""
    start, stop = ((0, 20), (100, 113))[input_context.input_pipeline_id]
    return tf.data.Dataset.range(start, stop).batch(input_context.get_per_replica_batch_size(4))


def unequal_unknown(input_context):
    return unequal(input_context).filter(lambda _: True)


def shuffled():
    """Takes no input_context: all processes must draw the same numbers."""
    rows = np.random.permutation(40).astype("int64")
    data = tf.data.Dataset.from_tensor_slices(rows).shuffle(40)
    return data.map(lambda i: tf.ensure_shape(tf.numpy_function(int, [i], tf.int64), [])).batch(4)


def anywhere(input_context, first_batch):
    print("FIRST", first_batch)
    return unequal(input_context).skip(first_batch)


def main():
    strategy = ge.multi_worker()
    for input_fn in (unequal, unequal_unknown, shuffled, anywhere):
        reads = Reads(f"{FOLDER}/{input_fn.__name__}", strategy)
        rows = reads(input_fn, max_steps=MAX_STEPS)
        task = reads.estimator.config.task_id
        found = {"rows": rows, "steps": reads.estimator.last_run.step}
        if PHASE == "second":
            reads.modes.clear()
            reads.estimator.evaluate(input_fn)
            found["evaluated"] = [row for _, part in reads.modes for row in part]
        with open(f"{FOLDER}/{input_fn.__name__}-{PHASE}-{task}.json", "w") as file:
            json.dump(found, file)


if __name__ == "__main__":
    ge.run(main)
