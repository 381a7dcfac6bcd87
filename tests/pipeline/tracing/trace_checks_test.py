"""What the trace of a model_fn shows: summaries that nobody writes, sums for means."""

import keras
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.tracing import trace_checks
from tests import mistakes

WEIGHTS = tf.Variable([1.0, 2.0, 3.0])
# Too large for TensorFlow to keep within the trace.
LARGE = tf.ones([8, 300])


def traced(fn, rows=None):
    """What is said of a model_fn whose loss, or spec's fields, are `fn(x, y)`."""
    specs = []

    @tf.function(autograph=False)
    def trace(x, y):
        fields = fn(x, y)
        fields = fields if isinstance(fields, dict) else {"loss": fields}
        specs.append(ge.EstimatorSpec("eval", **fields))

    shape = tf.TensorSpec([rows, 3])
    graph = trace.get_concrete_function(shape, shape).graph
    return list(trace_checks.remarks(graph, specs[0], rows))


@tf.function
def nested(x, y):
    return tf.reduce_sum(tf.square(x - y))


@tf.function
def total(losses, count):
    return tf.identity(tf.reduce_sum(losses)) / count


@tf.function
def average(x, y):
    return tf.reduce_mean(x - y), tf.reduce_sum(x - y) / tf.cast(tf.size(x), x.dtype)


def rows_of(x):
    return tf.cast(tf.shape(x)[0], x.dtype)


def sum_of(x, y):
    return keras.losses.MeanSquaredError(reduction="sum")(y, x)


SUMS = {
    "reduce_sum": lambda x, y: tf.reduce_sum((x - y) ** 2),
    "by steps": lambda x, y: tf.reduce_sum(tf.reduce_mean(x - y, 1)),
    "with a penalty": lambda x, y: tf.reduce_sum(x - y) + tf.nn.l2_loss(WEIGHTS),
    "half": lambda x, y: 0.5 * tf.reduce_sum(tf.square(x - y)),
    "l2_loss": lambda x, y: tf.nn.l2_loss(x - y),
    "keras": sum_of,
    "einsum over classes": lambda x, y: tf.reduce_sum(tf.einsum("bi,bi->b", x, y)),
    "nested": nested,
    "nested twice": lambda x, y: total(tf.function(tf.square)(x - y), 16.0),
    "keras, nested": tf.function(sum_of),
    "by the global batch": lambda x, y: tf.reduce_sum(x - y) / 16,
    "average": lambda x, y: tf.nn.compute_average_loss(x[:, 0], global_batch_size=16),
    "times": lambda x, y: tf.reduce_sum(x - y) * (1 / 16),
    "a variable": lambda x, y: tf.reduce_sum(x - y) * WEIGHTS[0] / WEIGHTS[1],
    "cast": lambda x, y: tf.identity(tf.cast(tf.reduce_sum(x - y), tf.float64)),
    "one of two": lambda x, y: tf.add_n([tf.reduce_mean(x), tf.reduce_sum(y)]),
    "one of a list": lambda x, y: tf.reduce_sum([tf.reduce_mean(x), nested(x, y)]),
    "first over the batch": lambda x, y: tf.reduce_mean(tf.reduce_sum(x - y, 0)),
    "unless nan": lambda x, y: tf.where(x[0, 0] < 0, tf.reduce_sum(x), 0.0),
    "own gradient": lambda x, y: tf.custom_gradient(
        lambda v: (tf.reduce_sum(v), lambda up: up * tf.ones_like(v))
    )(x),
}
MEANS = {
    "mean": lambda x, y: tf.reduce_mean(x - y),
    "quotient": lambda x, y: tf.reduce_sum(x - y) / rows_of(x),
    "by weights": lambda x, y: tf.reduce_sum(x * y) / tf.reduce_sum(y),
    "no nan": lambda x, y: tf.math.divide_no_nan(tf.reduce_sum(x), rows_of(x)),
    "average": lambda x, y: tf.nn.compute_average_loss(x[:, 0]),
    "keras": lambda x, y: keras.losses.MeanSquaredError()(y, x),
    "keras, weighted": lambda x, y: keras.losses.MeanSquaredError()(
        y, x, sample_weight=y[:, 0]
    ),
    "with a penalty": lambda x, y: tf.reduce_mean(x) + tf.nn.l2_loss(WEIGHTS),
    "penalties": lambda x, y: tf.add_n(
        [tf.reduce_mean(x), tf.nn.l2_loss(WEIGHTS), 0.1 * tf.reduce_sum(WEIGHTS**2)]
    ),
    "by example": lambda x, y: tf.reduce_sum(x - y, 1),
    "of sums by example": lambda x, y: tf.reduce_mean(tf.reduce_sum(x - y, 1)),
    "over classes": lambda x, y: tf.reduce_sum(tf.reduce_mean(x - y, 0)),
    "of two": lambda x, y: tf.reduce_sum([tf.reduce_mean(x), tf.reduce_mean(y)]),
    "nested": lambda x, y: average(x, y)[1] + average(x, y)[0],
    "nested by rows": lambda x, y: total(x - y, rows_of(x)),
    "covariance": lambda x, y: tf.reduce_sum(tf.matmul(x, y, transpose_a=True)),
    "covariance, einsum": lambda x, y: tf.reduce_sum(tf.einsum("bi,bj->ij", x, y)),
    "large constant": lambda x, y: tf.reduce_mean(x) + tf.reduce_sum(LARGE),
}


@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_the_batch_is_said(name, rows):
    (text,) = traced(SUMS[name], rows)
    assert text.startswith("loss is a scalar that is summed over the batch (by ")
    assert "Write loss=per_example, [batch, ...], as it is before that sum" in text


@pytest.mark.parametrize("rows", [None, 8, 3])
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_not(name, rows):
    assert traced(MEANS[name], rows) == []


CROSSED = {
    "labels and a unit": lambda x, y: (x[:, 0] - tf.matmul(y, tf.ones([3, 1]))) ** 2,
    "a mean": lambda x, y: tf.reduce_mean((tf.matmul(y, y[:3, :1]) - x[:, 0]) ** 2),
    "a column": lambda x, y: tf.math.squared_difference(x[:, 0], y[:, :1]),
    "weights": lambda x, y: x[:, 0] * tf.reduce_mean(y, 1, keepdims=True),
}
PAIRS = {
    "new axis": lambda x, y: tf.reduce_mean((x[:, 0] - y[:, 0][:, None]) ** 2),
    "expanded": lambda x, y: tf.reduce_mean(x[:, 0] * tf.expand_dims(y[:, 0], 1)),
    "of one shape": lambda x, y: (x[:, :1] - y[:, :1]) ** 2,
    "keras": lambda x, y: keras.losses.MeanSquaredError()(x[:, 0], y[:, :1]),
    "a vector": lambda x, y: tf.reduce_mean(x[:, :1] * WEIGHTS, 1),
}


@pytest.mark.parametrize("rows", [None, 8])
@pytest.mark.parametrize("name", CROSSED)
def test_each_example_with_each_by_mistake_is_said(name, rows):
    (text,) = traced(CROSSED[name], rows)
    assert "it is computed of each example with each other one" in text
    assert "Write predictions[:, 0], or labels[:, None]" in text


@pytest.mark.parametrize("rows", [None, 8, 3])
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_on_purpose_are_not(name, rows):
    assert traced(PAIRS[name], rows) == []


@pytest.mark.parametrize("count", [8, 24])
def test_a_quotient_by_the_number_of_examples_is_a_mean(count):
    assert traced(lambda x, y: tf.reduce_sum(x - y) / count, 8) == []
    assert traced(lambda x, y: tf.reduce_sum(tf.reshape(x, [-1])) / count, 8) == []
    assert traced(lambda x, y: tf.reduce_sum(x - y) * (1 / count), 8) == []


def test_sums_in_other_fields_are_said():
    optimizer = keras.optimizers.SGD()

    def spec(x, y):
        each, sums = tf.reduce_mean(x - y, 1), tf.reduce_sum(x - y)
        op = ge.TrainOp(optimizer, [WEIGHTS], loss=sums)
        return {"loss": each, "train_op": op, "regularization_losses": [sums]}

    own, penalty = traced(spec)
    assert own.startswith("TrainOp.loss is a scalar that is summed over the batch")
    assert "Write TrainOp(..., loss=per_example), [batch, ...]" in own
    assert penalty.startswith("regularization_losses is a scalar that is summed")


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
    assert "summaries={'accuracy/top': histogram(x)}" in text


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
    modules = [optimizer, plain, plain]
    with trace_checks.no_updates(modules, owns=lambda variable: True):
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
