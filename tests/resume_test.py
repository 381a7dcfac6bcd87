"""A run that was broken off and goes on is the run that was not, bit for bit."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests import fakes


def shuffled(dataset):
    return dataset.shuffle(100, seed=3).repeat()


def with_a_stateful_map(dataset):
    """TensorFlow cannot save its position, and the values do not depend on it."""
    return dataset.map(lambda x, y: (x + 0 * tf.random.uniform([]), y)).repeat()


def ragged(dataset):
    """Ends after step 16 of 20, and begins anew."""
    return dataset.take(16 * 16 - 3)


def noisy_network():
    return fakes.network(l2=0.01, dropout=0.5, batch_norm=True)


INPUTS = {
    "shuffled": shuffled,
    "not_saved": with_a_stateful_map,
}


def train(model_dir, max_steps, change):
    """A new Estimator, as in a new process."""
    data = fakes.classification_data()
    input_fn = fakes.make_input_fn(*data, batch_size=16, change=change)
    estimator = fakes.make_estimator(model_dir, network=noisy_network)
    estimator.train(input_fn, max_steps=max_steps)


def assert_equal(actual, expected):
    assert sorted(actual) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The weights of a run from 0 to 20 at one go, by input."""
    weights = {}
    for name, change in INPUTS.items():
        train(folder := tmp_path_factory.mktemp(name), 20, change)
        weights[name] = fakes.weights(folder)
    return weights


@pytest.mark.parametrize("name", INPUTS)
def test_goes_on_bit_for_bit(tmp_path, straight, name):
    train(tmp_path, 10, INPUTS[name])
    train(tmp_path, 20, INPUTS[name])
    assert_equal(fakes.weights(tmp_path), straight[name])


def test_a_moved_model_dir_goes_on(tmp_path, straight):
    train(tmp_path / "here", 10, shuffled)
    shutil.move(tmp_path / "here", tmp_path / "there")
    train(tmp_path / "there", 20, shuffled)
    assert_equal(fakes.weights(tmp_path / "there"), straight["shuffled"])


def test_a_moved_model_dir_leaves_the_old_path_alone(tmp_path):
    train(tmp_path / "here", 2, shuffled)
    shutil.move(tmp_path / "here", tmp_path / "there")
    train(tmp_path / "there", 4, shuffled)
    assert not (tmp_path / "here").exists()


def test_the_position_lies_beside_its_checkpoint(tmp_path):
    train(tmp_path, 2, shuffled)
    assert list(tmp_path.glob("input/model.ckpt-2.0-of-1.index"))


def test_a_position_that_cannot_be_saved_leaves_no_file(tmp_path):
    train(tmp_path, 2, with_a_stateful_map)
    assert not list(tmp_path.glob("input/*"))


def test_an_input_at_its_end_begins_anew(tmp_path):
    """Sixteen steps, the last of them ragged, and four from the beginning again."""
    for _ in range(2):
        train(tmp_path, 20, ragged)
    assert fakes.checkpoint_steps(tmp_path) == [0, 16, 20]
