"""Trains with the metric writer of a server: `remote_writer.py MODEL_DIR WRITER URL [SLEEP]`.

Writes 6 points in 60 steps, after each of which it sleeps, and prints `ENDED 60`.
"""

import json
import os
import pathlib
import sys
import time
import urllib.request

sys.path.append(str(pathlib.Path(__file__).parents[1]))

import gin_estimator as ge
from small import make, train_input

model_dir, name, url, *sleep = sys.argv[1:]
os.environ |= {"MLFLOW_TRACKING_URI": url, "WANDB_BASE_URL": url, "WANDB_API_KEY": "a" * 40}


class Posts(ge.MetricWriter):
    is_remote = True

    def write(self, step, values, name):
        body = json.dumps({f"{name}/{tag}": value for tag, value in values.items()})
        urllib.request.urlopen(url, body.encode(), timeout=60).close()


class Sleeps(ge.Hook):
    every_steps = 1

    def after_step(self, run):
        time.sleep(float(*sleep))


writer = Posts() if name == "Posts" else getattr(ge.writers, name)()
one = make(model_dir, metric_writers=[writer], save_summary_steps=10, log_step_count_steps=20)
one.train(train_input, max_steps=60, hooks=[Sleeps()])
print("ENDED", one.state.step, flush=True)
