"""Tables of which a step uses some rows: what they come to on any strategy."""

import keras
import numpy as np
import tensorflow as tf

import models
import pipeline as ge
from tests import fakes

STEPS, ROWS, CLIP = 50, 8, 1.0
IDS, WIDTH = 150, 4
K = keras.optimizers
OPTIMIZERS = {
    "sgd": lambda: K.SGD(0.05),
    "adagrad": lambda: K.Adagrad(0.05),
    "ftrl": lambda: K.Ftrl(
        K.schedules.PiecewiseConstantDecay([20], [0.1, 0.05]),
        l1_regularization_strength=0.01,
    ),
}
# Ids repeat, in an example and over examples; most never come.
_RNG = np.random.default_rng(0)
BAGS = _RNG.choice([0, 3, 70, 80, 149], size=(ROWS, 3))
TARGETS = _RNG.normal(size=ROWS).astype(np.float32)


def _losses(vectors, targets):
    return tf.square(tf.reduce_sum(vectors, [1, 2]) / WIDTH - targets)


def model_fn(features, labels, mode, **modules):
    loss, ops = 0.0, []
    for name in OPTIMIZERS:
        table = modules[f"{name}_table"]
        loss += _losses(table(features), labels)
        trained = table.trainable_variables
        ops.append(ge.TrainOp(modules[name], trained, clip_norm=CLIP))
    return ge.EstimatorSpec(mode, loss=loss, train_op=ops)


def input_fn(mode, input_context):
    """The same rows in each step, of which each replica has its part."""
    del mode
    rows = tf.data.Dataset.from_tensor_slices((BAGS, TARGETS)).repeat()
    batches = rows.batch(input_context.get_per_replica_batch_size(ROWS))
    # With parameter servers a worker's batch is a step: all are alike.
    return batches.shard(
        input_context.num_input_pipelines, input_context.input_pipeline_id
    )


def train(config):
    """Returns the tables by optimizer, as lists, after steps one after the other."""

    def table():
        return models.ShardedEmbedding(IDS, WIDTH, embeddings_initializer="ones")

    estimator = ge.Estimator(
        model_fn,
        modules={**OPTIMIZERS, **{f"{name}_table": table for name in OPTIMIZERS}},
        config=config,
    )
    estimator.train(input_fn, max_steps=STEPS, hooks=[fakes.Recorder(every_steps=1)])
    return {
        name: estimator.get_variable_value(f"{name}_table/table").tolist()
        for name in OPTIMIZERS
    }


def expected():
    """The same by Keras alone, with whole tables and their dense gradients."""
    found = {}
    for name, make in OPTIMIZERS.items():
        table = tf.Variable(tf.ones([IDS, WIDTH]))
        optimizer = make()
        optimizer.build([table])

        @tf.function(autograph=False)
        def step(table=table, optimizer=optimizer):
            with tf.GradientTape() as tape:
                vectors = tf.tensordot(tf.one_hot(BAGS, IDS), table, 1)
                loss = tf.reduce_mean(_losses(vectors, TARGETS))
            gradient = tf.clip_by_norm(tape.gradient(loss, table), CLIP)
            optimizer.apply([gradient], [table])

        for _ in range(STEPS):
            step()
        found[name] = table.numpy()
    return found


def check(found):
    """Asserts that tables are as expected."""
    for name, table in expected().items():
        np.testing.assert_allclose(
            found[name], table, rtol=1e-6, atol=1e-6, err_msg=name
        )
