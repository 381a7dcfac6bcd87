"""Trainings that something steers, killed in between and gone on with, or not killed.

The only weight grows by about 1 a step, by the mean of a batch; `score` is best where
it is 7. So each case decides on the same steps wherever it runs, and comes to the same
numbers: those of one process.

    steered.train(whole, "plateau+keep_best")
    steered.train(killed, "plateau+keep_best", kill=steered.break_off)
    steered.train(killed, "plateau+keep_best")
    assert steered.outcome(killed) == steered.outcome(whole)
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal

import keras
import numpy as np
import tensorflow as tf

import pipeline as ge
from pipeline.cluster.tf_config import Cluster
from pipeline.model_dir import end_marker, evaluation_record
from pipeline.roles import evaluation_along
from pipeline.roles.evaluation import CheckpointEvaluation
from tests import fakes

KILLED_AT = 5
MAX_STEPS = 12
SEED = 1
BATCH = 4
# Multiples of 1/16, whose sums are exact in any order.
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
    data = tf.data.Dataset.from_tensor_slices(X)
    return data.shuffle(24, seed=3).repeat().batch(BATCH)


def once():
    return tf.data.Dataset.from_tensor_slices(X).batch(BATCH)


def in_one_batch():
    return tf.data.Dataset.from_tensor_slices(X).batch(len(X))


def poisoned(value):
    """Returns an input_fn with a bad batch before the kill, and one after it."""

    def input_fn():
        x = np.tile(X, 3)
        x[[2 * BATCH, 7 * BATCH + 1]] = value
        return tf.data.Dataset.from_tensor_slices(x).batch(BATCH)

    return input_fn


class Asks(ge.Hook):
    """Of an evaluation: asks for a stop at a step."""

    def end(self, run):
        if run.step == 6:
            run.request_stop("enough")


class Clock(ge.Hook):
    """A clock of which a step takes a second, for a limit of time."""

    every_steps = 1

    def __init__(self, limit):
        self._now = 0.0
        limit._time._clock = lambda: self._now

    def after_step(self, run):
        self._now += 1


class Killed(ge.Hook):
    """Calls `kill`, of the run, between two checkpoints."""

    every_steps = KILLED_AT

    def __init__(self, kill):
        self._kill = kill

    def after_step(self, run):
        if run.step == KILLED_AT:
            self._kill(run)


def for_good(run):
    """Ends this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def break_off(run):
    """Ends the training of this process, as far as one can from within."""
    raise KeyboardInterrupt


def leaving(folder):
    """Returns a function that ends nothing: what a kill would leave is copied."""
    return lambda run: shutil.copytree(run.model_dir, folder)


def _seconds():
    limit = ge.StopAfterSecsHook(8)
    return {"hooks": [Clock(limit), limit]}


def _rule(rule):
    return {}, {"early_stopping": rule}, {}


# By name: functions of no argument that return the fields of TrainSpec, EvalSpec and
# RunConfig. Each run has hooks and rules of its own.
CASES = {
    "higher": lambda: _rule(ge.StopIfHigher("score", -2.0)),
    "lower": lambda: _rule(ge.StopIfLower("loss", -7.0)),
    "no_increase": lambda: _rule(ge.StopIfNoIncrease("score", max_evaluations=1)),
    "no_decrease": lambda: _rule(ge.StopIfNoDecrease("distance", max_steps=2)),
    "restore_best": lambda: _rule(
        ge.StopIfNoIncrease("score", max_evaluations=1, restore_best=True)
    ),
    "asked": lambda: ({}, {"hooks": [Asks()]}, {}),
    "seconds": lambda: (_seconds(), {}, {}),
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
    "left_out": lambda: ({"input_fn": poisoned(np.nan)}, {}, {"on_nan": "restore"}),
    "guarded": lambda: (
        {"input_fn": poisoned(-1000), "hooks": [ge.LossGuard(max_loss=100.0)]},
        {},
        {},
    ),
}
# Cases that go together, where a training takes long to begin.
TOGETHER = (
    "epochs+plateau+keep_best",
    "left_out+plain+examples",
    "seconds+every_steps",
    "restore_best+exponential+keep_steps",
)
TOGETHER_BESIDE = ("asked+exponential+keep_best", "restore_best+plateau+plain")
# All of them beside an evaluator job.
BESIDE = (
    *TOGETHER_BESIDE,
    "higher",
    "lower+keep_steps",
    "no_increase+plain",
    "no_decrease+exponential",
    "epochs+plateau+keep_best",
    "seconds+every_steps",
    "left_out+examples",
    "guarded+exponential+keep_best",
)
# With parameter servers no batch is left out, and each goes to any worker.
ON_SERVERS = (
    "epochs+plateau+keep_best",
    "examples+plain",
    "seconds+every_steps",
    "restore_best+exponential+keep_steps",
    "asked+exponential+keep_best",
)


def fields_of(case):
    """Returns the fields of a case, or of several that go together, "a+b"."""
    parts = [CASES[name]() for name in case.split("+")]
    merged = [
        {name: value for fields in kind for name, value in fields.items()}
        for kind in zip(*parts, strict=True)
    ]
    hooks = [hook for train, *_ in parts for hook in train.get("hooks", ())]
    return [{**merged[0], "hooks": hooks}, *merged[1:]]


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

    def __init__(self, model_dir, spec, **config):
        # Nothing to compile for a few steps.
        alone = make(model_dir, cluster=Cluster(), run_eagerly=True, **config)
        self._evaluation = CheckpointEvaluation(alone, spec, [spec])

    def after_save(self, run):
        if run.leads:
            path = f"{run.model_dir}/model.ckpt-{run.step}"
            self._evaluation(path, is_final=False)


def train(model_dir, case, *, kill=None, beside=False, **config):
    """Trains until the case ends it, or the kill.

    Args:
      model_dir: its folder.
      case: name in `CASES`, or several, "a+b".
      kill: function of the run, called after step `KILLED_AT`; None for no such.
      beside: whether an evaluator job evaluates.
      **config: fields of RunConfig: where it runs.
    """
    train_fields, eval_fields, own = fields_of(case)
    eval_spec = ge.EvalSpec(in_one_batch, throttle_secs=0, **eval_fields)
    fields = {"input_fn": endless, "max_steps": MAX_STEPS, **train_fields}
    if kill is not None:
        fields["hooks"] = [*fields["hooks"], Killed(kill)]
    if beside:
        fields["saving_listeners"] = [Beside(model_dir, eval_spec, **own)]
        config["evaluation"] = "evaluator"
    estimator = make(model_dir, **config, **own)
    with contextlib.suppress(KeyboardInterrupt):
        ge.train_and_evaluate(estimator, ge.TrainSpec(**fields), eval_spec)


def outcome(model_dir):
    """Returns what a training has left, as JSON.

    The weights are exact; of metrics, sums of averages are rounded in some order.
    """
    model_dir = pathlib.Path(model_dir)
    values = fakes.weights(model_dir)
    marker = end_marker.read(str(model_dir))
    best = model_dir / "best.json"
    return {
        "weights": {name: value.tolist() for name, value in sorted(values.items())},
        "saved": fakes.checkpoint_steps(model_dir),
        "best": _rounded(json.loads(best.read_text())) if best.exists() else None,
        "evaluated": [
            [each.step, _rounded(each.metrics)]
            for each in evaluation_record.read(str(model_dir / "eval"))
        ],
        "left_out": {
            path.parent.name: json.loads(path.read_text())
            for path in sorted(model_dir.glob("bad_batches/*/left_out.json"))
        },
        "end": [marker.step, marker.reason, list(marker.details)],
    }


def halved(config):
    """Halves a scheduled rate after evaluations, until a rule ends the training.

    Args:
      config: RunConfig that saves checkpoints.

    Returns:
      The steps at which this was looked at, and the rates there.
    """
    schedule = keras.optimizers.schedules.ExponentialDecay(0.125, 1, 1.0)
    trained = ge.Estimator(
        fakes.classifier_fn,
        modules={
            "network": fakes.network,
            "optimizer": lambda: keras.optimizers.SGD(schedule),
        },
        config=config,
        params={},
    )
    recorder, never = fakes.Recorder(20), {"min_delta": 1.0, "max_evaluations": 1}
    halves = ge.ReduceOnPlateau("accuracy", factor=0.5, higher_is_better=True, **never)
    rule = ge.StopIfNoIncrease("accuracy", min_delta=1.0, max_evaluations=3)
    input_fn = fakes.make_input_fn(*fakes.classification_data(960), batch_size=16)
    ge.train_and_evaluate(
        trained,
        ge.TrainSpec(input_fn, max_epochs=100, hooks=[recorder, halves]),
        ge.EvalSpec(input_fn, throttle_secs=0, early_stopping=rule),
    )
    rates = [values["learning_rate"] for values in recorder.values]
    return {"steps": recorder.steps, "rates": rates}


def on_servers(folder, strategy):
    """Trains with parameter servers; for the chief, alone in its process.

    Args:
      folder: folder of the trainings.
      strategy: function that makes the strategy.

    Returns:
      By case the outcome of a training, and that of one that was broken off.
    """
    global X
    # Equal examples, as workers take them in any order.
    X = np.ones_like(X)
    evaluation_along._LOOK_SECS = 0.0
    where = {"execution": "parameter_server", "train_distribute": strategy}
    found = {}
    for case in ON_SERVERS:
        whole, killed = folder / f"whole-{case}", folder / f"killed-{case}"
        options = {"beside": case in TOGETHER_BESIDE, **where}
        train(whole, case, **options)
        train(killed, case, kill=break_off, **options)
        train(killed, case, **options)
        found[case] = [outcome(whole), outcome(killed)]
    return found


def _rounded(values):
    return tf.nest.map_structure(
        lambda value: round(value, 4) if isinstance(value, float) else value, values
    )
