"""What cannot be, says so: with the line of the program, what it was, and what to write."""

import pathlib
import sys

import numpy as np
import pytest
import tensorflow

import gin_estimator.v1 as tf
from gin_estimator.v1 import __main__ as lister

pytestmark = pytest.mark.oldest

X = np.ones([16, 2], "float32")


def input_fn():
    return tf.data.Dataset.from_tensor_slices((X, X[:, :1])).batch(4)


def trained(path, body, hooks=(), **spec):
    def model_fn(features, labels, mode):
        w = tf.get_variable("w", [2, 1])
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        own = body(w, train_op)
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=train_op if own is None else own
        )

    tf.estimator.Estimator(model_fn, str(path)).train(input_fn, hooks=hooks)


def line_of(text):
    """Returns the number of the line of this file that has a text for the first time."""
    lines = pathlib.Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


NAMES = {
    "Session": "Use Estimator.train",
    "train.MonitoredTrainingSession": "Use Estimator.train",
    "train.shuffle_batch": "Return a tf.data.Dataset",
    "TFRecordReader": "tf.data.TFRecordDataset",
    "train.Server": "TF_CONFIG",
    "estimator.canned": "multi_class_head",
    "contrib.learn.Experiment": "train_and_evaluate",
    "contrib.nothing.at_all": "Copy them from TensorFlow 1.15",
    "no_such_name": "is not in TensorFlow",
    "estimator.NoEstimator": "is not in TensorFlow",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_without_a_meaning(name):
    value = tf
    with pytest.raises(AttributeError, match=NAMES[name]) as caught:
        for part in name.split("."):
            value = getattr(value, part)  # The line of the names.
    number = line_of("# The line of the names.")
    assert f"errors_test.py, line {number}, 'value = getattr" in str(caught.value)


class Runs(tf.train.SessionRunHook):
    def after_run(self, run_context, run_values):
        run_context.session.run("the_loss:0")


class Feeds(tf.train.SessionRunHook):
    def before_run(self, run_context):
        return tf.train.SessionRunArgs(None, feed_dict={"a": 1})


class Fetches(tf.train.SessionRunHook):
    def before_run(self, run_context):
        return tf.train.SessionRunArgs("nothing:0")


def in_cond(w, train_op):
    tf.cond(tf.reduce_sum(w) > 0, lambda: tf.assign(w, w * 2), lambda: tf.identity(w))


BODIES = {
    "a session in a hook": (lambda w, op: None, [Runs()], "SessionRunArgs", "session.run("),
    "feeds": (lambda w, op: None, [Feeds()], "Return them from the input_fn", None),
    "unknown tensor": (lambda w, op: None, [Fetches()], "tf.identity", None),
    "an assignment in tf.cond": (in_cond, (), r"tf.where\(condition", "tf.cond(tf.red"),
    "no update": (lambda w, op: tf.no_op(), (), "updates no variable", None),
    "twice": (
        lambda w, op: tf.group(op, tf.train.AdamOptimizer().minimize(tf.reduce_sum(w))),
        (),
        "twice in a step",
        None,
    ),
    "a saver": (lambda w, op: tf.train.Saver().save(None, "a"), (), "save_checkpoints_steps", None),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_a_model_fn_or_hook_cannot_do(name, tmp_path):
    body, hooks, message, line = BODIES[name]
    with pytest.raises(ValueError, match=message) as caught:
        trained(tmp_path, body, hooks)
    assert "errors_test.py, line " in str(caught.value)
    if line is not None:
        assert f"line {line_of(line)}, " in str(caught.value)


def test_outside_of_a_model_fn():
    with pytest.raises(ValueError, match="outside of a model_fn"):
        tf.train.GradientDescentOptimizer(0.1).apply_gradients([])


def test_two_iterators_in_an_input_fn(tmp_path):
    def two():
        data = input_fn()
        return data.make_one_shot_iterator().get_next()[0], data.make_one_shot_iterator().get_next()

    with pytest.raises(ValueError, match=r"tf.data.Dataset.zip") as caught:
        tf.estimator.Estimator(lambda features, labels, mode: None, str(tmp_path)).train(two)
    assert f"line {line_of('.get_next()[0], data')}, " in str(caught.value)


def test_unknown_names_are_listed_before_anything_runs(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text(
        "import gin_estimator.v1 as tf\n"
        "from tensorflow.contrib import slim, nothing\n"
        "import tensorflow.compat.v1 as tf1\n"
        "x = tf.layers.dense\n"
        "with tf.Session() as sess:\n"
        "    slim.conv2d(slim.no_such_layer)\n"
        "tf1.train.AdamOptimizer; tf1.train.QueueRunner\n"
    )
    assert lister.main([str(program)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.removeprefix(f"{program}:").split(":")[0] for line in lines[:-1]] == list("2567")
    assert "tf.contrib.nothing" in lines[0] and "tf.Session" in lines[1]
    assert lines[-1] == "4 problems in 1 programs"


def test_keras_and_the_driver_do_not_see_the_patches(tmp_path):
    seen = []

    def body(w, train_op):
        seen.append((w.shape[0].value, tf.zeros([1, 2]).shape[-1].value))

    trained(tmp_path, body)
    assert seen[0] == (2, 2)
    assert not hasattr(tf.zeros([1, 2]).shape[-1], "value")  # Outside of a model_fn.
    keras = sys.modules["keras"]
    assert type(keras.ops.zeros([1, 2]).shape[-1]) is int
    with pytest.raises(AttributeError, match="no attribute 'make_one_shot_iterator'"):
        tensorflow.data.Dataset.range(3).make_one_shot_iterator()
