"""Measures steps on large tables: python -m benchmarks.tables.

A step uses 256 x 8 ids of a table of 32 columns. The loop by hand gathers the same rows, sums
repeated ones, and updates them by TensorFlow's sparse kernels, or, for lazy Adam, by the formula.
"""

import functools
import tempfile
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from absl import flags, logging

import gin_estimator as ge
from benchmarks.rounds import Run, compare, timed
from gin_estimator.models import Embedding

ROWS, COLUMNS, BATCH = 1_000_000, 32, (256, 8)
RATE = 0.1
OPTIMIZERS = {
    "SGD": functools.partial(keras.optimizers.SGD, RATE),
    "Adagrad": functools.partial(keras.optimizers.Adagrad, RATE),
    "lazy Adam": functools.partial(keras.optimizers.Adam, RATE),
}
# Gets the table, its slots, rows and their gradient.
Update = Callable[[tf.Variable, list[tf.Variable], tf.Tensor, tf.Tensor], None]


def dataset(num_rows: int) -> tf.data.Dataset:
    """Returns endless batches of ids and labels."""
    ids = tf.random.stateless_uniform([100, *BATCH], [0, 1], 0, num_rows, tf.int64)
    return tf.data.Dataset.from_tensor_slices((ids, tf.zeros([100, BATCH[0]]))).repeat().prefetch(2)


def loss(vectors: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns losses `[batch]`."""
    return tf.square(tf.reduce_sum(vectors, axis=[1, 2]) - labels)


def model_fn(
    features: Any, labels: Any, mode: str, network: Any, optimizer: Any, params: Any
) -> ge.EstimatorSpec:
    """Trains a table."""
    losses = loss(network(features), labels)
    op = ge.TrainOp(optimizer, network.trainable_variables, lazy=params["lazy"])
    return ge.EstimatorSpec(mode, loss=losses, train_op=op)


class _Clock(ge.Hook):
    """Notes when steps are reached."""

    def __init__(self, every_steps: int) -> None:
        self.every_steps = every_steps
        self.times: list[float] = []

    def after_step(self, run: ge.RunContext) -> None:
        self.times.append(time.perf_counter())


def ours(name: str, num_rows: int = ROWS) -> Run:
    """Returns Estimator.train on a table, without saves."""
    estimator = ge.Estimator(
        model_fn,
        modules={
            "network": lambda: Embedding(num_rows, COLUMNS),
            "optimizer": OPTIMIZERS[name],
        },
        config=ge.RunConfig(tempfile.mkdtemp(), save_checkpoints_steps=0),
        params={"lazy": name.startswith("lazy")},
    )

    def run(num_steps: int) -> float:
        clock = _Clock(num_steps)
        stop = estimator.state.step + 3 * num_steps  # A training begins with short calls.
        estimator.train(lambda: dataset(num_rows), max_steps=stop, hooks=[clock])
        before, after = clock.times[-2:]
        return after - before

    return run


def by_hand(update: Update, slot_values: list[float]) -> Run:
    """Returns a loop in one tf.function."""
    table = tf.Variable(tf.random.uniform([ROWS, COLUMNS], -0.05, 0.05))
    slots = [tf.Variable(tf.fill([ROWS, COLUMNS], value)) for value in slot_values]
    iterator = iter(dataset(ROWS))

    @tf.function
    def loop(iterator: Any, num_steps: tf.Tensor) -> None:
        for _ in tf.range(num_steps):
            ids, labels = next(iterator)
            with tf.GradientTape() as tape:
                vectors = tf.nn.embedding_lookup(table, ids)
                mean = tf.reduce_mean(loss(vectors, labels))
            gradient = tape.gradient(mean, table)
            rows, places = tf.unique(gradient.indices)
            summed = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
            update(table, slots, rows, summed)

    return timed(lambda num_steps: loop(iterator, tf.constant(num_steps)))


def sgd(table: tf.Variable, slots: list[tf.Variable], rows: tf.Tensor, gradient: tf.Tensor) -> None:
    """Subtracts rows."""
    table.scatter_sub(tf.IndexedSlices(RATE * gradient, rows))


def adagrad(
    table: tf.Variable, slots: list[tf.Variable], rows: tf.Tensor, gradient: tf.Tensor
) -> None:
    """Updates by the sparse kernel."""
    tf.raw_ops.ResourceSparseApplyAdagradV2(
        var=table.handle,
        accum=slots[0].handle,
        lr=RATE,
        epsilon=1e-7,
        grad=gradient,
        indices=rows,
    )


def adam(
    table: tf.Variable, slots: list[tf.Variable], rows: tf.Tensor, gradient: tf.Tensor
) -> None:
    """Updates by the formula, as TensorFlow has no sparse kernel; bias corrections left out."""
    momentum, velocity = (tf.nn.embedding_lookup(slot, rows) for slot in slots)
    momentum += 0.1 * (gradient - momentum)
    velocity += 0.001 * (tf.square(gradient) - velocity)
    slots[0].scatter_update(tf.IndexedSlices(momentum, rows))
    slots[1].scatter_update(tf.IndexedSlices(velocity, rows))
    table.scatter_sub(tf.IndexedSlices(RATE * momentum / (tf.sqrt(velocity) + 1e-7), rows))


def main() -> None:
    """Prints the ratios."""
    flags.FLAGS.mark_as_parsed()
    logging.set_verbosity(logging.WARNING)
    for name, update, slot_values in (
        ("SGD", sgd, []),
        ("Adagrad", adagrad, [0.1]),
        ("lazy Adam", adam, [0.0, 0.0]),
    ):
        others = {f"{name} over a loop by hand (bar 0.9)": by_hand(update, slot_values)}
        compare(ours(name), others, 400, 5)
    others = {"10,000,000 rows over 1,000,000, Adagrad (bar 0.8)": ours("Adagrad")}
    compare(ours("Adagrad", 10 * ROWS), others, 400, 5)


if __name__ == "__main__":
    main()
