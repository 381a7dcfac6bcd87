"""A cluster with parameter servers in processes, for parameter_server_test.py.

    python -m tests.scripts.parameter_servers out_dir

Workers and ps serve. The chief acts: it trains one model after the other and writes
what came of each to out_dir/<act>.json; it kills the tasks of out_dir/pids.json itself,
in the middle of training. The last act ends with a lost parameter server.

The processes are forked, so that TensorFlow is imported once. The parent starts a
worker that was killed again, and writes exit codes to out_dir/codes.json.
"""

import functools
import json
import os
import pathlib
import signal
import sys
import threading

import keras
import numpy as np
import tensorflow as tf

import models
import pipeline as ge
from pipeline import PeerLostError
from pipeline.cluster import server
from pipeline.cluster.tf_config import Cluster
from pipeline.strategy import parameter_server
from tests import fakes, kinds, row_tables, shown, steered, tabled_training
from tests.scripts import forked_servers

OUT = pathlib.Path(sys.argv[1])
ROW = functools.partial(
    parameter_server.parameter_server,
    min_shard_bytes=1000,
    steps_per_closure=5,
    start_timeout_secs=120,
)
ROWS, BATCH = 960, 16
IDS = np.arange(ROWS)
X, Y = fakes.classification_data(ROWS)
VOCABULARY = 200
TABLE = "table/embedding/embeddings"


def config(name, *, local=False, **options):
    """A RunConfig of one act; `local` is on the chief alone."""
    where = {"cluster": Cluster()} if local else {"train_distribute": ROW}
    defaults = {
        "tf_random_seed": 1,
        "save_summary_steps": None,
        "log_step_count_steps": None,
        "save_checkpoints_steps": 1000,
    }
    execution = "single_host" if local else "parameter_server"
    return ge.RunConfig(
        model_dir=str(OUT / name), execution=execution, **where, **(defaults | options)
    )


def report(name, **values):
    """Writes what came of an act."""
    print(f"act {name}: {values}", flush=True)
    (OUT / "being_written").write_text(json.dumps(values))
    os.replace(OUT / "being_written", OUT / f"{name}.json")


def kill(task):
    """kill -9 of another task."""
    os.kill(forked_servers.pid_of(OUT, task), signal.SIGKILL)


def kill_soon(task):
    """The same in the middle of the steps that follow."""
    threading.Timer(0.03, kill, [task]).start()


class At(ge.Hook):
    """Calls `fn` once at or after a step."""

    def __init__(self, step, fn):
        self._step, self._fn = step, fn

    def next_step(self, step):
        return self._step if step < self._step else None

    def after_step(self, run):
        self._fn()


def rows_fn(mode, input_context):
    """Endless, a part of the rows for each worker."""
    del mode
    data = tf.data.Dataset.from_tensor_slices(({"x": X, "id": IDS}, Y)).repeat()
    data = data.shard(
        input_context.num_input_pipelines, input_context.input_pipeline_id
    )
    return data.shuffle(100, seed=1).batch(BATCH)


def unequal_rows_fn(mode, input_context):
    """Once: 500 of the rows for worker 0, and 460 for worker 1."""
    del mode
    mine = slice(0, 500) if input_context.input_pipeline_id == 0 else slice(500, ROWS)
    rows = {"x": X[mine], "id": IDS[mine]}, Y[mine]
    return tf.data.Dataset.from_tensor_slices(rows).batch(BATCH)


def rows_left_fn(mode, input_context, first_batch):
    """Those of `unequal_rows_fn`, of which it leaves out what was read."""
    return unequal_rows_fn(mode, input_context).skip(first_batch)


def unsharded_rows_fn():
    """Once, without an input_context, in an order that nobody seeds."""
    data = tf.data.Dataset.from_tensor_slices(({"x": X, "id": IDS}, Y))
    return data.shuffle(ROWS).batch(BATCH)


def model_fn(features, labels, mode, network, head, optimizer, head_optimizer, step):
    """Two optimizers, of which one updates every second step, after the other."""
    hidden = network(features["x"], training=mode == ge.ModeKeys.TRAIN)
    logits = head(hidden)
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
        train_op=[
            ge.TrainOp(optimizer, network.trainable_variables, clip_norm=5.0),
            ge.TrainOp(
                head_optimizer, head.trainable_variables, every=2, sequential=True
            ),
        ],
        metrics={
            "accuracy": ge.metric(
                keras.metrics.SparseCategoricalAccuracy, labels, logits
            ),
            "examples": ge.metric(keras.metrics.Sum, tf.ones_like(labels, tf.float64)),
            "ids": ge.metric(keras.metrics.Sum, tf.cast(features["id"], tf.float32)),
            "steps": ge.metric(keras.metrics.Sum, tf.cast(step, tf.float32)),
            "distinct": ge.host_metric(lambda ids: len(set(ids)), features["id"]),
        },
        tensors={"read": features["id"]},
        summaries={
            "values": ge.histogram(features["id"]),
            "texts": ge.text(tf.strings.as_string(features["id"])),
            "largest": ge.image(
                tf.cast(tf.reshape(features["id"] // 4, [-1, 1, 1, 1]), tf.uint8),
                highest=features["id"],
            ),
        },
    )


def estimator(name, *, head_rate=0.01, **options):
    """Of `model_fn`, with BatchNormalization and dropout in it."""
    layers = keras.layers
    return ge.Estimator(
        model_fn,
        modules={
            "network": lambda: keras.Sequential(
                [
                    layers.Dense(8, "tanh"),
                    layers.BatchNormalization(momentum=0.9),
                    layers.Dropout(0.1),
                ]
            ),
            "head": lambda: layers.Dense(fakes.NUM_CLASSES),
            "optimizer": fakes.adam,
            "head_optimizer": lambda: fakes.adam(learning_rate=head_rate),
        },
        config=config(name, **options),
    )


class Recorder(fakes.Recorder):
    """Keeps the ids of the examples of the last step, too."""

    wants_tensors = True

    def after_step(self, run):
        super().after_step(run)
        self.values[-1]["read"] = run.report.tensors["read"].tolist()


def updates(trained):
    """Both optimizers' counts in the latest checkpoint."""
    names = ("optimizer/iteration", "head_optimizer/iteration")
    return [int(trained.get_variable_value(name)) for name in names]


def counts():
    """Steps, examples and updates, and the loss; then on from the checkpoint."""
    trained = estimator("counts", save_summary_steps=30, log_norms=True)
    recorder = Recorder(50)
    trained.train(rows_fn, max_steps=150, hooks=[recorder])
    again = estimator("counts", head_rate=0.005)
    after = fakes.Recorder(50)
    again.train(rows_fn, steps=50, hooks=[after])
    report(
        "counts",
        steps=recorder.steps,
        windows=recorder.values,
        resumed=after.steps,
        resumed_examples=[window["examples"] for window in after.values],
        global_step=again.global_step,
        updates=updates(again),
        drawn=again.get_variable_value("network/dropout/seed_generator_state").tolist(),
        rates=[
            float(again.get_variable_value(f"{name}/learning_rate"))
            for name in ("optimizer", "head_optimizer")
        ],
        evaluated=again.evaluate(unsharded_rows_fn),
        trained_shown=shown.read(OUT / "counts"),
        evaluated_shown=shown.read(OUT / "counts" / "eval"),
        norms=shown.norms(OUT / "counts"),
    )


def worker_dies():
    """Kills a worker; the parent starts it again."""
    trained, recorder = estimator("worker_dies"), fakes.Recorder(300)
    trained.train(
        rows_fn, max_steps=300, hooks=[recorder, At(50, lambda: kill("worker 1"))]
    )
    report(
        "worker_dies",
        examples=recorder.values[0]["examples"],
        global_step=trained.global_step,
        updates=updates(trained),
    )


def finite(name):
    """An Estimator for data that end: few steps are handed out beyond."""
    return estimator(name, save_checkpoints_steps=100)


def unequal():
    """Trains to the end of the data, of which each worker has another part."""
    trained, recorder = finite("unequal"), fakes.Recorder()
    trained.train(unequal_rows_fn, hooks=[recorder])
    report(
        "unequal",
        values=recorder.values[-1],
        global_step=trained.global_step,
        updates=updates(trained),
    )


def in_parts(name, input_fn, *parts):
    """Trains in several runs, each to a step or to the data's end, with a hook."""
    values = []
    for max_steps, *hooks in parts:
        trained, recorder = finite(name), fakes.Recorder()
        trained.train(input_fn, max_steps=max_steps, hooks=[recorder, *hooks])
        values.append(recorder.values[-1])
    report(
        name, parts=values, global_step=trained.global_step, updates=updates(trained)
    )


def embedding_fn(features, labels, mode, table, head, optimizer):
    """Which half of its ids has the larger sum of hidden numbers."""
    logits = head(tf.reshape(table(features), [-1, 3 * 4]))
    trained = [*table.trainable_variables, *head.trainable_variables]
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
        train_op=ge.TrainOp(optimizer, trained),
        metrics={
            "accuracy": ge.metric(
                keras.metrics.SparseCategoricalAccuracy, labels, logits
            )
        },
    )


def ids_fn(mode):
    """Triples of ids, endless in TRAIN."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, size=(2000, 3))
    labels = (rng.normal(size=VOCABULARY)[ids].sum(1) > 0).astype(np.int64)
    data = tf.data.Dataset.from_tensor_slices((ids, labels))
    if mode == ge.ModeKeys.TRAIN:
        data = data.shuffle(2000, seed=1).repeat()
    return data.batch(64)


def embedding():
    """Trains a table cut in two, goes on with it whole, and cut again; averages it."""
    found = {}
    averages, tables = [], []

    def table():
        tables.append(keras.Sequential([models.Embedding(VOCABULARY, 4)]))
        return tables[-1]

    for name, steps, local in (("cut", 150, False), ("whole", 20, True)) * 2:
        trained = ge.Estimator(
            embedding_fn,
            modules={
                "table": table,
                "head": lambda: keras.layers.Dense(2),
                "optimizer": lambda: keras.optimizers.Adam(0.01),
            },
            config=config(
                "embedding",
                local=local,
                average=ge.ExponentialAverage(0.98),
                save_summary_steps=150,
                log_norms=True,
            ),
        )
        trained.train(ids_fn, steps=steps)
        metrics = trained.evaluate(ids_fn)
        found.setdefault(name, []).append(metrics["accuracy"])
        values = [trained.get_variable_value(n) for n in (TABLE, f"driver/ema/{TABLE}")]
        averages.append(
            {
                "steps": int(trained.get_variable_value("driver/ema_steps")),
                "distance": float(np.abs(values[0] - values[1]).max()),
                "accuracy": metrics["ema/accuracy"],
                "largest": float(np.abs(values[0]).max()),
            }
        )
    names = [name for name in trained.get_variable_names() if "/ema" not in name]
    shapes = {name: trained.get_variable_value(name).shape for name in names}
    report(
        "embedding",
        accuracy=found,
        step=trained.global_step,
        shapes=shapes,
        averages=averages,
        parts=[len(each.trainable_variables) for each in tables],
        norms=shown.norms(OUT / "embedding"),
    )


def rows():
    """Trains tables that are cut, one step after the other."""
    report("rows", **row_tables.train(config("rows")))


def networks():
    """Trains networks of tables, whose wide part is cut."""
    trained = tabled_training.train(config("tables"))
    report("tables", **trained)


def transformer():
    """Trains a transformer, and a network by DP-SGD, one step after the other."""
    report("transformer", **kinds.train(config("transformer")))


def server_dies():
    """Kills a parameter server."""
    trained = estimator("server_dies", save_checkpoints_steps=20)
    try:
        trained.train(rows_fn, hooks=[At(50, lambda: kill("ps 1"))])
    except PeerLostError as error:
        report("server_dies", error=str(error))
        sys.exit(75)


def run_task():
    """The chief's acts, or serving it."""
    if ge.RunConfig().task_type != "chief":
        spec = ge.TrainSpec(rows_fn), ge.EvalSpec(rows_fn)
        report_of = ge.train_and_evaluate(estimator("nothing"), *spec)
        sys.exit(0 if report_of is None else 1)
    counts()
    worker_dies()
    embedding()
    rows()
    networks()
    transformer()
    halved = steered.halved(config("steered", save_checkpoints_steps=20))
    report("steered", **halved)
    tasks = ge.RunConfig().cluster.training_tasks
    server.wait_for({"worker 1": tasks["worker 1"]}, timeout_secs=120)
    report("killed", **steered.on_servers(OUT, ROW))
    unequal()
    in_parts("resumed", unsharded_rows_fn, [25], [None], [None])
    worker_killed = At(20, lambda: kill_soon("worker 1"))
    in_parts("replaced", rows_left_fn, [10], [None, worker_killed])
    server_dies()


if __name__ == "__main__":
    forked_servers.run(OUT, run_task, ps=2, replaced="worker 1")
