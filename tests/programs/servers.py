"""Trains on parameter servers, in each task of the cluster.

    servers.py train MODEL_DIR [key=value ...]   one training
    servers.py acts FOLDER                       several, one after the other
    servers.py more FOLDER                       others

The chief prints lines `NAME JSON`, and in `train` `STEP n` after each step. Keys are fields of
RunConfig, arguments of `parameter_server`, and:

    steps   max_steps
    sleep   seconds that a hook sleeps after each step
    slow    seconds that each step takes on a worker
    fail    step at which a hook raises
    lost    index of the worker that gets the signal `signal` before it serves
    connect_secs  seconds in which TensorFlow must connect
    plain   whether to call `main` without `ge.run`
"""

import ast
import functools
import json
import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge
from gin_estimator.cluster import connect
from gin_estimator.models import Embedding

ROWS, BATCH = 640, 16
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(ROWS, 8)).astype("float32"), RNG.integers(3, size=ROWS)
IDS = np.arange(ROWS)
ARGUMENTS = ("start_timeout_secs", "lost_after_secs", "allow_lost_updates")


def say(name, value):
    print(name, json.dumps(value), flush=True)


def make_network():
    layers = keras.layers
    return keras.Sequential([layers.Dense(16, "tanh"), layers.Dropout(0.1), layers.Dense(3)])


def make_adam():
    return keras.optimizers.Adam(0.01)


def slice_data(rows):
    return tf.data.Dataset.from_tensor_slices(({"x": X[rows], "id": IDS[rows]}, Y[rows]))


def endless(input_context):
    number, index = input_context.num_input_pipelines, input_context.input_pipeline_id
    return slice_data(slice(index, None, number)).shuffle(100).repeat().batch(BATCH)


def unequal(input_context):
    """30 batches for worker 0, and 10 for worker 1."""
    rows = slice(0, 480) if input_context.input_pipeline_id == 0 else slice(480, ROWS)
    return slice_data(rows).batch(BATCH)


def shared():
    """40 batches, in an order that nobody seeds."""
    return slice_data(slice(None)).shuffle(ROWS).batch(BATCH)


def python_data():
    return tf.data.Dataset.from_generator(lambda: iter([X[:4]]), output_types=tf.float32)


def other_structures(input_context):
    data = slice_data(slice(0, 32)).batch(BATCH)
    return data if input_context.input_pipeline_id else data.map(lambda x, y: x)


def model_fn(features, labels, mode, network, optimizer, second, params):
    logits = network(features["x"], training=mode == ge.ModeKeys.TRAIN)
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions={"logits": logits, "id": features["id"]})
    if mode == ge.ModeKeys.TRAIN and params["slow"]:
        end = tf.timestamp() + params["slow"]
        [waited] = tf.while_loop(lambda _: tf.timestamp() < end, lambda i: [i + 1], [0])
        with tf.control_dependencies([waited]):
            logits = tf.identity(logits)
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=[
            ge.TrainOp(optimizer, network.layers[0].trainable_variables, clip_norm=5.0),
            ge.TrainOp(second, network.layers[-1].trainable_variables, every=2),
        ],
        metrics={
            "accuracy": ge.metric(keras.metrics.SparseCategoricalAccuracy, labels, logits),
            "ids": ge.metric(keras.metrics.Sum, tf.cast(features["id"], tf.float32)),
        },
    )


def make_table():
    words = tf.constant([str(i) for i in range(10)])
    values = tf.lookup.KeyValueTensorInitializer(words, tf.range(10, dtype=tf.int64))
    return tf.lookup.StaticHashTable(values, 3)


def words_fn():
    words = [str(i % 12) for i in range(64)]
    return tf.data.Dataset.from_tensor_slices((words, [i % 3 for i in range(64)])).batch(4)


def table_fn(features, labels, mode, table, dense, optimizer):
    ids = table.lookup(features)
    logits = dense(tf.one_hot(ids, 10))
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=ge.TrainOp(optimizer, dense.trainable_variables),
        metrics={"ids": ge.metric(keras.metrics.Sum, tf.cast(ids, tf.float32))},
    )


def constant_fn(features, labels, mode, vector, optimizer):
    loss = tf.reduce_sum(vector) + 0 * tf.reduce_sum(features["x"])
    return ge.EstimatorSpec(mode, loss=loss, train_op=ge.TrainOp(optimizer, [vector]))


TABLE_IDS = tf.range(0, 1000, 60)


def make_tables():
    """Returns two tables of 32,000 bytes."""
    return [Embedding(1000, 8, "zeros"), Embedding(1000, 8, "zeros", name="other")]


def rows_fn(features, labels, mode, tables, optimizer, second):
    loss = sum(tf.reduce_sum(table(TABLE_IDS)) for table in tables)
    loss += 0 * tf.reduce_sum(features["x"])
    if mode == ge.ModeKeys.EVAL:
        return ge.EstimatorSpec(mode, loss=loss)
    train_op = [
        ge.TrainOp(optimizer, tables[0].trainable_variables),
        ge.TrainOp(second, tables[1].trainable_variables),
    ]
    return ge.EstimatorSpec(mode, loss=loss, train_op=train_op)


def make_rows(model_dir, **config):
    """Returns the Estimator of two tables, of which each step moves the same rows."""
    modules = {
        "tables": make_tables,
        "optimizer": lambda: keras.optimizers.Adagrad(1.0, initial_accumulator_value=1.0),
        "second": lambda: keras.optimizers.SGD(1.0),
    }
    config = ge.RunConfig(str(model_dir), save_checkpoints_steps=1000, **config)
    return ge.Estimator(rows_fn, modules=modules, config=config)


class PrintSteps(ge.Hook):
    every_steps = 1

    def __init__(self, sleep, fail):
        self.sleep, self.fail = sleep, fail

    def after_step(self, run):
        print("STEP", run.step, flush=True)
        time.sleep(self.sleep)
        if run.step == self.fail:
            raise RuntimeError("the user's own error")


class Sums(ge.Hook):
    """Keeps the sums of all steps of a run."""

    def end(self, run):
        report = run.report
        self.values = {"steps": report.num_steps, "examples": report.num_examples}
        self.values |= {key: value for key, value in report.metrics.items() if key != "accuracy"}


class Stops(ge.Hook):
    """Keeps the steps at which the chief has all values."""

    def __init__(self):
        self.steps = [0]

    def after_loop(self, run):
        self.steps.append(run.step)


class At(ge.Hook):
    """Says something after a step."""

    def __init__(self, step, text):
        self.every_steps, self._text = step, text

    def after_step(self, run):
        if run.step == self.every_steps:
            say(self._text, run.step)


def make_estimator(model_dir, *, slow=0, optimizer=make_adam, **fields):
    fields = {"save_checkpoints_steps": 1000, "log_step_count_steps": None, **fields}
    modules = {"network": make_network, "optimizer": optimizer, "second": make_adam}
    config = ge.RunConfig(str(model_dir), tf_random_seed=1, **fields)
    return ge.Estimator(model_fn, modules=modules, config=config, params={"slow": slow})


def updates(estimator):
    names = ("optimizer/iteration", "second/iteration")
    return [int(estimator.get_variable_value(name)) for name in names]


def train(model_dir, *pairs):
    options = dict(pair.split("=") for pair in pairs)
    options = {key: ast.literal_eval(value) for key, value in options.items()}
    options.pop("plain", None)
    if options.pop("lost", None) == ge.RunConfig(model_dir, execution="parameter_server").task_id:
        number = options.pop("signal")
        tf.distribute.Server = lambda *_, **__: os.kill(os.getpid(), number)
    options.pop("signal", None)
    connect.CONNECT_SECS = options.pop("connect_secs", connect.CONNECT_SECS)
    steps, sleep, fail = (options.pop(key, None) for key in ("steps", "sleep", "fail"))
    timeouts = {key: options.pop(key) for key in ARGUMENTS if key in options}
    if timeouts:
        options["train_distribute"] = functools.partial(ge.parameter_server, **timeouts)
    estimator = make_estimator(model_dir, execution="parameter_server", **options)
    hooks = [sums := Sums()] + ([] if sleep is None else [PrintSteps(sleep, fail)])
    train_spec = ge.TrainSpec(endless, steps, hooks)
    result = ge.train_and_evaluate(estimator, train_spec, ge.EvalSpec(shared))
    if result is not None:
        say("RESULT", {**result[0], **sums.values, "updates": updates(estimator)})
    print("DONE", flush=True)


def serves(folder):
    """Returns whether this task is not the chief, after it has served the chief."""
    if ge.RunConfig(folder, execution="parameter_server").task_type == "chief":
        return False
    make_estimator(folder, execution="parameter_server").train(endless)
    print("SERVED", flush=True)
    return True


def train_parts(folder, name, input_fn, *parts, **options):
    """Trains one model in parts, each a last step and maybe a hook, and says their sums."""
    values = []
    for max_steps, *hooks in parts:
        model_dir = os.path.join(folder, name)
        estimator = make_estimator(model_dir, execution="parameter_server", **options)
        estimator.train(input_fn, max_steps=max_steps, hooks=[sums := Sums(), *hooks])
        values.append(sums.values)
    say(name, {"parts": values, "updates": updates(estimator)})
    return estimator


def acts(folder):
    """Trains several models one after the other, since a process connects once."""
    if serves(folder):
        return
    estimator = train_parts(folder, "counts", endless, [60], [100])
    say("evaluated", estimator.evaluate(shared))
    say("predicted", sum(p["id"].item() for p in estimator.predict(shared)))

    def refused(name, input_fn=endless, **options):
        try:
            train_parts(folder, name, input_fn, [2], **options)
        except ge.UserError as error:
            say(name, str(error))

    refused("python", python_data)
    refused("structures", other_structures)
    refused("lost_updates", optimizer=lambda: keras.optimizers.Lion(0.01))

    def train_table(name, fn, **modules):
        config = ge.RunConfig(os.path.join(folder, name), execution="parameter_server")
        modules = {"dense": lambda: keras.layers.Dense(3), "optimizer": make_adam, **modules}
        estimator = ge.Estimator(fn, modules=modules, config=config)
        try:
            estimator.train(words_fn, hooks=[sums := Sums()])
            say(name, sums.values)
        except ge.UserError as error:
            say(name, str(error))

    config = ge.RunConfig(os.path.join(folder, "constant"), execution="parameter_server")
    modules = {
        "vector": lambda: tf.Variable(tf.zeros([20_000, 8])),
        "optimizer": lambda: keras.optimizers.SGD(1.0),
    }
    estimator = ge.Estimator(constant_fn, modules=modules, config=config)
    estimator.train(endless, max_steps=200)
    value = estimator.get_variable_value("vector")
    say("constant", [float(value.min()), float(value.max())])

    stops = Stops()
    for steps, shards in ((100, 3), (200, 2)):
        cut = functools.partial(ge.parameter_server, min_shard_bytes=64, max_shards=shards)
        average = ge.StochasticWeightAverage(0)
        estimator = make_rows(os.path.join(folder, "rows"), train_distribute=cut, average=average)
        estimator.train(endless, max_steps=steps, hooks=[stops])
    say("stops", stops.steps)
    say("averaged", estimator.evaluate(shared, weights="average"))
    say("rows", {"parts": len(estimator.state.modules["tables"][0].trainable_variables)})

    train_table("table", table_fn, table=make_table)
    captured = make_table()

    def captured_fn(features, labels, mode, dense, optimizer):
        return table_fn(features, labels, mode, captured, dense, optimizer)

    train_table("captured", captured_fn)


def kills(folder):
    """Trains with workers that are killed, and on data that end."""
    if serves(folder):
        return
    train = functools.partial(train_parts, folder)
    train("killed", endless, [300, At(50, "kill")], slow=0.005)
    train("unequal", unequal, [None])
    train("resumed", shared, [15], [None], [None])
    train("other", shared, [5])
    train("other", unequal, [None])
    train("replaced", unequal, [None, At(5, "kill")], slow=0.05, steps_per_loop=1)


class Wants(ge.Hook):
    every_steps = 1
    wants_tensors = True


def masks_fn(features, labels, mode, vector, dropout, optimizer):
    """Moves each element of the vector by -2 or 0 in each step."""
    loss = tf.reduce_sum(dropout(vector + 1, training=True)) + 0 * tf.reduce_sum(features["x"])
    return ge.EstimatorSpec(mode, loss=loss, train_op=ge.TrainOp(optimizer, [vector]))


def more(folder):
    if serves(folder):
        return
    try:
        estimator = make_estimator(f"{folder}/wants", execution="parameter_server")
        estimator.train(endless, max_steps=1, hooks=[Wants()])
    except ge.UserError as error:
        say("wants", str(error))
    try:
        options = {"execution": "parameter_server", "on_nan": "restore"}
        make_estimator(f"{folder}/restores", **options).train(endless, max_steps=1)
    except ge.UserError as error:
        say("restores", str(error))
    modules = {
        "vector": lambda: tf.Variable(tf.zeros([4000])),
        "dropout": lambda: keras.layers.Dropout(0.5, seed=1),
        "optimizer": lambda: keras.optimizers.SGD(1.0),
    }
    config = ge.RunConfig(f"{folder}/masks", execution="parameter_server")
    estimator = ge.Estimator(masks_fn, modules=modules, config=config)
    for max_steps in (100, 200):
        estimator.train(endless, max_steps=max_steps)
    value = estimator.get_variable_value("vector")
    say("masks", [float(value.mean()), float(value.var())])


def main():
    globals()[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    main() if "plain=True" in sys.argv else ge.run(main)
