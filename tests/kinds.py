"""A transformer and a network trained by DP-SGD: what they come to on any strategy.

kinds.check(kinds.train(config))
"""

import keras
import numpy as np
import tensorflow as tf

import models
import pipeline as ge
from tests import fakes

STEPS, ROWS, BATCH, LENGTH, VOCABULARY = 3, 19, 7, 5, 9
_RNG = np.random.default_rng(3)
_TOKENS, _NEXT = _RNG.integers(0, VOCABULARY, [2, ROWS, LENGTH]).astype(np.int32)
# Sentences of unlike lengths: the first rows of a batch have most of its tokens.
_NEXT[np.arange(LENGTH) > np.arange(ROWS)[::-1, None] % BATCH] = -1
_X, _CLASSES = fakes.classification_data(ROWS)
# What one replica comes to: in each step, and in an evaluation.
EXPECTED = {
    "loss": [2.4804296, 2.2940158, 2.1451106, 2.3272165],
    "accuracy": [0.12, 0.16, 0.2, 0.1384615],
    "private": [0.8302650, 0.8323713, 0.8426235, 0.8316771],
}


def network():
    keras.utils.set_random_seed(4)
    return models.transformer_lm(
        vocab_size=VOCABULARY, context=LENGTH, width=8, depth=1, heads=2
    )


def private_network():
    keras.utils.set_random_seed(5)
    return fakes.network()


def model_fn(features, labels, mode, network, optimizer, private, private_optimizer):
    """Two models of the same examples, of which one has weights by token."""
    tokens, x = features
    following, classes = labels
    spec = models.language_model(
        tokens, following, mode, network, optimizer, clip_norm=0.5
    )

    def loss_fn(x, classes):
        logits = private(x, training=True)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)

    losses, ops = loss_fn(x, classes), list(spec.train_op)
    if mode == ge.ModeKeys.TRAIN:
        given = loss_fn, private.trainable_variables, x, classes
        op = ge.TrainOp(
            private_optimizer,
            private.trainable_variables,
            gradients=models.clipped_mean_gradients(*given, clip_norm=0.3),
            gradient_fn=models.gradient_noise(0.1, seed=5),
        )
        ops.append(op)
    return ge.EstimatorSpec(
        mode,
        loss=spec.loss,
        loss_weights=spec.loss_weights,
        train_op=ops or None,
        metrics={
            **spec.metrics,
            "private": losses,
            "order": ge.host_metric(fakes.order_of, classes),
        },
    )


def input_fn(mode):
    """Training: the same rows in each step; else all, with a smaller last batch."""
    data = tf.data.Dataset.from_tensor_slices(((_TOKENS, _X), (_NEXT, _CLASSES)))
    if mode == ge.ModeKeys.TRAIN:
        return data.take(BATCH).batch(BATCH).repeat()
    return data.batch(BATCH)


def train(config):
    """Returns what `EXPECTED` holds, after steps one after the other."""
    estimator = ge.Estimator(
        model_fn,
        modules={
            "network": network,
            "optimizer": fakes.adam,
            "private": private_network,
            "private_optimizer": lambda: keras.optimizers.SGD(0.5),
        },
        config=config,
    )
    recorder = fakes.Recorder(every_steps=1)
    estimator.train(input_fn, max_steps=STEPS, hooks=[recorder])
    evaluated = estimator.evaluate(input_fn)
    assert evaluated["order"] == fakes.order_of(_CLASSES)
    windows = [*recorder.values, evaluated]
    names = "loss", "accuracy", "private"
    return {name: [float(values[name]) for values in windows] for name in names}


def check(found):
    """Asserts that values are those of one replica."""
    for name, values in EXPECTED.items():
        np.testing.assert_allclose(found[name], values, 1e-5, err_msg=name)
