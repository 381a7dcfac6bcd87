"""Measures what grows in a long run: train_and_evaluate over very many tiny steps.

    python -m benchmarks.soak [--steps=100000] [--every=1000] [--json]

One process trains a tiny MLP, and saves and evaluates every thousand steps, with logs
and summaries as they are by default. After each evaluation a hook looks at the size of
the process and of its model_dir. A line through any two looks has a slope. Quoted are
the median and quartiles of the slopes over all pairs of looks in the second half: by
then caches, and memory that is reused, have their size.

The time of a step is divided by the time of a fixed piece of work, done at each look,
as the machine's own speed drifts.
"""

import argparse
import collections
import gc
import itertools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import psutil
import tensorflow as tf
from absl import logging

from benchmarks import classifier, pairs
from pipeline import (
    Estimator,
    EvalSpec,
    Hook,
    ModeKeys,
    Run,
    RunConfig,
    TrainSpec,
    train_and_evaluate,
)

_BATCH_SIZE = 32
_EVAL_ROWS = 320
_PER_STEPS = 10_000
# The sizes that a hook looks at, by key of the JSON.
_TITLES = {
    "memory_mb": "resident memory, MB",
    "python_objects": "objects that Python's collector knows",
    "file_handles": "open file handles",
    "threads": "threads",
    "event_files": "event files",
    "event_mb": "event files, MB",
    "files": "files in model_dir",
}
_HEADER = [
    "| grows | at the end | per 10,000 steps | quartiles |",
    "| --- | --- | --- | --- |",
]


class LookHook(Hook):
    """Looks at the process and its model_dir at intervals.

    Attributes:
      steps: steps at which it looked.
      looks: sizes that it saw each time, by key.
      step_secs: seconds of a step in each interval; evaluations and checkpoints are
        left out.
      work_secs: seconds of the fixed piece of work at the end of each interval.
    """

    def __init__(self, every_steps: int) -> None:
        """Runs the fixed piece of work once.

        Args:
          every_steps: steps from one look to the next.
        """
        self.every_steps = every_steps
        self.steps: list[int] = []
        self.looks: dict[str, list[float]] = collections.defaultdict(list)
        self.step_secs: list[float] = []
        self.work_secs: list[float] = []
        self._process = psutil.Process()
        _work()  # The first call traces, which takes long.

    def after_step(self, run: Run) -> None:
        gc.collect()
        files = [p for p in pathlib.Path(run.model_dir).rglob("*") if p.is_file()]
        events = [path for path in files if "tfevents" in path.name]
        seen = {
            "memory_mb": self._process.memory_info().rss / 2**20,
            "python_objects": len(gc.get_objects()),
            "file_handles": self._process.num_fds(),
            "threads": self._process.num_threads(),
            "event_files": len(events),
            "event_mb": sum(path.stat().st_size for path in events) / 2**20,
            "files": len(files),
        }
        self.steps.append(run.step)
        for key, value in seen.items():
            self.looks[key].append(value)
        self.step_secs.append(run.report.seconds / run.report.num_steps)
        began = time.perf_counter()
        _work()
        self.work_secs.append(time.perf_counter() - began)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the slopes, and with --json again as the last line.

    Args:
      argv: flags; None for this process' own.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000, help="to train")
    parser.add_argument("--every", type=int, default=1_000, help="steps an evaluation")
    parser.add_argument("--json", action="store_true", help="slopes as the last line")
    options = parser.parse_args(argv)
    # The log is part of what is measured, but not of what is printed.
    logging.set_verbosity(logging.INFO)
    logging.use_absl_handler()
    with open(os.devnull, "w") as nowhere, tempfile.TemporaryDirectory() as model_dir:
        logging.get_absl_handler().python_handler.stream = nowhere
        look = soak(model_dir, steps=options.steps, every=options.every)
    found = results(look)
    pairs.say(table(look, found), found if options.json else None)


def soak(model_dir: str, *, steps: int, every: int) -> LookHook:
    """Trains and evaluates; returns the hook that looked on the way.

    Args:
      model_dir: folder for checkpoints and summaries.
      steps: steps to train.
      every: steps from one checkpoint, evaluation and look to the next.
    """
    look = LookHook(every)
    estimator = Estimator(
        classifier.model_fn,
        modules={"network": _network, "optimizer": keras.optimizers.Adam},
        config=RunConfig(model_dir=model_dir, save_checkpoints_steps=every),
    )
    train_and_evaluate(
        estimator,
        TrainSpec(_input_fn, max_steps=steps, hooks=[look]),
        EvalSpec(_input_fn, throttle_secs=0),
    )
    return look


def results(look: LookHook) -> dict[str, dict[str, float]]:
    """Returns slopes by key, and the change of a step's time.

    Args:
      look: hook that looked during a run.
    """
    slopes = {key: slope(look.steps, look.looks[key]) for key in _TITLES}
    ratio = _last_over_first(look.step_secs, look.work_secs)
    return {**slopes, "step_time": {"last_over_first": ratio}}


def table(look: LookHook, found: dict[str, dict[str, float]]) -> list[str]:
    """Returns the results as a table in Markdown.

    Args:
      look: hook that looked during a run.
      found: the slopes and the change that `results` returned.
    """
    rate = 1 / statistics.median(look.step_secs)
    ratio = found["step_time"]["last_over_first"]
    return [
        f"{look.steps[-1]:,} steps of a tiny MLP, {len(look.steps)} evaluations",
        "",
        *_HEADER,
        *(_row(key, look.looks[key][-1], found[key]) for key in _TITLES),
        "",
        f"step time, last fifth over first fifth: {ratio:.2f}, at {rate:,.0f} steps/s",
    ]


def slope(steps: Sequence[int], values: Sequence[float]) -> dict[str, float]:
    """Returns how much `values` grow in 10,000 steps, the first half left out.

    Args:
      steps: steps at which the values were seen; five at least.
      values: one value for each of these steps.

    Returns:
      Median and quartiles over all pairs of looks.
    """
    seen = list(zip(steps, values, strict=True))[len(steps) // 2 :]
    slopes = [
        _PER_STEPS * (later[1] - earlier[1]) / (later[0] - earlier[0])
        for earlier, later in itertools.combinations(seen, 2)
    ]
    low, median, high = statistics.quantiles(slopes, n=4)
    return {"per_10k_steps": median, "low": low, "high": high}


def _last_over_first(step_secs: Sequence[float], work_secs: Sequence[float]) -> float:
    """Returns how a step's time over the fixed work's changed, from fifth to fifth."""
    # Tracing is in the first interval.
    costs = [step / work for step, work in zip(step_secs, work_secs, strict=True)][1:]
    fifth = max(1, len(costs) // 5)
    return statistics.median(costs[-fifth:]) / statistics.median(costs[:fifth])


@tf.function
def _work() -> tf.Tensor:
    """Runs some milliseconds of small operations, as a step has them."""
    x = tf.ones([32, 32])
    for _ in tf.range(5_000):
        x = tf.nn.relu(tf.matmul(x, x) / 32)
    return tf.reduce_sum(x)


def _row(key: str, last: float, found: dict[str, float]) -> str:
    middle, low, high = found["per_10k_steps"], found["low"], found["high"]
    return f"| {_TITLES[key]} | {last:,.5g} | {middle:.3g} | {low:.3g} to {high:.3g} |"


def _network() -> keras.Model:
    """Returns a network 16 -> 32 -> 10, as `benchmarks.overhead` has it."""
    hidden = keras.layers.Dense(32, activation="relu")
    return keras.Sequential([keras.Input([16]), hidden, keras.layers.Dense(10)])


def _input_fn(mode: str, input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns random numbers and labels; endless in TRAIN."""
    rng = np.random.default_rng(0)
    rows = 4096 if mode == ModeKeys.TRAIN else _EVAL_ROWS
    x = rng.normal(size=[rows, 16]).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, rng.integers(10, size=rows)))
    if mode == ModeKeys.TRAIN:
        data = data.shuffle(rows).repeat()
    size = input_context.get_per_replica_batch_size(_BATCH_SIZE)
    return data.batch(size).prefetch(tf.data.AUTOTUNE)


if __name__ == "__main__":
    main()
