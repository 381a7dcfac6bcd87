"""Trainings that something steers, killed in between and gone on with, or not killed.

The only weight grows by about 1 a step, by the mean of a batch; `score` is best where
it is 7. So each case decides on the same steps wherever it runs.
"""

import keras
import numpy as np
import tensorflow as tf

import pipeline as ge
from pipeline.model_dir import end_marker, evaluation_record
from pipeline.roles.evaluation import CheckpointEvaluation
from tests import fakes

KILLED_AT = 5
MAX_STEPS = 12
# Multiples of 1/8, whose sums are exact in any order.
X = (1 + np.arange(-12, 12) / 16).astype(np.float32)


def model_fn(features, mode, weight, optimizer):
    distance = tf.square(weight - 7.0)
    return ge.EstimatorSpec(
        mode,
        loss=-weight * features,
        train_op=ge.TrainOp(optimizer, [weight]),
        metrics={"score": -distance, "distance": distance},
    )


def endless():
    return tf.data.Dataset.from_tensor_slices(X).shuffle(24, seed=3).repeat().batch(4)


def once():
    return tf.data.Dataset.from_tensor_slices(X).batch(4)


class Asks(ge.Hook):
    """Of an evaluation: asks for a stop at a step."""

    def end(self, run):
        if run.step == 6:
            run.request_stop("enough")


class Killed(ge.Hook):
    """Ends all processes, as far as a test can, between two checkpoints."""

    every_steps = KILLED_AT

    def after_step(self, run):
        raise KeyboardInterrupt


# By name: functions of no argument that return the fields of TrainSpec, EvalSpec and
# RunConfig. Each run has hooks and rules of its own.
CASES = {
    "higher": lambda: ({}, {"early_stopping": ge.StopIfHigher("score", -2.0)}, {}),
    "lower": lambda: ({}, {"early_stopping": ge.StopIfLower("loss", -7.0)}, {}),
    "no_increase": lambda: (
        {},
        {"early_stopping": ge.StopIfNoIncrease("score", max_evaluations=1)},
        {},
    ),
    "no_decrease": lambda: (
        {},
        {"early_stopping": ge.StopIfNoDecrease("distance", max_steps=2)},
        {},
    ),
    "restore_best": lambda: (
        {},
        {
            "early_stopping": ge.StopIfNoIncrease(
                "score", max_evaluations=1, restore_best=True
            )
        },
        {},
    ),
    "asked": lambda: ({}, {"hooks": [Asks()]}, {}),
    "examples": lambda: ({"max_examples": 32}, {}, {}),
    "epochs": lambda: ({"input_fn": once, "max_epochs": 2, "max_steps": None}, {}, {}),
    "plateau": lambda: (
        {
            "hooks": [
                ge.ReduceOnPlateau(
                    "score", factor=0.5, max_evaluations=1, higher_is_better=True
                )
            ]
        },
        {},
        {},
    ),
    "keep_best": lambda: (
        {},
        {"keep_best": ge.KeepBest("score", 2, higher_is_better=True)},
        {},
    ),
    "keep_steps": lambda: ({}, {}, {"keep_checkpoint_steps": (3, 7)}),
    "exponential": lambda: ({}, {}, {"average": ge.ExponentialAverage(decay=0.5)}),
    "plain": lambda: ({}, {}, {"average": ge.StochasticWeightAverage(start_step=3)}),
    "every_steps": lambda: ({}, {"every_steps": 3, "at_start": True}, {}),
}


def make(model_dir, **config):
    # Nothing is drawn at random; with a seed, each evaluation's input would have
    # TensorFlow prepare all that it has compiled once more.
    defaults = {
        "save_summary_steps": None,
        "log_step_count_steps": None,
        "async_checkpoint": False,
        "save_checkpoints_steps": 2,
        "keep_checkpoint_max": 2,
    }
    return ge.Estimator(
        model_fn,
        modules={
            "weight": lambda: tf.Variable(0.0),
            "optimizer": lambda: keras.optimizers.SGD(1.0),
        },
        config=ge.RunConfig(model_dir=str(model_dir), **{**defaults, **config}),
    )


class Beside(ge.SavingListener):
    """An evaluator job that is as fast as the training beside it."""

    def __init__(self, estimator, spec):
        self._evaluation = CheckpointEvaluation(estimator, spec, [spec])
        self._estimator = estimator

    def after_save(self, run):
        path = f"{run.model_dir}/model.ckpt-{run.step}"
        self._evaluation(path, is_final=False)


def train(model_dir, case, *, kill=False, beside=False, **config):
    """Trains until the case ends it, or the kill."""
    train_fields, eval_fields, own = CASES[case]()
    config = {**config, **own}
    eval_spec = ge.EvalSpec(once, throttle_secs=0, **eval_fields)
    fields = {"input_fn": endless, "max_steps": MAX_STEPS, **train_fields}
    hooks = [*fields.pop("hooks", ()), *([Killed()] if kill else [])]
    if beside:
        other = make(model_dir, **config)
        fields["saving_listeners"] = [Beside(other, eval_spec)]
        config["evaluation"] = "evaluator"
    train_spec = ge.TrainSpec(**fields, hooks=hooks)
    ge.train_and_evaluate(make(model_dir, **config), train_spec, eval_spec)


def outcome(model_dir):
    """Returns what a training has left, as JSON."""
    values = fakes.weights(model_dir)
    marker = end_marker.read(str(model_dir))
    return {
        "weights": {name: value.tolist() for name, value in sorted(values.items())},
        "saved": fakes.checkpoint_steps(model_dir),
        "evaluated": [
            [each.step, each.metrics["score"]]
            for each in evaluation_record.read(f"{model_dir}/eval")
        ],
        "end": [marker.step, marker.reason, list(marker.details)],
    }


def compared(folder, case, **options):
    """Returns the outcomes of a run that is not killed, and of one that is."""
    train(folder / "whole", case, **options)
    try:
        train(folder / "killed", case, kill=True, **options)
        raise AssertionError("nothing was killed")
    except KeyboardInterrupt:
        train(folder / "killed", case, **options)
    return [outcome(folder / "whole"), outcome(folder / "killed")]
