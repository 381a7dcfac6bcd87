"""Measures programs of tf.estimator by `gin_estimator.v1`: python -m benchmarks.v1 PYTHON.

PYTHON has TensorFlow 2.15.1, the last version with tf.estimator. It trains the same programs in a
process that waits while v1 trains.
"""

import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from absl import flags, logging

import gin_estimator.v1 as tf
from benchmarks import models, v1_programs
from benchmarks.overhead import Clock, Task
from benchmarks.rounds import Run, compare


def by_v1(program: Callable[[Any], Any]) -> Run:
    """Returns the training of a program by v1; half of its steps warm up."""
    estimator, input_fn = program(tf)

    def run(num_steps: int) -> float:
        clock = Clock(num_steps)
        estimator.train(input_fn, [clock], steps=2 * num_steps)
        before, after = clock.times[-2:]
        return after - before

    return run


def by_tensorflow(python: str, name: str) -> Run:
    """Returns the training of a program by TensorFlow 2.15."""
    process = subprocess.Popen(
        [python, str(pathlib.Path(v1_programs.__file__)), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def run(num_steps: int) -> float:
        print(num_steps, file=process.stdin, flush=True)
        return float(process.stdout.readline())

    return run


def main(python: str) -> None:
    """Prints the ratios; `python`: interpreter with TensorFlow 2.15."""
    flags.FLAGS.mark_as_parsed()
    logging.set_verbosity(logging.WARNING)
    for name, num_steps in (("cnn", 60), ("wide_deep", 1000)):
        others = {f"{name} over TensorFlow 2.15 (bar 1.0)": by_tensorflow(python, name)}
        compare(by_v1(getattr(v1_programs, name)), others, num_steps, 7)
    contract = Task(models.mlp, [16], 32).estimator()
    others = {"get_variable over the new contract (bar 1.0)": contract}
    compare(by_v1(v1_programs.mlp), others, 1100, 9)


if __name__ == "__main__":
    main(*sys.argv[1:])
