"""What is compiled is compiled once, and TensorFlow warns of what is not."""

import collections
import logging

import keras
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint
from pipeline.driver import programs
from pipeline.tracing.compiling import compiled
from tests import fakes

X, Y = fakes.classification_data(rows=40)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())


@pytest.fixture
def warnings():
    """TensorFlow's warnings of functions that are traced again."""
    found = []

    class Keep(logging.Handler):
        def emit(self, record):
            if "retracing" in record.getMessage():
                found.append(record.getMessage())

    handler = Keep()
    tf.get_logger().addHandler(handler)
    yield found
    tf.get_logger().removeHandler(handler)


class Doubles:
    """Its method, compiled."""

    def __init__(self):
        self.call = compiled(self.double)

    def double(self, x):
        return 2 * x


def test_objects_are_counted_apart(warnings):
    for _ in range(8):
        assert Doubles().call(tf.constant(2.0)) == 4
    assert warnings == []


def test_many_estimators_savers_are_no_retracing(warnings, tmp_path):
    """TensorFlow counts what copies the values of each as one function."""
    for number in range(8):
        state = {"network": {"weight": tf.Variable(float(number))}}
        saver = checkpoint.Saver(str(tmp_path / str(number)), state, asynchronous=True)
        for step in (0, 1):
            saver.save(step)
            saver.wait()
    assert warnings == []


def test_an_object_that_is_traced_again_and_again_is_warned_of(warnings):
    doubles = Doubles()
    for size in range(8):
        doubles.call(tf.zeros([size]))
    assert warnings


def batches_of(size):
    """All of one static shape, another for each size."""

    def input_fn():
        rows = tf.data.Dataset.from_tensor_slices((X, Y))
        return rows.batch(size, drop_remainder=True)

    return input_fn


@pytest.fixture
def counted(tmp_path):
    """A trained Estimator, and how often model_fn was traced in each mode."""
    traces = collections.Counter()
    count = {"on_call": lambda mode: traces.update([mode])}
    estimator = fakes.make_estimator(tmp_path, params=count)
    estimator.train(TRAIN, max_steps=1)
    return estimator, traces


def test_a_training_traces_model_fn_to_see_what_it_does_and_to_compile_it(counted):
    _, traces = counted
    assert traces["train"] == 2


class Growing(tf.Module):
    """Makes another variable at each call."""

    def __init__(self):
        super().__init__()
        self.all = [tf.Variable(tf.zeros([6, 3]))]

    def __call__(self, x):
        self.all.append(tf.Variable(0.0, name="more"))
        return x @ self.all[0]


def growing_fn(features, labels, mode, network, optimizer):
    loss = keras.losses.sparse_categorical_crossentropy(labels, network(features), True)
    train_op = ge.TrainOp(optimizer, network.all[:1])
    return ge.EstimatorSpec(mode, loss=loss, train_op=train_op)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_variables_that_each_call_makes_are_refused(tmp_path, run_eagerly):
    estimator = fakes.make_estimator(
        tmp_path, model_fn=growing_fn, network=Growing, run_eagerly=run_eagerly
    )
    with pytest.raises(ge.SpecError, match=r"model_fn created the variables \['more'"):
        estimator.train(TRAIN, max_steps=1)


def test_evaluations_of_unlike_shapes_are_traced_once_each(counted, warnings):
    estimator, traces = counted
    sizes = 2, 4, 5, 8, 10, 20
    found = [[estimator.evaluate(batches_of(n))["loss"] for n in sizes]]
    once = traces["eval"]
    assert once <= 2 * len(sizes)
    for _ in range(2):
        found.append([estimator.evaluate(batches_of(n))["loss"] for n in sizes])
    assert traces["eval"] == once
    assert found[0] == found[1] == found[2]
    assert warnings == []


def test_the_shapes_that_were_used_last_are_kept(counted, monkeypatch):
    monkeypatch.setattr(programs, "_MOST_PROGRAMS", 2)
    estimator, traces = counted
    traced = []
    for size in (4, 8, 4, 10, 4, 8):
        before = traces["eval"]
        estimator.evaluate(batches_of(size))
        traced.append(traces["eval"] > before)
    assert traced == [True, True, False, True, False, True]
