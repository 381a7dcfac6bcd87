"""The table of names, and imports of namespaces by path."""

import importlib
import pathlib

import numpy as np
import pytest

import gin_estimator.v1 as tf
from gin_estimator import errors
from gin_estimator.v1 import __main__ as lister

DOCS = pathlib.Path(__file__).parents[2] / "docs"


def test_the_committed_table_is_that_of_the_package(capsys):
    assert lister.main(["--names"]) == 0
    found = capsys.readouterr().out
    # If this fails: python -m gin_estimator.v1 --names > docs/names.md
    assert found == (DOCS / "names.md").read_text()


PATHS = {
    "compat.v1": lambda: tf,
    "compat.v1.estimator": lambda: tf.estimator,
    "python.estimator.estimator": lambda: tf.estimator,
    "contrib.slim": lambda: tf.contrib.slim,
    "contrib.training.python.training.hparam": lambda: tf.contrib.training,
    "contrib.tpu.python.tpu.tpu_config": lambda: tf.contrib.tpu,
    "contrib.layers.python.layers.initializers": lambda: tf.contrib.layers,
    "keras.layers": lambda: tf.keras.layers,
    "losses": lambda: tf.losses,
    "examples.tutorials.mnist.input_data": lambda: tf.contrib.learn.datasets.mnist,
}


@pytest.mark.oldest
@pytest.mark.parametrize("path", PATHS)
def test_namespaces_are_imported_by_path(path):
    assert importlib.import_module(f"gin_estimator.v1.{path}") is PATHS[path]()


@pytest.mark.oldest
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from gin_estimator.v1.contrib import nothing", "Copy its few|Copy them"),
        ("from gin_estimator.v1.python.tools import freeze_graph", "export_saved_model"),
        ("from gin_estimator.v1.contrib.learn import Experiment", "train_and_evaluate"),
        ("tf.math.no_such_name", "tf.math.no_such_name is not in TensorFlow"),
        ("tf.contrib.rnn.no_such_cell", r"tf.contrib.rnn.no_such_cell left TensorFlow"),
        ("tf.estimator.BoostedTreesClassifier", "scikit-learn"),
    ],
)
def test_missing_names_are_refused_with_the_line(line, message, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(f"import gin_estimator.v1 as tf\n{line}\n")
    error = ImportError if "import" in line else AttributeError
    with pytest.raises(error, match=message) as caught:
        exec(compile(program.read_text(), str(program), "exec"), {})
    assert f"{program}, line 2, {line!r}: tf." in str(caught.value)


def test_mnist_of_the_tutorials_is_that_of_keras(monkeypatch):
    images, labels = np.full([5002, 28, 28], 51, "uint8"), np.arange(5002) % 10
    load = lambda: ((images, labels), (images[:3], labels[:3]))  # noqa: E731
    monkeypatch.setattr("tensorflow.keras.datasets.mnist.load_data", load)
    found = tf.contrib.learn.datasets.load_dataset("mnist")
    assert [part.num_examples for part in found] == [2, 5000, 3]
    np.testing.assert_allclose(found.train.images, np.full([2, 784], 0.2, "float32"))
    assert found.train.labels.tolist() == [0, 1]
    raw = tf.examples.tutorials.mnist.input_data.read_data_sets(
        "folder", one_hot=True, dtype=tf.uint8, reshape=False
    )
    assert raw.test.images.shape == (3, 28, 28, 1)
    assert (raw.test.images.dtype, raw.test.images.max()) == (np.uint8, 51)
    assert raw.test.labels.argmax(axis=1).tolist() == [0, 1, 2]
    with pytest.raises(errors.UserError, match="expected 'mnist'"):
        tf.contrib.learn.datasets.load_dataset("iris")


def test_names_of_contrib_are_those_of_their_new_places():
    assert tf.contrib.data.AUTOTUNE == tf.data.experimental.AUTOTUNE
    assert tf.contrib.rnn.static_rnn is tf.nn.static_rnn
    assert tf.contrib.eager.list_devices()
    assert tf.train.NanLossDuringTrainingError is errors.NanLossDuringTrainingError
    data = tf.data.Dataset.range(5).apply(tf.contrib.data.batch_and_drop_remainder(2))
    assert [each.tolist() for each in data.as_numpy_iterator()] == [[0, 1], [2, 3]]
    with tf.contrib.summary.create_file_writer("nowhere").as_default():
        with tf.contrib.summary.always_record_summaries():
            tf.contrib.summary.scalar("a", 1.0, step=1)
