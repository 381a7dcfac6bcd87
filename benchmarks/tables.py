"""Measures what steps cost that use few rows of a large table.

    python -m benchmarks.tables [--json] [--quick] [--estimator_python=PATH]

Estimator.train, with a log line and a summary every 100 steps, runs against a loop by
hand: the same gather, sums of repeated rows, and TensorFlow's own sparse kernels (for a
lazy Adam, which has none, gather and scatter). A step uses 256 x 8 ids of a table of
1,000,000 x 32. Then the driver runs against itself: with a table ten times as large,
and on two replicas whose batches are of unknown sizes. With the Python of a virtual
environment that has TensorFlow 2.15, tf.estimator does the same in turns, in a process
of its own, with its dense Adam against the lazy one; and so does its wide & deep model
on the flights of gin/flights.gin.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import flags, logging

from benchmarks import flights_columns, pairs
from benchmarks.pairs import Contender, TurnsHook
from benchmarks.tf_estimator import TfEstimator
from pipeline import Estimator, EstimatorSpec, Hook, RunConfig, TrainOp, TrainSpec
from pipeline.command import gin_config

ROWS, WIDTH, BATCH, BAG = 1_000_000, 32, 256, 8
RATE = 0.05
_K = keras.optimizers
OPTIMIZERS: Mapping[str, Callable[[], Any]] = {
    "sgd": lambda: _K.SGD(RATE),
    "adagrad": lambda: _K.Adagrad(RATE),
    "ftrl": lambda: _K.Ftrl(RATE),
    "adam_lazy": lambda: _K.Adam(RATE),
}
_BATCHES = 64
# Steps of ours and of another way in one round.
_SLICE = 200


class Table(tf.Module):
    """Vectors by id."""

    def __init__(self, num_rows: int) -> None:
        """Makes small random vectors.

        Args:
          num_rows: number of ids.
        """
        super().__init__()
        self.vectors = tf.Variable(tf.random.normal([num_rows, WIDTH], stddev=0.05))


def losses(vectors: tf.Variable, ids: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Returns a loss by example, of the sum of its ids' vectors."""
    sums = tf.reduce_sum(tf.gather(vectors, ids), [1, 2])
    return tf.square(sums - targets)


def data(num_rows: int, batch_size: int) -> tf.data.Dataset:
    """Returns endless batches, whose static shape does not tell their size."""
    rng = np.random.default_rng(0)
    ids = rng.integers(num_rows, size=(_BATCHES * BATCH, BAG))
    targets = rng.normal(size=len(ids)).astype(np.float32)
    rows = tf.data.Dataset.from_tensor_slices((ids, targets))
    return rows.batch(batch_size).cache().repeat().prefetch(tf.data.AUTOTUNE)


def model_fn(
    features: Any, labels: Any, mode: str, params: Any, table: Table, optimizer: Any
) -> EstimatorSpec:
    """Trains a table."""
    op = TrainOp(optimizer, [table.vectors], lazy=params["lazy"])
    loss = losses(table.vectors, features, labels)
    return EstimatorSpec(mode, loss=loss, train_op=op)


def training(
    name: str, num_rows: int = ROWS, **config: Any
) -> Callable[[Sequence[Hook], int | None], None]:
    """Returns Estimator.train as a function of hooks and a number of steps.

    Args:
      name: name of the optimizer.
      num_rows: number of ids.
      **config: fields of the RunConfig.
    """
    estimator = Estimator(
        model_fn,
        modules={"table": lambda: Table(num_rows), "optimizer": OPTIMIZERS[name]},
        # Saving a large table is no step's cost.
        config=RunConfig(
            model_dir=tempfile.mkdtemp(), save_checkpoints_steps=0, **config
        ),
        params={"lazy": name == "adam_lazy"},
    )

    def input_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        return data(num_rows, input_context.get_per_replica_batch_size(BATCH))

    def train(hooks: Sequence[Hook] = (), steps: int | None = None) -> None:
        estimator.train(input_fn, hooks=hooks, steps=steps)

    return train


def hand_loop(name: str) -> Callable[[int], None]:
    """Returns a loop by hand over sparse kernels, a tf.function.

    Args:
      name: name of the optimizer.
    """
    table = Table(ROWS).vectors
    first = tf.Variable(tf.fill([ROWS, WIDTH], 0.0 if name == "adam_lazy" else 0.1))
    second = tf.Variable(tf.zeros([ROWS, WIDTH]))
    count = tf.Variable(0.0)
    iterator = iter(data(ROWS, BATCH))
    update = _UPDATES[name]

    @tf.function
    def loop(num_steps: tf.Tensor) -> None:
        for _ in tf.range(num_steps):
            ids, targets = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(losses(table, ids, targets))
            gradient = tape.gradient(loss, table)
            rows, places = tf.unique(gradient.indices)
            values = tf.math.unsorted_segment_sum(
                gradient.values, places, tf.size(rows)
            )
            handles = [each.handle for each in (table, first, second)]
            update(*handles, values, rows, count.assign_add(1.0))

    return lambda num_steps: loop(tf.constant(num_steps))


def _sgd(table: Any, _: Any, __: Any, values: Any, rows: Any, ___: Any) -> None:
    tf.raw_ops.ResourceScatterSub(resource=table, indices=rows, updates=values * RATE)


def _adagrad(table: Any, sums: Any, _: Any, values: Any, rows: Any, __: Any) -> None:
    tf.raw_ops.ResourceSparseApplyAdagradV2(
        var=table, accum=sums, lr=RATE, epsilon=1e-7, grad=values, indices=rows
    )


def _ftrl(table: Any, sums: Any, linear: Any, values: Any, rows: Any, _: Any) -> None:
    tf.raw_ops.ResourceSparseApplyFtrl(
        var=table,
        accum=sums,
        linear=linear,
        grad=values,
        indices=rows,
        lr=RATE,
        l1=0.0,
        l2=0.0,
        lr_power=-0.5,
    )


def _adam(
    table: Any, mean: Any, square: Any, values: Any, rows: Any, count: Any
) -> None:
    def moved(slot: Any, towards: Any, share: float) -> tf.Tensor:
        old = tf.raw_ops.ResourceGather(resource=slot, indices=rows, dtype=tf.float32)
        new = old + (towards - old) * share
        tf.raw_ops.ResourceScatterUpdate(resource=slot, indices=rows, updates=new)
        return new

    first = moved(mean, values, 0.1)
    second = moved(square, tf.square(values), 0.001)
    rate = RATE * tf.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    change = rate * first / (tf.sqrt(second) + 1e-7)
    tf.raw_ops.ResourceScatterSub(resource=table, indices=rows, updates=change)


_UPDATES = {"sgd": _sgd, "adagrad": _adagrad, "ftrl": _ftrl, "adam_lazy": _adam}


def main() -> None:
    """Prints the table, and with --json the median ratios as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="ratios as the last line")
    parser.add_argument("--quick", action="store_true", help="five seconds a row")
    parser.add_argument(
        "--estimator_python", help="interpreter that has tensorflow-cpu==2.15.1"
    )
    given = parser.parse_args()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    flags.FLAGS.mark_as_parsed()
    logging.set_verbosity(logging.ERROR)
    results = _measure(5.0 if given.quick else 40.0, given.estimator_python)
    pairs.say([], results if given.json else None)


def _measure(secs: float, estimator_python: str | None) -> dict[str, dict[str, float]]:
    """Prints a row for each pair; returns the medians of their ratios."""
    found: dict[str, dict[str, float]] = {}
    lines = []

    def add(key: str, other: str, title: str, ours: Any, theirs: Any) -> None:
        found.setdefault(key, {})[other] = statistics.median(pairs.ratios(ours, theirs))
        lines.append(pairs.row(title, ours, theirs))

    for name in OPTIMIZERS:
        others = [Contender("hand_loop", hand_loop(name), _SLICE)]
        theirs = None
        if estimator_python:
            sizes = map(str, (ROWS, WIDTH, BATCH, BAG, RATE))
            theirs = TfEstimator(
                estimator_python, "tf_estimator_table.py", name, *sizes
            )
            # A dense Adam takes as long for a step as a lazy one for a hundred.
            size = 20 if name == "adam_lazy" else _SLICE
            others.append(Contender("estimator", theirs, size))
        hook = TurnsHook(_SLICE, others, secs)
        training(name)([hook])
        if theirs is not None:
            theirs.close()
        for other in others:
            title = f"{name}, {other.name}"
            add(name, other.name, title, hook.rates["ours"], hook.rates[other.name])
    if estimator_python:
        ours, theirs = _flights(estimator_python, secs)
        add("wide_and_deep", "estimator", "wide & deep, flights", ours, theirs)
    found["size"] = {}
    ours, theirs = _against(training("adagrad", 10 * ROWS), training("adagrad"), secs)
    add("size", "adagrad_10m_over_1m", "adagrad, 10 times the rows", ours, theirs)
    two = training("sgd", devices=("CPU:0", "CPU:1"))
    ours, theirs = _against(two, training("sgd"), secs)
    key = "mirrored_2_unknown_batch"
    add(key, "one_replica", "sgd, two replicas against one", ours, theirs)
    print("\n".join(pairs.table("Tables", lines)), flush=True)
    return found


def _flights(estimator_python: str, secs: float) -> tuple[list[float], list[float]]:
    """Returns the rates of wide & deep on the flights, ours and tf.estimator's.

    Batches of 512, the columns, sizes, optimizers and rates of gin/flights.gin.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        flights_columns.write(folder, flights_columns.encoder())
        script = "tf_estimator_flights.py"
        theirs = TfEstimator(estimator_python, script, name, "turns")
        hook = TurnsHook(_SLICE, [Contender("estimator", theirs, _SLICE)], secs)
        estimator = flights_columns.estimator(folder / "run")
        estimator.train(gin_config.build(TrainSpec).input_fn, hooks=[hook])
        theirs.close()
    return hook.rates["ours"], hook.rates["estimator"]


def _against(ours: Any, theirs: Any, secs: float) -> tuple[list[float], list[float]]:
    """Returns the rates of two trainings, which take turns in whole calls."""
    rates: tuple[list[float], list[float]] = [], []
    for _ in range(3):
        for train, into in zip((ours, theirs), rates, strict=True):
            hook = TurnsHook(_SLICE, [], secs / 6)
            train([hook])
            into.append(statistics.median(hook.rates["ours"]))
    return rates


if __name__ == "__main__":
    main()
