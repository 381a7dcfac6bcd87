"""A run that something happens to, to be compared with one that nothing happened to."""

import numpy as np

from pipeline.checkpoints import checkpoint
from tests import fakes

DATA, INDEX = ".data-00000-of-00001", ".index"
X, Y = fakes.classification_data(rows=160)
EVAL = fakes.make_input_fn(X, Y, batch_size=80)
PREDICT = fakes.make_input_fn(X, batch_size=80)


def shuffled(dataset):
    return dataset.shuffle(100, seed=3).repeat()


TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=shuffled)


def make(model_dir, **config):
    return fakes.make_estimator(
        model_dir,
        network=lambda: fakes.network(dropout=0.5),
        save_checkpoints_steps=2,
        **config,
    )


def equal(model_dir, other):
    """Whether the last checkpoints of two runs are of the same step and weights."""
    ours, theirs = fakes.weights(model_dir), fakes.weights(other)
    return sorted(ours) == sorted(theirs) and all(
        np.array_equal(ours[key], theirs[key]) for key in ours
    )


def path(model_dir, step):
    return checkpoint.path_of(str(model_dir), step)
