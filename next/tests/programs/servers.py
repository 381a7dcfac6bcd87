"""Trains on parameter servers: `servers.py MODEL_DIR MAX_STEPS [key=value ...]`.

Each task runs it. The chief prints `STEP n` after each step, and lines `NAME JSON`. Keys are
fields of RunConfig, arguments of `parameter_server`, and:

    data    'endless', 'unequal' (30 and 10 batches) or 'plain' (40, without input_context)
    sleep   seconds that a hook sleeps after each step
    slow    seconds that each step takes on a worker
    fail    step at which a hook raises
    optimizer  name in keras.optimizers
    plain   whether to call `main` without `ge.run`
"""

import ast
import functools
import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

options = dict(each.split("=") for each in sys.argv[3:])
options = {key: ast.literal_eval(value) for key, value in options.items()}
ROWS, BATCH = 640, 16
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(ROWS, 8)).astype("float32"), RNG.integers(3, size=ROWS)
IDS = np.arange(ROWS)


def say(name, value):
    print(name, json.dumps(value), flush=True)


def make_network():
    layers = keras.layers
    return keras.Sequential([layers.Dense(16, "tanh"), layers.Dropout(0.1), layers.Dense(3)])


def make_optimizer(name="Adam"):
    return getattr(keras.optimizers, name)(0.01)


def slice_data(rows):
    return tf.data.Dataset.from_tensor_slices(({"x": X[rows], "id": IDS[rows]}, Y[rows]))


def endless(input_context):
    number, index = input_context.num_input_pipelines, input_context.input_pipeline_id
    return slice_data(slice(index, None, number)).shuffle(100).repeat().batch(BATCH)


def unequal(input_context):
    rows = slice(0, 480) if input_context.input_pipeline_id == 0 else slice(480, ROWS)
    return slice_data(rows).batch(BATCH)


def plain():
    return slice_data(slice(None)).shuffle(ROWS).batch(BATCH)


DATA = {"endless": endless, "unequal": unequal, "plain": plain}


def model_fn(features, labels, mode, network, optimizer, second):
    logits = network(features["x"], training=mode == ge.ModeKeys.TRAIN)
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions={"logits": logits, "id": features["id"]})
    if mode == ge.ModeKeys.TRAIN and SLOW:
        until = tf.timestamp() + SLOW
        waited = tf.while_loop(
            lambda _: tf.timestamp() < until, lambda i: [i + 1], [tf.constant(0)]
        )
        with tf.control_dependencies(waited):
            logits = tf.identity(logits)
    first, last = network.layers[0], network.layers[-1]
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True),
        train_op=[
            ge.TrainOp(optimizer, first.trainable_variables, clip_norm=5.0),
            ge.TrainOp(second, last.trainable_variables, every=2),
        ],
        metrics={
            "accuracy": ge.metric(keras.metrics.SparseCategoricalAccuracy, labels, logits),
            "examples": ge.metric(keras.metrics.Sum, tf.ones_like(labels, tf.float32)),
            "ids": ge.metric(keras.metrics.Sum, tf.cast(features["id"], tf.float32)),
        },
    )


class PrintSteps(ge.Hook):
    every_steps = 1

    def after_step(self, run):
        print("STEP", run.step, flush=True)
        time.sleep(SLEEP)
        if run.step == FAIL:
            raise RuntimeError("the user's own error")


class Sums(ge.Hook):
    """Keeps the sums of all steps of a run."""

    def end(self, run):
        report = run.report
        self.values = {"steps": report.num_steps, "examples": report.num_examples}
        self.values |= {key: value for key, value in report.metrics.items() if key != "accuracy"}


def make_estimator(model_dir, **fields):
    fields = {"save_checkpoints_steps": 1000, "log_step_count_steps": None, **fields}
    fields.setdefault("execution", "parameter_server")
    return ge.Estimator(
        model_fn,
        modules={
            "network": make_network,
            "optimizer": functools.partial(make_optimizer, OPTIMIZER),
            "second": make_optimizer,
        },
        config=ge.RunConfig(model_dir, tf_random_seed=1, **fields),
    )


def main():
    arguments = ("start_timeout_secs", "lost_after_secs", "allow_lost_updates")
    timeouts = {key: options.pop(key) for key in arguments if key in options}
    if timeouts:
        options["train_distribute"] = functools.partial(ge.parameter_server, **timeouts)
    estimator = make_estimator(sys.argv[1], **options)
    sums = Sums()
    hooks = [sums, PrintSteps()] if SLEEP is not None else [sums]
    max_steps = int(sys.argv[2]) or None
    result = ge.train_and_evaluate(
        estimator, ge.TrainSpec(DATA[KIND], max_steps, hooks), ge.EvalSpec(plain, name="x")
    )
    if estimator.config.task_type == "chief":
        say("RESULT", result[0])
        say("SUMS", sums.values)
        updates = [
            int(estimator.get_variable_value(f"{n}/iteration")) for n in ("optimizer", "second")
        ]
        say("UPDATES", updates)
    print("DONE", flush=True)


SLEEP, SLOW = options.pop("sleep", None), options.pop("slow", 0)
FAIL, KIND = options.pop("fail", None), options.pop("data", "endless")
OPTIMIZER, PLAIN = options.pop("optimizer", "Adam"), options.pop("plain", False)

if __name__ == "__main__":
    main() if PLAIN else ge.run(main)
