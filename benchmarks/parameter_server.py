"""Measures a cluster with parameter servers: many steps a closure against one.

    python -m benchmarks.parameter_server out_dir [max_secs]

runs as each task, told by TF_CONFIG which one it is; `benchmarks.scaling` starts them.
One run of Estimator.train goes on in slices. From slice to slice the chief hands one
step or many steps to a worker in one go. Every slice has to count its steps and
examples exactly.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from benchmarks import classifier, pairs
from pipeline import Estimator, EstimatorSpec, Hook, Run, RunConfig, metric
from pipeline.cluster import server
from pipeline.strategy import parameter_server

_BATCH_SIZE = 32
_MANY = 100
# Two workers do a whole number of closures each.
_SLICE_STEPS = 400
_MAX_SECS = 45


class TurnsHook(Hook):
    """Times slices of a run with one and with many steps a closure, in turn.

    Attributes:
      rates: steps per second, by steps per closure.
    """

    every_steps = _SLICE_STEPS

    def __init__(
        self, strategy: parameter_server.ParameterServers, max_secs: float
    ) -> None:
        """Takes the strategy to change.

        Args:
          strategy: strategy whose steps per closure are set.
          max_secs: seconds after which the run ends; there are three rounds at least.
        """
        self.rates: dict[int, list[float]] = {_MANY: [], 1: []}
        self._strategy = strategy
        self._max_secs = max_secs
        self._slices = 0
        self._began = self._deadline = 0.0

    def after_step(self, run: Run) -> None:
        now = time.perf_counter()
        _check("examples", run.report.metrics["examples"], _SLICE_STEPS * _BATCH_SIZE)
        self._slices += 1
        if self._slices == 2:  # The first two trace and warm up.
            self._deadline = now + self._max_secs
        if self._slices > 2:
            rate = _SLICE_STEPS / (now - self._began)
            self.rates[self._strategy.steps_per_closure].append(rate)
        enough = len(self.rates[1]) >= 3 and self._slices % 2 == 0
        if enough and now > self._deadline:
            run.request_stop("time is over")
        self._strategy.steps_per_closure = 1 if self._slices % 2 else _MANY
        self._began = time.perf_counter()


def main() -> None:
    """Measures in the chief, which writes out_dir/results.json; other tasks serve."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out_dir", type=pathlib.Path, help="folder of results.json")
    parser.add_argument(
        "max_secs", type=float, nargs="?", default=_MAX_SECS, help="of measurement"
    )
    options = parser.parse_args()
    config = RunConfig()
    if config.task_type != "chief":
        server.serve(config.cluster)
        return
    rates = _rates(options.out_dir / "model", options.max_secs)
    row = pairs.row("one step a closure", rates[_MANY], rates[1])
    title = f"2 workers and a parameter server, tiny MLP, {_MANY} steps a closure"
    median = statistics.median(pairs.ratios(rates[_MANY], rates[1]))
    results = {
        "tables": pairs.table(title, [row]),
        "ratios": {"one_step_per_closure": median},
    }
    (options.out_dir / "results.json").write_text(json.dumps(results))


def _rates(model_dir: pathlib.Path, max_secs: float) -> dict[int, list[float]]:
    strategy = parameter_server.parameter_server(RunConfig(), steps_per_closure=_MANY)
    turns = TurnsHook(strategy, max_secs)
    estimator = Estimator(
        _model_fn,
        modules={"network": _network, "optimizer": keras.optimizers.Adam},
        # Logs and summaries would cut the closures short.
        config=RunConfig(
            model_dir=str(model_dir),
            train_distribute=strategy,
            log_step_count_steps=None,
            save_summary_steps=None,
        ),
    )
    estimator.train(_input_fn, hooks=[turns])
    steps = _SLICE_STEPS * (2 + len(turns.rates[_MANY]) + len(turns.rates[1]))
    _check("global step", estimator.global_step, steps)
    updates = estimator.get_variable_value("optimizer/iteration")
    _check("the optimizer's count", int(updates), steps)
    return turns.rates


def _network() -> keras.Model:
    """Returns a network 16 -> 32 -> 10, as `benchmarks.overhead` has it."""
    hidden = keras.layers.Dense(32, activation="relu")
    return keras.Sequential([keras.Input([16]), hidden, keras.layers.Dense(10)])


def _input_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    rng = np.random.default_rng(input_context.input_pipeline_id)
    x = rng.normal(size=[4096, 16]).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, rng.integers(10, size=4096)))
    return data.repeat().batch(_BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def _model_fn(
    features: Any, labels: Any, mode: str, network: Any, optimizer: Any
) -> EstimatorSpec:
    """Classifies as the other benchmarks do, and counts the examples."""
    spec = classifier.model_fn(features, labels, mode, network, optimizer)
    ones = tf.ones_like(labels, tf.float32)
    metrics = {**spec.metrics, "examples": metric(keras.metrics.Sum, ones)}
    return dataclasses.replace(spec, metrics=metrics)


def _check(name: str, value: float, expected: float) -> None:
    if value != expected:
        raise ValueError(f"{name} is {value}, and should be {expected}")


if __name__ == "__main__":
    main()
