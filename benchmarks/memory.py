"""Measures memory over 50 evaluations in one process: python -m benchmarks.memory."""

import os
import pathlib
import tempfile

import keras
import tensorflow as tf

import gin_estimator as ge
from benchmarks import models

_NUM_EVALUATIONS = 50
_NUM_WARM_UP = 5


def _resident_bytes() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Prints the growth, and how often model_fn was traced."""
    traces = 0

    def model_fn(features, labels, mode, network, optimizer):  # noqa: ANN001, ANN202
        nonlocal traces
        traces += 1
        return models.model_fn(features, labels, mode, network, optimizer)

    def new_input_fn() -> object:
        data = models.dataset([16], 32).take(50)
        return lambda: data.map(lambda *pair: pair)

    estimator = ge.Estimator(
        model_fn,
        modules={"network": models.mlp, "optimizer": keras.optimizers.Adam},
        config=ge.RunConfig(tempfile.mkdtemp()),
    )
    estimator.train(new_input_fn(), max_steps=50)
    resident, traced = [], []
    for _ in range(_NUM_EVALUATIONS):
        estimator.evaluate(new_input_fn())
        resident.append(_resident_bytes())
        traced.append(traces)
    first = resident[_NUM_WARM_UP - 1]
    growth = max(resident[_NUM_WARM_UP:]) / first
    traced_again = traced[-1] - traced[0]
    print(f"{growth:.3f}  resident memory, most over that after {_NUM_WARM_UP} (bar 1.02)")
    print(f"{traced_again}  traces of model_fn after the first evaluation (bar 0)")


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main()
