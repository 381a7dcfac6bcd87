import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import inputs
from inputs import digits
from pipeline import ModeKeys


def test_split():
    (train_x, train_y), (test_x, test_y) = digits.load_digits()
    assert train_x.shape == (1437, 8, 8, 1) and test_x.shape == (360, 8, 8, 1)
    assert train_x.dtype == np.float32 and train_y.dtype == np.int64
    assert train_x.min() == 0.0 and train_x.max() == 1.0
    shares = np.bincount(test_y) / np.bincount(np.concatenate([train_y, test_y]))
    assert np.all(np.abs(shares - 0.2) < 0.01)
    in_both = {x.tobytes() for x in train_x} & {x.tobytes() for x in test_x}
    assert not in_both


@pytest.mark.parametrize("num_pipelines", [1, 2])
def test_modes(num_pipelines):
    def sizes(mode):
        total = 0
        for i in range(num_pipelines):
            input_context = tf.distribute.InputContext(num_pipelines, i, num_pipelines)
            dataset = inputs.digits_input_fn(
                mode, input_context, batch_size=64, num_epochs=1
            )
            for element in dataset:
                assert isinstance(element, tuple) == (mode != ModeKeys.PREDICT)
                total += len(tf.nest.flatten(element)[0])
        return total

    assert sizes(ModeKeys.TRAIN) == 1437
    assert sizes(ModeKeys.EVAL) == sizes(ModeKeys.PREDICT) == 360


def test_training_is_endless():
    dataset = inputs.digits_input_fn(ModeKeys.TRAIN, batch_size=64)
    assert dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    images, labels = dataset.element_spec
    assert images == tf.TensorSpec([64, 8, 8, 1], tf.float32)
    assert labels == tf.TensorSpec([64], tf.int64)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setattr(digits, "sklearn_datasets", None)
    with pytest.raises(ModuleNotFoundError, match="-m pip install scikit-learn"):
        inputs.digits_input_fn(ModeKeys.TRAIN, batch_size=64)


def test_inputs_can_be_imported_without_optional_packages():
    code = (
        "import sys; sys.modules['sklearn'] = None;"
        "sys.modules['tensorflow_datasets'] = None;"
        "import pipeline, inputs; assert inputs.digits.sklearn_datasets is None;"
        "assert inputs.tfds_input.tfds is None;"
        # For as long as nobody asks for something of them.
        "assert not {'pandas', 'keras.wrappers'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_it_starts_at_any_batch():
    whole = inputs.digits_input_fn(ModeKeys.TRAIN, batch_size=64)
    rest = inputs.digits_input_fn(ModeKeys.TRAIN, batch_size=64, first_batch=30)
    expected = whole.skip(30)
    for (_, actual), (_, labels) in zip(rest.take(30), expected.take(30), strict=True):
        np.testing.assert_array_equal(actual, labels)
