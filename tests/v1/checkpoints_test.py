"""Initial values from checkpoints, and a model_dir of TensorFlow 1."""

import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf1

import gin_estimator.v1 as tf
from tasks import workers

pytestmark = pytest.mark.oldest

RNG = np.random.default_rng(0)
X = RNG.normal(size=[48, 3]).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def loss_of(t, x, y):
    with t.variable_scope("net"):
        w = t.get_variable("w", [3, 1], initializer=t.constant_initializer(0.2))
        b = t.get_variable("b", [1], initializer=t.zeros_initializer())
    return t.reduce_mean(t.square(t.matmul(x, w) + b - y))


def train_op_of(t, loss):
    step = t.train.get_or_create_global_step()
    return t.train.AdamOptimizer(0.1).minimize(loss, global_step=step)


def input_fn(steps=None):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    return data if steps is None else data.skip(steps)


def estimator(path, before=lambda: None, scaffold=lambda: None, **options):
    def model_fn(features, labels, mode):
        loss = loss_of(tf, features, labels)
        before()
        train_op = train_op_of(tf, loss)
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op, scaffold=scaffold())

    return tf.estimator.Estimator(model_fn, str(path), **options)


@pytest.fixture(scope="module")
def session_run(tmp_path_factory):
    """Returns a model_dir as tf.estimator writes it, at step 3, and all values at step 6."""
    folder = tmp_path_factory.mktemp("tensorflow1")
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.enable_resource_variables()
        x, y = tf1.placeholder("float32", [None, 3]), tf1.placeholder("float32", [None, 1])
        train_op = train_op_of(tf1, loss_of(tf1, x, y))
        session.run(tf1.global_variables_initializer())
        for i in range(6):
            session.run(train_op, {x: X[8 * i : 8 * i + 8], y: Y[8 * i : 8 * i + 8]})
            if i == 2:
                saver = tf1.train.Saver()
                saver.save(session, f"{folder}/model.ckpt", tf1.train.get_global_step())
                half = {v.op.name: session.run(v) for v in tf1.global_variables()}
        return folder, half, {v.op.name: session.run(v) for v in tf1.global_variables()}


@pytest.mark.slow
def test_workers_continue_a_model_dir_of_tensorflow_1(session_run, tmp_path):
    folder, _, values = session_run
    shutil.copytree(folder, tmp_path / "model")
    with workers(tmp_path, tmp_path / "model", program="v1_workers.py") as tasks:
        assert [task.wait() for task in tasks] == [0, 0], tasks[1].output
    for name, value in values.items():
        found = tf.train.load_variable(str(tmp_path / "model"), name)
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-7, err_msg=name)


def test_a_model_dir_of_tensorflow_1_is_continued(session_run, tmp_path):
    folder, half, values = session_run
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    # Its "checkpoint" has relative paths. A new process: evaluate, then train.
    found = estimator(tmp_path)
    assert found.evaluate(input_fn)["global_step"] in (0, 3)
    found = estimator(tmp_path).train(lambda: input_fn(3), max_steps=6)
    for name, value in values.items():
        ours = found.get_variable_value(name)
        np.testing.assert_allclose(ours, value, rtol=1e-5, atol=1e-7, err_msg=name)
    assert {n for n in found.get_variable_names() if "Adam" in n} <= {*values}


def test_a_continued_run_equals_an_uninterrupted_one(tmp_path):
    whole = estimator(tmp_path / "whole").train(input_fn)
    estimator(tmp_path / "parts").train(input_fn, steps=2)
    parts = estimator(tmp_path / "parts").train(input_fn, max_steps=6)
    assert ("net/w", [3, 1]) in tf.train.list_variables(str(tmp_path / "parts"))
    # tf.estimator begins the input anew; so does v1 after TensorFlow 1 alone.
    for name in whole.get_variable_names():
        if not name.endswith("/value") and "DRIVER" not in name.upper():
            np.testing.assert_array_equal(
                whole.get_variable_value(name), parts.get_variable_value(name), name
            )


INITIAL = {
    "path": lambda folder: {"warm_start_from": str(folder)},
    "settings": lambda folder: {
        "warm_start_from": tf.estimator.WarmStartSettings(
            str(folder), "other", var_name_to_prev_var_name={}
        )
    },
    "pattern": lambda folder: {
        "warm_start_from": tf.estimator.WarmStartSettings(str(folder), "net/w")
    },
    "list": lambda folder: {
        "warm_start_from": tf.estimator.WarmStartSettings(str(folder), ["net/w:0", ".*Adam.*"])
    },
    "init_from_checkpoint": lambda folder: {
        "before": lambda: tf.train.init_from_checkpoint(str(folder), {"net/": "net/"})
    },
    "one variable": lambda folder: {
        "before": lambda: tf.train.init_from_checkpoint(
            str(folder), {"net/w": tf.trainable_variables()[0]}
        )
    },
    "scaffold": lambda folder: {"scaffold": lambda: restoring_scaffold(folder)},
}


def restoring_scaffold(folder):
    saver = tf.train.Saver({"net/w": tf.trainable_variables()[0]})
    path = tf.train.latest_checkpoint(str(folder))
    return tf.train.Scaffold(init_fn=lambda scaffold, session: saver.restore(session, path))


@pytest.mark.parametrize("name", INITIAL)
def test_initial_values(name, session_run, tmp_path):
    folder, half, _ = session_run
    found = estimator(tmp_path, **INITIAL[name](folder))
    found.train(input_fn, steps=1)
    changed = found.get_variable_value("net/w")
    expected = 0.2 if name == "settings" else half["net/w"]
    # One step of Adam changes each element by about 0.1.
    assert np.all(np.abs(changed - expected) < (0.18 if name == "list" else 0.101))
    assert np.min(np.abs(half["net/w"] - 0.2)) > 0.28


def test_rows_of_a_vocabulary_move(tmp_path):
    """Words of both files keep their rows; the axis of the other variable is 1."""
    for name, words in {"old": "a b c d", "new": "d e a"}.items():
        (tmp_path / name).write_text("\n".join(words.split()) + "\n")

    def run(folder, size, **options):
        def model_fn(features, labels, mode):
            first = tf.random_normal_initializer(seed=size)
            table = tf.get_variable("table", [size, 3], initializer=first)
            bias = tf.get_variable("out", [3, size], initializer=first)
            loss = tf.reduce_sum(table) + tf.reduce_sum(bias) + 0 * tf.reduce_sum(features)
            return tf.estimator.EstimatorSpec(
                mode, loss=loss, train_op=tf.train.GradientDescentOptimizer(0.0).minimize(loss)
            )

        found = tf.estimator.Estimator(model_fn, str(tmp_path / folder), **options)
        found.train(input_fn, steps=1)
        return found.get_variable_value("table"), found.get_variable_value("out")

    old, old_out = run("1", 4)
    files = (str(tmp_path / "new"), 3, 0, str(tmp_path / "old"))
    settings = tf.estimator.WarmStartSettings(
        str(tmp_path / "1"),
        var_name_to_vocab_info={
            "table": tf.estimator.VocabInfo(*files, backup_initializer=tf.ones_initializer()),
            "out": tf.train.VocabInfo(*files, axis=1),
        },
    )
    new, new_out = run("2", 3, warm_start_from=settings)
    np.testing.assert_array_equal(new, [old[3], np.ones(3), old[0]])
    np.testing.assert_array_equal(new_out.T, [old_out[:, 3], np.zeros(3), old_out[:, 0]])
    settings.var_name_to_vocab_info["other"] = settings.var_name_to_vocab_info["out"]
    with pytest.raises(ValueError, match=r"var_name_to_vocab_info has \['other'\]"):
        run("3", 3, warm_start_from=settings)


def test_slots_of_a_variable_of_one_part_are_found(tmp_path):
    """LinearClassifier of TensorFlow names slots `w/part_0/Ftrl`, DNNClassifier `w/t_0/Adagrad`."""
    with tf1.Graph().as_default(), tf1.Session() as session:
        value, other = (tf1.get_variable(name, initializer=0.5) for name in "ab")
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver({"w/part_0/Ftrl": value, "w/t_0/Adagrad": other})
        path = saver.save(session, str(tmp_path / "model.ckpt"))
    assert tf.train.load_variable(path, "w/Ftrl") == 0.5
    assert tf.train.load_variable(path, "w/Adagrad") == 0.5
