"""Another input, and exporters along a training, with parameter servers.

    python -m tests.scripts.servers_inputs out_dir

The chief trains on one input and then on others, by each `changed_input`, and exports
along a training; what came of each is in out_dir/found.json.
"""

import functools
import json
import pathlib
import sys

import keras
import tensorflow as tf

import pipeline as ge
from pipeline.strategy import parameter_server
from tests import fakes
from tests.scripts import forked_servers

OUT = pathlib.Path(sys.argv[1])
ROW = functools.partial(
    parameter_server.parameter_server, start_timeout_secs=120, resume_input=True
)


def numbers(start):
    """40 batches of a number each, once."""
    return lambda: tf.data.Dataset.range(start, start + 40).batch(1)


def model_fn(features, labels, mode, network, optimizer):
    rows = tf.cast(features, tf.float32)
    outputs = network(rows[:, tf.newaxis])
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions=outputs)
    return ge.EstimatorSpec(
        mode,
        loss=tf.square(outputs[:, 0]),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
        metrics={
            "ids": ge.metric(keras.metrics.Sum, rows),
            "examples": ge.metric(keras.metrics.Sum, tf.ones_like(rows)),
        },
    )


def estimator(name, **options):
    return ge.Estimator(
        model_fn,
        modules={
            "network": lambda: keras.layers.Dense(1),
            "optimizer": lambda: keras.optimizers.SGD(0.0),
        },
        config=ge.RunConfig(
            model_dir=str(OUT / name),
            execution="parameter_server",
            train_distribute=ROW,
            **options,
        ),
    )


def read(name, start, *, steps=None, **options):
    """What a training reads: the sum and the number of its examples, or its error."""
    recorder = fakes.Recorder()
    try:
        estimator(name, **options).train(numbers(start), steps=steps, hooks=[recorder])
    except ValueError as error:
        return str(error)
    totals = {key: 0.0 for key in ("ids", "examples")}
    for values in recorder.values:
        totals = {key: total + float(values[key]) for key, total in totals.items()}
    return list(totals.values())


def exported(name):
    """The steps of evaluations and the folders of exporters along a training."""
    made = [ge.LatestExporter(), ge.BestExporter(), ge.FinalExporter()]
    metrics, _ = ge.train_and_evaluate(
        estimator(name, save_checkpoints_steps=10),
        ge.TrainSpec(numbers(0), max_steps=30),
        ge.EvalSpec(numbers(100), exporters=made, throttle_secs=0),
    )
    folders = (OUT / name / "export").glob("*/*/saved_model.pb")
    counts = {}
    for path in folders:
        folder = path.parts[-3]
        counts[folder] = counts.get(folder, 0) + 1
    return {"step": int(metrics["global_step"]), "exports": counts}


def run_task():
    """The chief's trainings, or serving it."""
    if ge.RunConfig().cluster.serves:
        estimator("served").train(numbers(0))
        return
    found = {}
    for way in ("auto", "skip", "error"):
        first = read(way, 0, steps=4)
        found[way] = [first, read(way, 100, changed_input=way)]
    found["same"] = [read("same", 0, steps=4), read("same", 0, changed_input="error")]
    found["exported"] = exported("exported")
    (OUT / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    forked_servers.run(OUT, run_task)
