"""Random numbers of a run and those of the program around it."""

import random

import keras
import numpy as np
import tensorflow as tf

from pipeline.tracing import seeds
from tests import fakes

X, Y = fakes.classification_data(rows=24)
EVAL = fakes.make_input_fn(X, Y, batch_size=8)


def drawn():
    return random.random(), np.random.random()


class Late(keras.layers.Layer):
    """Its layer is made, and draws its seed, when it is first called."""

    def build(self, shape):
        self.dense = keras.layers.Dense(fakes.NUM_CLASSES)
        self.dense.build(shape)

    def call(self, x):
        return self.dense(x)


def test_a_run_leaves_the_programs_numbers_alone(tmp_path):
    inputs = []

    def input_fn():
        inputs.append(np.random.permutation(24).tolist())
        data = tf.data.Dataset.from_tensor_slices((X[inputs[-1]], Y[inputs[-1]]))
        return data.shuffle(24).batch(8).repeat()

    def trained(folder):
        estimator = fakes.make_estimator(tmp_path / folder, network=Late)
        estimator.train(input_fn, steps=1)
        estimator.train(input_fn, steps=1)
        estimator.evaluate(EVAL)
        after = drawn()
        return after, fakes.weights(tmp_path / folder)

    random.seed(7)
    np.random.seed(7)
    expected = drawn()
    random.seed(7)
    np.random.seed(7)
    first, weights = trained("a")
    random.seed(8)  # Where the program stands decides nothing of a seeded run.
    _, again = trained("b")
    assert first == expected
    assert inputs[0] == inputs[1] == inputs[2] == inputs[3]
    for name, value in weights.items():
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_what_a_run_draws_goes_on_from_block_to_block():
    own = seeds.Seeds(3)
    before = random.getstate()
    with own.drawn():
        first = drawn()
    with own.drawn():
        second = drawn()
    assert random.getstate() == before
    assert first != second
    again = seeds.Seeds(3)
    with again.drawn():
        assert (drawn(), drawn()) == (first, second)
