"""A small program, whose parts the tests replace by wrong ones."""

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = np.arange(64) % 3


def make_network():
    return keras.Sequential([keras.layers.Dense(3)])


def data(x=X, y=Y, change=lambda rows: rows):
    """Returns an input_fn of batches of 16."""

    def input_fn():
        rows = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
        return change(rows).batch(16)

    return input_fn


def with_spec(**changes):
    """Returns a model_fn whose spec has other fields; functions get the logits."""

    def model_fn(features, labels, mode, network, optimizer):
        logits = network(features)
        fields = {
            "predictions": {"logits": logits},
            "loss": keras.losses.sparse_categorical_crossentropy(labels, logits, True),
            "train_op": ge.TrainOp(optimizer, network.trainable_variables),
        }
        made = {name: v(logits) if callable(v) else v for name, v in changes.items()}
        return ge.EstimatorSpec(mode, **{**fields, **made})

    return model_fn


def make(model_fn=None, config=None, **options):
    modules = {"network": make_network, "optimizer": keras.optimizers.SGD}
    modules.update(options.pop("modules", {}))
    config = config or ge.RunConfig(save_checkpoints_steps=0, log_step_count_steps=None)
    return ge.Estimator(model_fn or with_spec(), config=config, modules=modules, **options)


def train(model_fn=None, input_fn=None, *, max_steps=2, hooks=(), **options):
    estimator = make(model_fn, **options)
    return estimator.train(input_fn or data(), max_steps=max_steps, hooks=hooks)


def evaluate(input_fn=None, *, spec=None, **options):
    spec = spec or ge.EvalSpec(input_fn or data())
    return ge.train_and_evaluate(make(**options), ge.TrainSpec(data(), max_steps=1), spec)
