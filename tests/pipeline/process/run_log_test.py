"""What a program of one's own hears of TensorFlow."""

import os
import subprocess
import sys

from pipeline.process import run_log
from tests.clusters import ROOT

# Uses TensorFlow before there is an Estimator.
OWN_PROGRAM = """
import gin_estimator as ge
assert ge.RunConfig
import tensorflow as tf
print(int(tf.constant(3)))
"""


def test_a_program_hears_nothing_of_gpus_that_are_not_there():
    done = subprocess.run(
        [sys.executable, "-c", OWN_PROGRAM],
        cwd=ROOT,
        env=run_log.given(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
