"""Small models, data and hooks that several test files use; written by hand.

    x, y = classification_data()
    estimator = make_estimator(model_dir, network=lambda: network(l2=0.01))
    estimator.train(make_input_fn(x, y, batch_size=32), max_steps=10)

`classifier_fn` reads its options from `params`, so that one function serves all cases.
"""

import re
import socket

import keras
import numpy as np
import tensorflow as tf

import pipeline as ge

NUM_CLASSES = 3


def classification_data(rows=1000, width=6, seed=0):
    """Returns float32 `[rows, width]`, and int64 labels `[rows]` by a linear map."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, width)).astype(np.float32)
    y = (x @ rng.normal(size=(width, NUM_CLASSES))).argmax(1)
    return x, y


def make_input_fn(x, y=None, *, batch_size, per_replica=False, change=None):
    """Returns an input_fn over the rows of arrays, in order, once.

    Args:
      x: features, `[rows, ...]`.
      y: labels, `[rows, ...]`; None for features alone.
      batch_size: rows of a global batch.
      per_replica: whether the input_fn takes `input_context` and yields the batches of
        replicas; otherwise it yields global batches, which the driver splits.
      change: function of the unbatched dataset that returns another, such as repeated.
    """

    def rows():
        dataset = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
        return dataset if change is None else change(dataset)

    def input_fn():
        return rows().batch(batch_size)

    def input_fn_per_replica(mode, input_context):
        del mode
        batches = rows().batch(input_context.get_per_replica_batch_size(batch_size))
        pipelines = input_context.num_input_pipelines
        # Sharded after batching: the batches of a step make up the same global batch.
        return batches.shard(pipelines, input_context.input_pipeline_id)

    return input_fn_per_replica if per_replica else input_fn


def network(*, units=8, l2=0.0, dropout=0.0, batch_norm=False, synchronized=False):
    """Returns a classifier of layers without input shape, which build on first call."""
    layers = [
        keras.layers.Dense(
            units, activation="tanh", kernel_regularizer=keras.regularizers.L2(l2)
        )
    ]
    if batch_norm:
        layers.append(
            keras.layers.BatchNormalization(momentum=0.9, synchronized=synchronized)
        )
    if dropout:
        layers.append(keras.layers.Dropout(dropout))
    return keras.Sequential([*layers, keras.layers.Dense(NUM_CLASSES)])


def adam(**options):
    """Returns Adam, its epsilon too large to blow up the rounding of tiny gradients."""
    return keras.optimizers.Adam(**{"learning_rate": 0.01, "epsilon": 1e-3, **options})


def classifier_fn(features, labels, mode, network, optimizer, params):
    """Classifies; `params` may hold `clip_norm` and `on_call`, called at each trace."""
    params.get("on_call", lambda mode: None)(mode)
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    predictions = {"logits": logits, "label": tf.argmax(logits, 1)}
    if mode == ge.ModeKeys.PREDICT:
        return ge.EstimatorSpec(mode, predictions=predictions)
    return ge.EstimatorSpec(
        mode,
        loss=keras.losses.sparse_categorical_crossentropy(labels, logits, True),
        regularization_losses=network.losses,
        train_op=ge.TrainOp(
            optimizer, network.trainable_variables, clip_norm=params.get("clip_norm")
        ),
        metrics={
            "accuracy": ge.metric(
                keras.metrics.SparseCategoricalAccuracy, labels, logits
            ),
            "examples": ge.metric(keras.metrics.Sum, tf.ones_like(labels, tf.float32)),
        },
    )


def order_of(labels):
    """A number that tells labels in one order from those in another."""
    return float(np.dot(labels, np.arange(len(labels))))


def in_order_fn(features, labels, mode, network, optimizer):
    """Has a host metric that tells the order of the examples."""
    spec = classifier_fn(features, labels, mode, network, optimizer, {})
    metrics = {**spec.metrics, "order": ge.host_metric(order_of, labels)}
    return ge.EstimatorSpec(
        mode, loss=spec.loss, train_op=spec.train_op, metrics=metrics
    )


def far_fn(features, labels, mode, network, optimizer):
    """A loss that tells which rows are far away."""
    spec = classifier_fn(features, labels, mode, network, optimizer, {})
    loss = spec.loss + tf.reduce_mean(tf.abs(features), 1)
    return ge.EstimatorSpec(
        mode, loss=loss, train_op=spec.train_op, metrics=spec.metrics
    )


def make_estimator(
    model_dir,
    *,
    model_fn=classifier_fn,
    network=network,
    optimizer=adam,
    params=None,
    warm_start_from=None,
    **config,
):
    """Returns a seeded Estimator of the fakes, which writes no summaries.

    Args:
      model_dir: directory to train in; any kind of path.
      model_fn: model_fn of the modules `network` and `optimizer`.
      network: factory of the network.
      optimizer: factory of the optimizer.
      params: params of the model_fn.
      warm_start_from: as in `Estimator`.
      **config: fields of `RunConfig`.
    """
    defaults = {
        "tf_random_seed": 1,
        "save_summary_steps": None,
        "log_step_count_steps": None,
        "async_checkpoint": False,
        "keep_checkpoint_max": None,
    }
    return ge.Estimator(
        model_fn,
        modules={"network": network, "optimizer": optimizer},
        config=ge.RunConfig(model_dir=str(model_dir), **{**defaults, **config}),
        params=params,
        warm_start_from=warm_start_from,
    )


def take(iterator, number):
    """Returns the next elements of an iterator as lists, fewer at its end."""
    taken = []
    for _ in range(number):
        optional = iterator.get_next_as_optional()
        if not optional.has_value():
            break
        taken.append(optional.get_value().numpy().tolist())
    return taken


def weights(model_dir, step=None):
    """Returns the variables of a checkpoint by key; of the latest one by default."""
    path = str(model_dir) if step is None else f"{model_dir}/model.ckpt-{step}"
    reader = tf.train.load_checkpoint(path)
    shapes = reader.get_variable_to_shape_map()
    # TensorFlow adds two of its own: the object graph, and its count of saves.
    keys = [k for k in shapes if not k.startswith(("_CHECKPOINT", "save_counter"))]
    return {key: reader.get_tensor(key) for key in keys}


def checkpoint_steps(model_dir):
    """Returns the steps of the checkpoints in a model_dir, in order."""
    names = tf.io.gfile.listdir(str(model_dir))
    found = [re.fullmatch(r"model\.ckpt-(\d+)\.index", name) for name in names]
    return sorted(int(match[1]) for match in found if match)


class Recorder(ge.Hook):
    """A hook that keeps step and values of each window, and of the last one.

    Attributes:
      steps: global steps at which it was called.
      values: loss, metrics and scalars of each of these calls, by name.
    """

    def __init__(self, every_steps=None):
        self.every_steps = every_steps
        self.steps, self.values = [], []

    def after_step(self, run):
        report = run.report
        self.steps.append(run.step)
        self.values.append(report.values())
        # What model_fn counts by itself is what the driver counts, on every strategy.
        assert report.num_examples == report.metrics.get(
            "examples", report.num_examples
        )
        assert 0 <= report.input_wait <= 1

    def end(self, run):
        if not self.steps or self.steps[-1] != run.step:
            self.after_step(run)


def listening():
    """Returns a socket that answers on this machine, and its address."""
    each = socket.socket()
    each.bind(("127.0.0.1", 0))
    each.listen()
    return each, f"127.0.0.1:{each.getsockname()[1]}"


def silent():
    """Returns an address of this machine where nothing listens."""
    each, address = listening()
    each.close()
    return address


def initial_value(model_dir, variable):
    """The value at step 0 of a variable of the same shape; each shape is there once."""
    initial = weights(model_dir, 0)
    (value,) = (
        value
        for key, value in initial.items()
        if key.startswith("network/") and value.shape == tuple(variable.shape)
    )
    return value
