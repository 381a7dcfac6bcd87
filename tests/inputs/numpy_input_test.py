import gin
import numpy as np
import pytest
import tensorflow as tf

import inputs
from pipeline import ModeKeys


@pytest.fixture
def gin_config():
    yield gin.parse_config
    gin.clear_config()


def test_dicts_and_lists():
    x = {"a": np.zeros([3, 2]), "b": [[1.0], [2.0], [3.0]]}
    dataset = inputs.numpy_input_fn(ModeKeys.EVAL, x=x, y=[1, 2, 3], batch_size=2)
    features, labels = dataset.element_spec
    assert features["a"] == tf.TensorSpec([None, 2], tf.float64)
    assert features["b"] == tf.TensorSpec([None, 1], tf.float32)
    assert labels == tf.TensorSpec([None], tf.int32)


def test_without_labels():
    dataset = inputs.numpy_input_fn(ModeKeys.TRAIN, x=np.arange(6), batch_size=2)
    assert dataset.element_spec == tf.TensorSpec([2], tf.int64)


def test_order_may_be_kept():
    dataset = inputs.numpy_input_fn(
        ModeKeys.TRAIN, x=np.arange(3), batch_size=2, shuffle=False
    )
    taken = [batch.tolist() for batch in dataset.take(3).as_numpy_iterator()]
    assert taken == [[0, 1], [2, 0], [1, 2]]


def test_a_global_batch_is_the_same_on_any_number_of_pipelines():
    def global_batches(num_pipelines, replicas):
        parts = []
        for i in range(num_pipelines):
            input_context = tf.distribute.InputContext(num_pipelines, i, replicas)
            dataset = inputs.numpy_input_fn(
                ModeKeys.TRAIN, input_context, x=np.arange(50), batch_size=12
            )
            local = dataset.unbatch().batch(12 // num_pipelines).take(20)
            parts.append(list(local.as_numpy_iterator()))
        return [sorted(np.concatenate(step)) for step in zip(*parts, strict=True)]

    expected = global_batches(1, 1)
    assert global_batches(1, 4) == global_batches(2, 2) == expected
    assert global_batches(3, 6) == expected


def test_every_row_comes_anywhere_in_an_epoch():
    dataset = inputs.numpy_input_fn(ModeKeys.TRAIN, x=np.arange(5), batch_size=5)
    epochs = np.stack(list(dataset.take(1000).as_numpy_iterator()))
    counts = np.stack([np.bincount(column, minlength=5) for column in epochs.T])
    assert counts.min() > 150 and counts.max() < 250


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("num_epochs", [None, 3])
@pytest.mark.parametrize("pipeline_id", [0, 2])
def test_it_starts_at_any_batch(shuffle, num_epochs, pipeline_id):
    """23 rows on three pipelines; three epochs are twelve batches of each, or so."""

    def batches(first_batch):
        dataset = inputs.numpy_input_fn(
            ModeKeys.TRAIN,
            tf.distribute.InputContext(3, pipeline_id, 3),
            x=np.arange(23),
            batch_size_per_replica=2,
            shuffle=shuffle,
            num_epochs=num_epochs,
            first_batch=first_batch,
        )
        found = [x.tolist() for x in dataset.take(15).as_numpy_iterator()]
        if num_epochs is not None:
            assert dataset.cardinality() == len(found)
        return found

    whole = batches(0)
    for first_batch in (1, 4, 7, 11, 13):
        rest = batches(first_batch)
        expected = whole[first_batch:]
        assert rest[: len(expected)] == expected
        assert num_epochs is None or rest == expected


def test_position_is_small(tmp_path):
    x = np.zeros([50_000, 8], np.float32)
    iterator = iter(inputs.numpy_input_fn(ModeKeys.TRAIN, x=x, batch_size=10))
    next(iterator)
    tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1_000_000


def test_constant_data_from_gin(gin_config):
    gin_config(
        """
        numpy_input_fn.data = @constant_arrays
        numpy_input_fn.batch_size = 10
        constant_arrays.x = [1., 2.]
        """
    )
    dataset = inputs.numpy_input_fn(ModeKeys.EVAL)
    assert dataset.cardinality() == 100
    x, y = next(iter(dataset))
    np.testing.assert_array_equal(x, [[1.0, 2.0]] * 10)
    np.testing.assert_array_equal(y, [[1.0]] * 10)
    assert x.dtype == y.dtype == tf.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "got neither of x and data"),
        ({"x": [1], "data": lambda: ([1], [1])}, "got both of x and data"),
        ({"y": [1], "data": lambda: ([1], [1])}, "got y and data"),
        ({"data": lambda: [1]}, "returned list, not a pair"),
        ({"x": [1, 2], "y": [1]}, r"shapes are \(\[2\], \[1\]\)"),
        ({"x": {"a": [1, 2], "b": [1]}}, r"shapes are \{'a': \[2\], 'b': \[1\]\}"),
        ({"x": 1.0}, r"shapes are \[\]"),
        ({"x": np.zeros([0, 2])}, r"length above 0 .* \[0, 2\]"),
        ({"x": [1], "seed": None}, "seed is None, not an integer"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        inputs.numpy_input_fn(ModeKeys.TRAIN, batch_size=1, **arguments)
