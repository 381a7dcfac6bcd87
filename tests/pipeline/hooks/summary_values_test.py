"""Summaries as TensorBoard's plugins read them, and what is said of their numbers."""

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.plugins.pr_curve import plugin_data_pb2

import pipeline as ge
from pipeline.contract.spec import EstimatorSpec
from pipeline.hooks import drawing, summary_values
from pipeline.tracing.summary_states import SummarySet


def seen(summary):
    """A summary of one batch."""
    spec = EstimatorSpec("eval", loss=tf.zeros([4]), summaries={"x": summary})
    summaries = SummarySet(spec.summaries, under_xla=False)
    return summaries.seen(summaries.of(spec, None))["x"]


def arrays(summary):
    """The values of a summary's event, as arrays by tag."""
    values = summary_values.values("x", seen(summary))
    return {value.tag: tf.make_ndarray(value.tensor) for value in values}


def test_histogram_counts_every_finite_value_in_buckets_side_by_side():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=1000), [0, -0.0, 1e-30, -7], np.zeros(5)])
    table = arrays(ge.histogram(x.astype(np.float32)))["x"]
    lefts, rights, counts = table.T
    assert counts.sum() == len(x)
    assert lefts[0] <= -7 < rights[0]
    np.testing.assert_array_equal(lefts[1:], rights[:-1])
    for left, right, count in table:
        inside = (x >= left) & (x < right) if left >= 0 else (x > left) & (x <= right)
        if left < 0 <= right or left == 0:
            continue  # Zeros of both signs lie here.
        assert inside.sum() == count
    assert len(table) <= 61


@pytest.mark.parametrize("x", [[3.0], [-3.0], [0.0], [3e38], [5, 5, 5], [-40]])
def test_histogram_of_one_value(x):
    ((left, right, count),) = arrays(ge.histogram(np.array(x)))["x"]
    assert left <= x[0] <= right
    assert count == len(x)


def test_histogram_of_no_finite_value_is_none():
    summary = ge.histogram(np.array([np.nan, np.inf, -np.inf], np.float32))
    assert arrays(summary) == {}
    assert "leaves out 3 values" in summary_values.remark("x", seen(summary))


def test_pr_curve_is_of_the_plugins_format():
    summary = ge.pr_curve([0, 1, 1, 1], [0.1, 0.4, 0.5, 1.0], num_thresholds=300)
    (value,) = summary_values.values("x", seen(summary))
    content = value.metadata.plugin_data.content
    assert plugin_data_pb2.PrCurvePluginData.FromString(content).num_thresholds == 300
    table = tf.make_ndarray(value.tensor)
    assert table.shape == (6, 300)
    assert table[:, 0].tolist() == [3, 1, 0, 0, 0.75, 1]
    # The threshold 140 / 299 = 0.468.
    assert table[:4, 140].tolist() == [2, 0, 1, 1]


def test_pictures_are_scaled_to_their_range():
    x = np.array([-1, 0, 1, 3], np.float32).reshape(1, 2, 2, 1)
    summary = ge.image(x, value_range=(-1, 1))
    (value,) = summary_values.values("x", seen(summary))
    width, height, picture = tf.make_ndarray(value.tensor)
    assert (width, height) == (b"2", b"2")
    assert tf.io.decode_png(picture).numpy().ravel().tolist() == [0, 128, 255, 255]
    assert "from -1 to 3" in summary_values.remark("x", seen(summary))
    assert summary_values.remark("x", seen(ge.image(x, value_range=None))) is None


def test_pictures_with_captions_lie_in_one():
    x = np.zeros([5, 8, 8, 3], np.uint8)
    labels = {"is": np.array([0, 1, 2, 0, 1]), "loss": np.arange(5.0)}
    summary = ge.image(x, 5, labels=labels, class_names=("a", "b"), columns=3)
    (value,) = summary_values.values("x", seen(summary))
    width, height, picture = tf.make_ndarray(value.tensor)
    lines = 2 * drawing.LINE
    assert (int(width), int(height)) == (3 * 70, 2 * (64 + lines + 6))
    assert tf.io.decode_png(picture).shape == (int(height), int(width), 3)


@pytest.mark.parametrize("size", [2, 10, 30, 70, 200])
def test_a_matrix_is_a_picture_and_a_table(size):
    labels = np.arange(size)
    summary = ge.confusion_matrix(labels, (labels + labels % 2) % size, size)
    found = arrays(summary)
    width, height, _ = found["x"]
    assert int(width) < 1500
    assert int(height) < 1500
    (table,) = found["x/table"]
    assert ("recall" in table.decode()) == (size <= 30)


def test_names_that_are_long_or_not_latin_are_drawn():
    names = ["x" * 50, "Übergröße", "日本", "a|b"]
    picture = drawing.matrix(np.eye(4, dtype=int) * 1000, names)
    assert picture.shape[2] == 3
    summary = ge.confusion_matrix([0], [1], 4, names)
    assert "a\\|b" in arrays(summary)["x/table"][0].decode()


def test_pairs_out_of_range_are_told():
    summary = ge.confusion_matrix([0, 5, -1, 1], [0, 0, 0, 2], 3)
    remark = summary_values.remark("x", seen(summary))
    assert remark.startswith("confusion_matrix 'x' leaves out 2 pairs")
    summary = ge.pr_curve([0, 1, 2, 1], [0.5, -3.0, 0.5, np.nan])
    remark = summary_values.remark("x", seen(summary))
    assert remark.startswith("pr_curve 'x' leaves out 3 pairs")


def test_the_worst_loss_is_one_that_is_no_number():
    x = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1)
    loss = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    state = seen(ge.image(x, 3, highest=loss)).state
    assert state["pixels"].ravel().tolist() == [1, 2, 0]
