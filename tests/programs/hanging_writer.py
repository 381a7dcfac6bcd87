"""Trains with a metric writer whose server never answers: `hanging_writer.py MODEL_DIR PACKAGE`."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1]))

import gin_estimator as ge
from small import make, train_input

model_dir, package = sys.argv[1:]
writer = {"mlflow": ge.MlflowWriter, "wandb": ge.WandbWriter}[package]()
one = make(model_dir, metric_writers=[writer], save_summary_steps=10, log_step_count_steps=20)
one.train(train_input, max_steps=60)
print("ENDED", one.state.step, flush=True)
