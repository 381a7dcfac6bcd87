"""Measures how long a save of 200 MB halts training: python -m benchmarks.checkpoint.

Two runs take turns: one saves while it trains on, the other waits for the file.
"""

import tempfile
import time
from typing import Any

import keras
import tensorflow as tf

import gin_estimator as ge
from benchmarks import models
from benchmarks.rounds import show

_UNITS = 4096  # Adam keeps 12 bytes for each of their 16.7 million weights.
_NUM_ROUNDS = 9


class _Stopwatch(ge.SavingListener):
    """Times each save."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def before_save(self, run: ge.RunContext) -> None:
        self._began = time.perf_counter()

    def after_save(self, run: ge.RunContext) -> None:
        self.seconds.append(time.perf_counter() - self._began)


def _network() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input([16]), layers.Dense(_UNITS), layers.Dense(_UNITS), layers.Dense(10)]
    )


def _input_fn() -> tf.data.Dataset:
    return models.dataset([16], 8)


def _estimator(asynchronous: bool) -> Any:
    return ge.Estimator(
        models.model_fn,
        modules={"network": _network, "optimizer": keras.optimizers.Adam},
        config=ge.RunConfig(
            tempfile.mkdtemp(),
            save_checkpoints_steps=8,
            keep_checkpoint_max=1,
            async_checkpoint=asynchronous,
        ),
    )


def main() -> None:
    """Prints the ratio."""
    estimators = {flag: _estimator(flag) for flag in (True, False)}
    ratios = []
    for number in range(1, _NUM_ROUNDS + 2):
        stalls = {}
        for flag, estimator in estimators.items():
            watch = _Stopwatch()
            # The first save of the two is measured: steps follow it. The run waits for the last.
            estimator.train(_input_fn, max_steps=16 * number, saving_listeners=[watch])
            stalls[flag] = watch.seconds[-2]
        if number > 1:
            ratios.append(stalls[True] / stalls[False])
    show("stall of an asynchronous save over a synchronous one (bar at most 0.25)", ratios)


if __name__ == "__main__":
    main()
