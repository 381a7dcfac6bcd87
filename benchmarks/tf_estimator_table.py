"""Trains a table with tf.estimator, for `benchmarks.tables`; needs TensorFlow 2.15.

    python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1
    python -m benchmarks.tables --estimator_python=VENV/bin/python

It imports nothing of this project. Each line on its standard input is a number of
steps; when they are done it writes a line.
"""

import os
import sys
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import numpy as np
import tensorflow as tf
from tf_estimator_turns import Asked

BATCHES = 64
_V1 = tf.compat.v1
OPTIMIZERS = {
    "sgd": _V1.train.GradientDescentOptimizer,
    "adagrad": _V1.train.AdagradOptimizer,
    "ftrl": _V1.train.FtrlOptimizer,
    "adam_lazy": _V1.train.AdamOptimizer,  # It moves all rows at each step.
}


def model_fn(features, labels, mode, params):
    """The loss of `benchmarks.tables`."""
    table = _V1.get_variable(
        "table",
        [params["rows"], params["width"]],
        initializer=_V1.random_normal_initializer(stddev=0.05),
        use_resource=True,
    )
    sums = tf.reduce_sum(tf.nn.embedding_lookup(table, features), [1, 2])
    loss = tf.reduce_mean(tf.square(sums - labels))
    optimizer = OPTIMIZERS[params["optimizer"]](params["rate"])
    step = _V1.train.get_global_step()
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, step)
    )


def input_fn(rows, batch, bag):
    """The data of `benchmarks.tables`."""
    rng = np.random.default_rng(0)
    ids = rng.integers(rows, size=(BATCHES * batch, bag))
    targets = rng.normal(size=len(ids)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((ids, targets))
    return data.batch(batch).cache().repeat().prefetch(tf.data.AUTOTUNE)


def main():
    """Trains until its standard input ends."""
    _V1.logging.set_verbosity(_V1.logging.ERROR)
    optimizer, rows, width, batch, bag, rate = sys.argv[1:]
    params = {
        "optimizer": optimizer,
        "rows": int(rows),
        "width": int(width),
        "rate": float(rate),
    }
    config = tf.estimator.RunConfig(
        tempfile.mkdtemp(), save_checkpoints_secs=None, save_checkpoints_steps=None
    )
    estimator = tf.estimator.Estimator(model_fn, config=config, params=params)
    estimator.train(lambda: input_fn(int(rows), int(batch), int(bag)), hooks=[Asked()])


if __name__ == "__main__":
    main()
