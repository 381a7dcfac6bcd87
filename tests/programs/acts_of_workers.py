"""Trains several models, one after the other, as one of two workers: `acts_of_workers.py FOLDER`.

Prints lines `SAID [NAME, VALUE]`.
"""

import json
import os
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

sys.path.append(str(pathlib.Path(__file__).parents[1]))

import gin_estimator as ge
from distribute.layers_test import trained_kernel
from gin_estimator.checkpoint import checkpoints
from gin_estimator.errors import CorruptCheckpointError
from hooks import stopping_test
from small import X, Y, data, make, train_input

FOLDER = sys.argv[1]
TASK = ge.RunConfig(FOLDER, execution="multi_worker").task_id


def say(name, value):
    os.write(1, f"SAID {json.dumps([name, value])}\n".encode())


def make_network():
    layers = keras.layers
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(3)]
    )


class Steps(ge.Hook):
    """Keeps the steps and the evaluations; worker 1 stops after a step."""

    every_steps = 1

    def __init__(self, stop_at=None, sleep=0.0):
        self.steps, self.votes, self.evaluations = [], [], []
        self.stop_at, self.sleep = stop_at, sleep

    def after_step(self, run):
        self.steps.append(run.step)
        self.votes.append([run.is_chief, run.agree(TASK == 1), run.agree(False)])
        time.sleep(self.sleep)
        if run.step == self.stop_at and TASK == 1:
            run.request_stop("enough")

    def after_evaluation(self, run, name, metrics):
        self.evaluations.append([run.step, float(metrics["loss"])])


def clocks(strategy):
    """Worker 1 wants a checkpoint after each 0.7 seconds, worker 0 never."""
    one = make(
        f"{FOLDER}/clocks",
        network=make_network,
        train_distribute=strategy,
        keep_checkpoint_max=99,
        save_checkpoints_secs=(1000.0, 0.7)[TASK],
    )
    hook = Steps(sleep=0.1)
    train_spec = ge.TrainSpec(train_input, 40, [hook])
    ge.train_and_evaluate(one, train_spec, ge.EvalSpec(data, exporters=ge.FinalExporter()))
    say("evaluations", hook.evaluations)
    values = {n: v.numpy().tolist() for n, v in one.state.variables().items() if "seed" not in n}
    say("weights", values)


def nan_input(input_context):
    """Worker 1 reads NaN from the third batch on."""
    x = X[:24].copy()
    if input_context.input_pipeline_id == 1:
        x[8:] = np.nan
    return tf.data.Dataset.from_tensor_slices((x, Y[:24])).batch(4)


def nan(strategy):
    hook = Steps()
    one = make(f"{FOLDER}/nan", train_distribute=strategy, steps_per_loop=1)
    try:
        one.train(nan_input, hooks=[hook])
    except ge.NanLossDuringTrainingError as error:
        say("nan", str(error))


def stops(strategy):
    hook = Steps(stop_at=7)
    one = make(f"{FOLDER}/stops", train_distribute=strategy)
    one.train(train_input, max_steps=1000, hooks=[hook])
    say("stopped", one.last_run.step)
    say("votes", [hook.votes[0], len(hook.votes)])


def rules(strategy):
    ended = []
    rule, kill = stopping_test.RULE, stopping_test.KillAt(37)
    for name, hooks in (("whole", []), ("killed", [kill]), ("killed", [])):
        try:
            one, _ = stopping_test.run(
                f"{FOLDER}/{name}", rule, hooks=hooks, train_distribute=strategy
            )
        except KeyboardInterrupt:
            continue
        ended.append([one.last_run.step, one.last_run.stop_reasons])
    say("rules", ended)


def all_stops(strategy):
    say("all stops", stopping_test.all_stops(f"{FOLDER}/all_stops", train_distribute=strategy))


def masks(strategy):
    first = trained_kernel(f"{FOLDER}/masks", strategy, None)
    second = trained_kernel(f"{FOLDER}/masks", strategy, None)
    say("masks", [(first != 1).astype(int).tolist(), (second != first).astype(int).tolist()])


def others(strategy):
    """The workers read other data."""
    one = make(f"{FOLDER}/others", train_distribute=strategy)
    one.train(
        lambda: tf.data.Dataset.from_tensor_slices((X + np.float32(TASK), Y)).batch(8), steps=1
    )


def unreadable(strategy):
    """Worker 1 cannot read the newest checkpoint."""
    options = {"train_distribute": strategy, "save_checkpoints_steps": 5}
    make(f"{FOLDER}/unreadable", **options).train(train_input, max_steps=10)
    problem = checkpoints._problem
    if TASK == 1:
        checkpoints._problem = lambda path: (
            CorruptCheckpointError("no such disk") if path.endswith("-10") else problem(path)
        )
    hook = Steps()
    make(f"{FOLDER}/unreadable", **options).train(train_input, max_steps=11, hooks=[hook])
    checkpoints._problem = problem
    say("restored", hook.steps)


def main():
    strategy = ge.multi_worker()
    for act in (clocks, nan, stops, rules, all_stops, masks, others, unreadable):
        act(strategy)
    print("DONE", flush=True)


if __name__ == "__main__":
    ge.run(main)
