"""What the trace of a model_fn shows: summaries that nobody writes, sums for means."""

import keras
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline import trace_checks
from tests import mistakes

WEIGHTS = tf.Variable([1.0, 2.0, 3.0])


def traced(fn, rows=None):
    """What is said of a model_fn that returns `fn(x, y)` as its loss."""
    specs = []

    @tf.function(autograph=False)
    def trace(x, y):
        specs.append(ge.EstimatorSpec("eval", loss=fn(x, y)))

    shape = tf.TensorSpec([rows, 3])
    graph = trace.get_concrete_function(shape, shape).graph
    return list(trace_checks.remarks(graph, specs[0], rows))


SUMS = {
    "reduce_sum": lambda x, y: tf.reduce_sum((x - y) ** 2),
    "by steps": lambda x, y: tf.reduce_sum(tf.reduce_mean(x - y, 1)),
    "with a penalty": lambda x, y: tf.reduce_sum(x - y) + tf.nn.l2_loss(WEIGHTS),
    "half": lambda x, y: 0.5 * tf.reduce_sum(tf.square(x - y)),
    "l2_loss": lambda x, y: tf.nn.l2_loss(x - y),
    "keras": lambda x, y: keras.losses.MeanSquaredError(reduction="sum")(y, x),
    "einsum over classes": lambda x, y: tf.reduce_sum(tf.einsum("bi,bi->b", x, y)),
}
MEANS = {
    "mean": lambda x, y: tf.reduce_mean(x - y),
    "quotient": lambda x, y: tf.reduce_sum(x - y) / tf.cast(tf.shape(x)[0], x.dtype),
    "constant": lambda x, y: tf.reduce_sum(x - y) * (1 / 8),
    "average": lambda x, y: tf.nn.compute_average_loss(x[:, 0], global_batch_size=8),
    "keras": lambda x, y: keras.losses.MeanSquaredError()(y, x),
    "with a penalty": lambda x, y: tf.reduce_mean(x) + tf.nn.l2_loss(WEIGHTS),
    "by example": lambda x, y: tf.reduce_sum(x - y, 1),
    "over classes": lambda x, y: tf.reduce_sum(tf.reduce_mean(x - y, 0)),
}


@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_the_batch_is_said(name, rows):
    (text,) = traced(SUMS[name], rows)
    assert text.startswith("loss is a scalar that is summed over the batch (by ")
    assert "Return the losses by example, [batch, ...]" in text


@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_not(name, rows):
    assert traced(MEANS[name], rows) == []


def with_summaries(x, y):
    tf.summary.scalar("accuracy/top", tf.reduce_mean(y), step=1)
    tf.summary.histogram("weights", x, step=1)
    tf.compat.v1.summary.scalar("old", tf.reduce_mean(x))
    return tf.reduce_mean(x)


def test_summaries_that_nobody_writes_are_said(tmp_path):
    pytest.importorskip("tensorboard")
    (text,) = traced(with_summaries)
    assert text.startswith("tf.summary of accuracy/top, weights, old in model_fn is")
    assert "scalars={'accuracy/top': value})" in text


def test_a_writer_of_ones_own_is_none_of_that(tmp_path):
    pytest.importorskip("tensorboard")

    def fn(x, y):
        tf.summary.scalar("accuracy", tf.reduce_mean(y), step=1)
        return tf.reduce_mean(x)

    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        assert traced(fn) == []


def test_an_optimizer_is_itself_again_after_the_trace():
    optimizer, plain = keras.optimizers.SGD(), keras.optimizers.SGD()
    optimizer.apply = applies = lambda *args: None
    with trace_checks.no_updates([optimizer, plain, plain]):
        for each in (optimizer, plain):
            with pytest.raises(ge.SpecError, match="applies gradients by an optimizer"):
                each.apply([])
    assert optimizer.apply is applies
    assert "apply" not in vars(plain)


def test_it_is_said_once(tmp_path, caplog):
    model_fn = mistakes.changed(loss=lambda logits: tf.reduce_sum(logits**2))
    estimator = mistakes.train(tmp_path, model_fn=model_fn)
    estimator.train(mistakes.data(), steps=1)
    assert caplog.text.count("loss is a scalar that is summed over the batch") == 1
