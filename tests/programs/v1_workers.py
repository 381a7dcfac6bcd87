"""Continues a model_dir of TensorFlow 1 by v1: `v1_workers.py MODEL_DIR`."""

import sys

from v1.checkpoints_test import estimator, input_fn

estimator(sys.argv[1]).train(lambda: input_fn(3), max_steps=6)
