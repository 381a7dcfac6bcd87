"""Measures the memory that a training of a large table takes.

    python -m benchmarks.table_memory [--rows=10000000] [--json]

Adagrad trains a `models.Embedding` of 10,000,000 x 32 for 60 steps of 256 x 8 ids, and
saves four times: at the start, twice under way, at the end. Each row is a process of
its own: saves that copy nothing, a run that goes on from the last checkpoint, and
asynchronous saves. The peak of its resident memory stands against the table with its
slot: the whole, and without what the process has before it makes the table, which are
TensorFlow's libraries and Python's modules. It takes 11 GB of memory, 8 of disk, and
three minutes.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Before Keras, as in the command, which leaves out what Keras imports for few programs.
import pipeline as ge

# isort: split
import keras
import numpy as np
import tensorflow as tf
from absl import logging

import models
from benchmarks import pairs

WIDTH, BATCH, BAG, STEPS = 32, 256, 8, 60
# Name of each row, and whether its saves are asynchronous.
_RUNS = {"copying nothing": False, "going on": False, "asynchronous": True}


def model_fn(
    features: Any, labels: Any, mode: str, table: Any, optimizer: Any
) -> ge.EstimatorSpec:
    """Trains a table of sums."""
    sums = tf.reduce_sum(table(features), 1)
    op = ge.TrainOp(optimizer, table.trainable_variables)
    return ge.EstimatorSpec(mode, loss=tf.square(sums - labels), train_op=op)


def train(model_dir: str, num_rows: int, *, asynchronous: bool) -> dict[str, float]:
    """Trains in this process, which did nothing before.

    Args:
      model_dir: folder of the run.
      num_rows: number of ids.
      asynchronous: whether saves are.

    Returns:
      Peaks of the resident memory, in bytes: `before` the table, and of `all`.
    """
    # TensorFlow starts, and makes its first function.
    tf.function(lambda: tf.random.normal([8]))()
    before = _peak()

    def input_fn() -> tf.data.Dataset:
        rng = np.random.default_rng(0)
        ids = rng.integers(num_rows, size=(8 * BATCH, BAG))
        rows = tf.data.Dataset.from_tensor_slices((ids, np.ones(len(ids), np.float32)))
        return rows.batch(BATCH).repeat()

    ge.Estimator(
        model_fn,
        modules={
            "table": lambda: models.Embedding(num_rows, WIDTH, combiner="sum"),
            "optimizer": lambda: keras.optimizers.Adagrad(0.05),
        },
        config=ge.RunConfig(
            model_dir=model_dir,
            async_checkpoint=asynchronous,
            save_checkpoints_steps=STEPS // 3,
            keep_checkpoint_max=1,
        ),
    ).train(input_fn, steps=STEPS)
    return {"before": before, "all": _peak()}


def main() -> None:
    """Prints a row for each run, and with --json the ratios as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="ratios as the last line")
    parser.add_argument("--rows", type=int, default=10_000_000, help="number of ids")
    parser.add_argument("--run", choices=list(_RUNS), help=argparse.SUPPRESS)
    parser.add_argument("--model_dir", help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    if given.run:
        asynchronous = _RUNS[given.run]
        print(json.dumps(train(given.model_dir, given.rows, asynchronous=asynchronous)))
        return
    size = 2 * given.rows * WIDTH * 4
    lines, ratios = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name, asynchronous in _RUNS.items():
            model_dir = f"{folder}/{asynchronous}"
            peaks = _in_a_process(name, model_dir, given.rows)
            whole, besides = peaks["all"], peaks["all"] - peaks["before"]
            ratios[name] = {"whole": whole / size, "besides": besides / size}
            lines.append(
                f"| {name} | {size / 1e9:.2f} | {whole / 1e9:.2f} | {whole / size:.3f} "
                f"| {besides / size:.2f} |"
            )
    header = [
        "| saves | table and slot, GB | peak, GB | ratio | without TensorFlow |",
        "| --- | --- | --- | --- | --- |",
    ]
    pairs.say([*header, *lines], ratios if given.json else None)


def _in_a_process(name: str, model_dir: str, num_rows: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.table_memory", f"--run={name}"]
    done = subprocess.run(
        [*command, f"--model_dir={model_dir}", f"--rows={num_rows}"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def _peak() -> int:
    """Returns the most that was resident so far, in bytes; Linux counts in KiB."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
