"""What is trained, and killed, in `tests.faults`: three cases, each of its own hazards.

What trained on which examples is in the checkpoint itself: row `step` of the variable
`seen` has a 1 for each example of that update. What a hook was told is in its state.
"""

import dataclasses
import os

import keras
import tensorflow as tf

import models
import pipeline as ge
from models import dcgan
from pipeline.strategy import strategies
from tests import fakes

# How often it is killed in each way, and steps enough for that.
ROUNDS = int(os.environ.get("FAULTS_ROUNDS", "1"))
NUM_STEPS = 120 * ROUNDS
NUM_EXAMPLES = 96
BATCH_SIZE = 16
HEARTBEAT_SECS = 3


def marked(spec, ids, step, seen, marker, rows=BATCH_SIZE):
    """`spec` with a train op that adds 1 to `seen[step, id]` for each example.

    Its gradient is summed over replicas, workers and micro-batches as any other.
    """
    row = tf.linalg.matvec(seen, tf.one_hot(step, NUM_STEPS), transpose_a=True)
    op = ge.TrainOp(marker, [seen], loss=-rows * tf.gather(row, ids))
    return dataclasses.replace(spec, train_op=[*spec.train_op, op])


def classifier_fn(
    features, labels, mode, network, optimizer, seen, marker, params, step, ballast
):
    """Dropout, BatchNormalization, regularization and clipping."""
    del ballast
    spec = fakes.classifier_fn(
        features["x"], labels, mode, network, optimizer, {"clip_norm": 1.0}
    )
    params["in_graph"](step)
    return marked(spec, features["id"], step, seen, marker)


def gan_fn(
    features,
    labels,
    mode,
    generator,
    discriminator,
    noise,
    generator_optimizer,
    discriminator_optimizer,
    seen,
    marker,
    params,
    step,
    ballast,
):
    """Two networks, two optimizers, two updates of one for one of the other."""
    del labels, ballast
    spec = models.gan(
        features["x"],
        mode,
        generator,
        discriminator,
        noise,
        generator_optimizer,
        discriminator_optimizer,
        generator_every=2,
    )
    params["in_graph"](step)
    return marked(spec, features["id"], step, seen, marker)


def dense(*layers, units, dropout=0.0):
    names = [keras.layers.Dense(8, activation="tanh"), *layers]
    return keras.Sequential(
        [*names, keras.layers.Dropout(dropout), keras.layers.Dense(units)]
    )


def schedule(peak=0.02):
    return models.warmup_cosine(peak, total_steps=NUM_STEPS, warmup_steps=10)


EXTRAS = {
    "seen": lambda: tf.Variable(tf.zeros([NUM_STEPS, NUM_EXAMPLES])),
    "marker": lambda: keras.optimizers.SGD(1.0),
    # So that a checkpoint takes its time to be written.
    "ballast": lambda: tf.Variable(tf.zeros([3_000_000]), trainable=False),
}
CLASSIFIER = {
    "network": lambda: fakes.network(l2=0.01, dropout=0.5, batch_norm=True),
    "optimizer": lambda: fakes.adam(learning_rate=schedule()),
    **EXTRAS,
}
GAN = {
    "generator": lambda: dense(keras.layers.BatchNormalization(), units=6),
    "discriminator": lambda: dense(units=1, dropout=0.3),
    "noise": lambda: dcgan.gaussian_noise(4),
    "generator_optimizer": lambda: fakes.adam(learning_rate=schedule()),
    "discriminator_optimizer": lambda: keras.optimizers.RMSprop(1e-3, epsilon=1e-3),
    **EXTRAS,
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A training.

    Attributes:
      model_fn: what is trained.
      modules: its factories.
      config: fields of RunConfig.
      num_workers: processes that train in step.
    """

    model_fn: object
    modules: dict
    config: dict = dataclasses.field(default_factory=dict)
    num_workers: int = 1


def two_workers(config):
    return strategies.multi_worker(
        config, heartbeat_timeout_secs=HEARTBEAT_SECS, start_timeout_secs=60
    )


CASES = {
    "one": Case(
        classifier_fn,
        CLASSIFIER,
        {"gradient_accumulation_steps": 2, "average": ge.ExponentialAverage(0.9)},
    ),
    "mirrored": Case(
        gan_fn, GAN, {"devices": ("CPU:0", "CPU:1"), "async_checkpoint": False}
    ),
    "workers": Case(
        classifier_fn,
        {**CLASSIFIER, "network": lambda: fakes.network(dropout=0.5)},
        {"train_distribute": two_workers, "execution": "multi_worker"},
        num_workers=2,
    ),
}


def input_fn(input_context, config):
    """All examples, shuffled anew in each pass; a step takes 16 of them in any case."""
    x, y = fakes.classification_data(NUM_EXAMPLES)
    data = {"x": x, "id": range(NUM_EXAMPLES)}, y
    dataset = tf.data.Dataset.from_tensor_slices(data)
    dataset = dataset.shuffle(NUM_EXAMPLES, seed=3).repeat()
    pipelines = input_context.num_input_pipelines
    dataset = dataset.shard(pipelines, input_context.input_pipeline_id)
    size = input_context.get_per_replica_batch_size(BATCH_SIZE)
    return dataset.batch(size // config.gradient_accumulation_steps)


class Noted(ge.Hook):
    """Remembers what it was told: step, steps of the window, mean loss."""

    every_steps = 7

    def begin(self, run):
        self._told = []

    def after_step(self, run):
        report = run.report
        self._told.append([run.step, report.num_steps, report.loss])

    def state(self):
        return self._told

    def restore(self, run, state):
        self._told = state
