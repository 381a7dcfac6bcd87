"""Trainings that leave out batches: after a loss of NaN, and by a LossGuard."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import gin_estimator as ge
from small import X, Y, checkpoints, make, points, train_input, weights

BAD = (2, 5, 6)  # Two of them follow each other in the second pass.
ROWS = np.stack([X[index : index + 8] for index in range(12)])
LABELS = np.stack([Y[index : index + 8] for index in range(12)])


def indices():
    return tf.data.Dataset.range(12).shuffle(12, seed=5).repeat(2)


def batch_of(index, poison=np.nan):
    is_bad = tf.reduce_any(tf.equal(index, BAD))
    rows = tf.gather(ROWS, index)
    first = tf.where(is_bad, poison, 1.0) * rows[:1]
    return tf.concat([first, rows[1:]], 0), tf.gather(LABELS, index)


def poisoned():
    return indices().map(batch_of)


def clean():
    return indices().filter(lambda index: ~tf.reduce_any(tf.equal(index, BAD))).map(batch_of)


def spikes():
    return indices().map(lambda index: batch_of(index, 1e4))


def not_saved():
    """Yields batches whose position cannot be saved, so that a restart skips them."""
    return poisoned().map(lambda x, y: (tf.numpy_function(np.copy, [x], tf.float32), y)).map(
        lambda x, y: (tf.ensure_shape(x, [8, 4]), y)
    )


class Guarded(ge.LossGuard):
    """Records the calls."""

    begins = 0

    def begin(self, run):
        super().begin(run)
        self.begins += 1


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Returns the weights of a training without the bad batches."""
    return weights(make(tmp_path_factory.mktemp("clean")).train(clean))


@pytest.fixture(scope="module")
def restored(tmp_path_factory):
    """Returns an Estimator that has left out six batches, and its log."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("absl").addHandler(handler)
    one = make(
        tmp_path_factory.mktemp("restored"), on_nan="restore", max_restores=6,
        save_checkpoints_steps=5, save_summary_steps=1,
    )  # fmt: skip
    one.train(poisoned)
    logging.getLogger("absl").removeHandler(handler)
    return one, "\n".join(records)


def test_batches_that_hold_nan_are_as_if_they_had_not_been_in_the_data(restored, expected):
    one, log = restored
    np.testing.assert_array_equal(weights(one), expected)
    assert log.count("is left out") == 6
    assert "batch 7 of the pass is left out, NaN or Inf in features, examples 0" in log
    assert checkpoints(one.model_dir) == [0, 5, 10, 15, 18]
    assert sorted(points(one.model_dir)["loss"]) == [*range(1, 19)]


def test_plain_tensorflow_reads_a_bad_batch_and_the_weights_before_it(restored):
    one, _ = restored
    folders = sorted(tf.io.gfile.glob(f"{one.model_dir}/bad_batches/*"))
    assert len(folders) == 6 and any(each.endswith("-2") for each in folders)
    [(x, y)] = tf.data.Dataset.load(f"{folders[0]}/batches/000-000")
    assert x.shape == (8, 4) and np.isnan(x[0]).all() and np.isfinite(x[1:]).all() and len(y) == 8
    reader = tf.train.load_checkpoint(folders[0])
    assert np.isfinite(reader.get_tensor("network/000/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE")).all()
