"""The lines of the table of names compute what TensorFlow 1's functions did."""

import json
import math
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.moving import table
from tests.sources import ROOT

v1 = tf.compat.v1
ROWS = table.rows()
GOLDEN = json.loads(
    pathlib.Path(__file__).with_name("tf_estimator.json").read_text(encoding="utf-8")
)
rng = np.random.default_rng(3)
CLASSES = rng.integers(0, 3, 40)
LOGITS = rng.normal(size=(40, 3)).astype(np.float32)
DATA = {
    "classes": CLASSES,
    "onehot": np.eye(3, dtype=np.float32)[CLASSES],
    "logits": LOGITS,
    "labels": rng.integers(0, 2, 40).astype(np.float32),
    "predictions": rng.uniform(0.01, 0.99, 40).astype(np.float32),
    "values": rng.uniform(size=40).astype(np.float32),
    "normalizer": np.full(40, 2, np.float32),
}
NAMES = {"ge": ge, "keras": keras, "tf": tf, "math": math}


def written(name, **values):
    """What the row's line makes; of an assignment, its value."""
    line = ROWS[name].write.removeprefix("loss = ")
    return eval(line, {**NAMES, **values})


def graph(build, steps=0):
    """The value of a tensor of TensorFlow 1 after so many runs of an operation."""
    with tf.Graph().as_default(), v1.Session() as session:
        value, update = build()
        session.run([v1.global_variables_initializer()])
        session.run(v1.local_variables_initializer())
        for _ in range(steps):
            session.run(update)
        return session.run(value)


# The calls that the lines of the table stand for.
OPTIMIZERS = {
    "tf.train.AdamOptimizer": lambda: v1.train.AdamOptimizer(0.1),
    "tf.train.AdagradOptimizer": lambda: v1.train.AdagradOptimizer(0.1),
    "tf.train.AdadeltaOptimizer": lambda: v1.train.AdadeltaOptimizer(0.1),
    "tf.train.FtrlOptimizer": lambda: v1.train.FtrlOptimizer(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.01
    ),
    "tf.train.GradientDescentOptimizer": lambda: v1.train.GradientDescentOptimizer(0.1),
    "tf.train.MomentumOptimizer": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "tf.train.RMSPropOptimizer": lambda: v1.train.RMSPropOptimizer(0.1),
}
START = [1.0, -2.0, 3e-4, 0.5]


def moved_there(make, steps=5):
    def build():
        variable = v1.get_variable("w", initializer=tf.constant(START))
        loss = tf.reduce_sum(variable**2 * [1.0, 2.0, 1.0, 1e-6])
        return variable, make().minimize(loss)

    return graph(build, steps)


def moved_here(optimizer, steps=5):
    variable = tf.Variable(START)
    optimizer.build([variable])
    for _ in range(steps):
        gradient = 2 * variable * [1.0, 2.0, 1.0, 1e-6]
        optimizer.apply([gradient])
    return variable.numpy()


@pytest.mark.parametrize("name", sorted({*OPTIMIZERS} - {"tf.train.RMSPropOptimizer"}))
def test_an_optimizer_moves_as_there(name):
    here = moved_here(written(name))
    np.testing.assert_allclose(here, moved_there(OPTIMIZERS[name]), 2e-5, 1e-7)


LEGACY = {  # Five steps of those of TensorFlow 2.15.1.
    "Adadelta(0.1)": [0.999279, -1.99928, 1.03877e-4, 0.5],
    "Adagrad(0.1)": [0.699769, -1.6869, 2.01224e-6, 0.499998],
    "Adam(0.1)": [0.507965, -1.50296, 0.0654505, 0.337514],
    "Adamax(0.1)": [0.551554, -1.52578, 0.0553955, 0.128807],
    "Ftrl(0.1, l1_regularization_strength=0.01)": [0.561167, -1.61136, 0.0, 0.0],
    "RMSprop(0.1, epsilon=1e-14)": [0.199795, -1.04893, -5.05965e-7],
    "SGD(0.1, momentum=0.9)": [-0.58042, 1.458, -1.74126e-4, 0.499999],
    "SGD(0.1, clipnorm=0.5)": [0.937898, -1.75784, 2.81369e-4, 0.5],
}


@pytest.mark.parametrize("made", LEGACY)
def test_a_legacy_optimizer_moves_as_there(made):
    here = moved_here(eval(f"keras.optimizers.{made}"))
    there = LEGACY[made]
    np.testing.assert_allclose(here[: len(there)], there, 1e-5, 1e-5)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_with_a_schedule_is_the_optimizer_of_the_page(nesterov):
    def build():
        variable = v1.get_variable("w", initializer=tf.constant(START))
        loss = tf.reduce_sum(variable**2 * [1.0, 2.0, 1.0, 1e-6])
        step = v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(0.1, step, 10, 0.5, staircase=True)
        return variable, v1.train.MomentumOptimizer(rate, 0.9).minimize(loss, step)

    page = (ROOT / "docs/from_tf_optimizers.md").read_text(encoding="utf-8")
    names = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    here = moved_here(names["optimizer"], 15)
    np.testing.assert_allclose(here, graph(build, 15), 2e-5, 1e-7)


def test_rmsprop_starts_elsewhere():
    """The average of squares starts at 1 there, at 0 in Keras."""
    name = "tf.train.RMSPropOptimizer"
    there = np.abs(moved_there(OPTIMIZERS[name], 1) - START)[0]
    here = np.abs(moved_here(written(name), 1) - START)[0]
    gradient = 2.0
    assert there == pytest.approx(0.1 * gradient / math.sqrt(0.9 + 0.1 * gradient**2))
    assert here == pytest.approx(0.1 / math.sqrt(0.1), rel=1e-5)


RATES = {
    "tf.train.exponential_decay": lambda s: v1.train.exponential_decay(
        0.1, s, 10, 0.5, staircase=True
    ),
    "tf.train.natural_exp_decay": lambda s: v1.train.natural_exp_decay(0.1, s, 10, 0.5),
    "tf.train.inverse_time_decay": lambda s: v1.train.inverse_time_decay(
        0.1, s, 10, 0.5
    ),
    "tf.train.polynomial_decay": lambda s: v1.train.polynomial_decay(
        0.1, s, 10, 0.001, power=2.0
    ),
    "tf.train.piecewise_constant": lambda s: v1.train.piecewise_constant(
        s, [5, 10], [0.1, 0.01, 0.001]
    ),
    "tf.train.piecewise_constant_decay": lambda s: v1.train.piecewise_constant_decay(
        s, [5, 10], [0.1, 0.01, 0.001]
    ),
    "tf.train.cosine_decay": lambda s: v1.train.cosine_decay(0.1, s, 10, alpha=0.1),
    "tf.train.cosine_decay_restarts": lambda s: v1.train.cosine_decay_restarts(
        0.1, s, 10
    ),
}


@pytest.mark.parametrize("name", RATES)
def test_a_rate_is_as_there(name):
    steps = (0, 5, 6, 10, 13)
    there = graph(
        lambda: ([RATES[name](tf.constant(s, tf.int64)) for s in steps], tf.no_op())
    )
    here = written(name)
    np.testing.assert_allclose([float(here(s)) for s in steps], there, 1e-5)


LOSSES = {
    "tf.losses.softmax_cross_entropy": ("onehot", "logits"),
    "tf.losses.sparse_softmax_cross_entropy": ("classes", "logits"),
    "tf.losses.sigmoid_cross_entropy": ("onehot", "logits"),
    "tf.losses.mean_squared_error": ("labels", "predictions"),
    "tf.losses.absolute_difference": ("labels", "predictions"),
    "tf.losses.huber_loss": ("labels", "predictions"),
    "tf.losses.log_loss": ("labels", "predictions"),
    "tf.losses.hinge_loss": ("onehot", "logits"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_as_there(name):
    function = getattr(v1.losses, name.rpartition(".")[2])
    there = function(*(tf.constant(DATA[key]) for key in LOSSES[name]))
    here = written(name, **{k: tf.constant(DATA[k]) for k in LOSSES[name]})
    np.testing.assert_allclose(np.mean(here), there, 1e-5)


def test_unit_vectors_and_the_cosine():
    x, y = (tf.math.l2_normalize(LOGITS + c, axis=-1) for c in (0.0, 1.0))
    there = v1.losses.cosine_distance(y, x, axis=-1)
    here = written("tf.losses.cosine_distance", labels=y, predictions=x)
    np.testing.assert_allclose(np.mean(here), there, 1e-5)


@pytest.mark.parametrize(("scale", "same"), [(1.0, True), (0.5, False)])
def test_weights_of_zero_and_one_give_the_same(scale, same):
    weights = scale * DATA["labels"]
    loss = (DATA["predictions"] - DATA["values"]) ** 2
    there = v1.losses.mean_squared_error(DATA["values"], DATA["predictions"], weights)
    here = np.sum(loss * weights) / np.sum(weights)
    assert (here == pytest.approx(float(there))) == same


def test_the_mean_is_over_the_weights_that_are_not_0():
    weights = tf.constant(1.5 * DATA["labels"])
    loss = (DATA["predictions"] - DATA["values"]) ** 2
    spec = written(
        "tf.losses.compute_weighted_loss",
        mode="eval",
        loss=tf.constant(loss),
        weights=weights,
        train_op=None,
    )
    there = v1.losses.compute_weighted_loss(loss, weights)
    here = tf.reduce_sum(spec.loss * spec.loss_weights) / tf.reduce_sum(
        spec.loss_weights
    )
    np.testing.assert_allclose(here, there, 1e-6)


def test_an_l2_loss_is_half_the_sum():
    x = DATA["values"]
    half = 0.1 * float(tf.nn.l2_loss(x))
    regularizer = written("tf.contrib.layers.l2_regularizer", scale=0.1)
    assert float(regularizer(tf.constant(x))) == pytest.approx(half)


METRICS = {
    "tf.metrics.auc": ("labels", "predictions"),
    "tf.metrics.mean": ("values",),
    "tf.metrics.mean_squared_error": ("labels", "predictions"),
    "tf.metrics.root_mean_squared_error": ("labels", "predictions"),
    "tf.metrics.mean_absolute_error": ("labels", "predictions"),
    "tf.metrics.mean_relative_error": ("labels", "predictions", "normalizer"),
    "tf.metrics.precision_at_thresholds": ("labels", "predictions", (0.3, 0.7)),
    "tf.metrics.recall_at_thresholds": ("labels", "predictions", (0.3, 0.7)),
    **{
        f"tf.metrics.{truth}_{sign}_at_thresholds": (
            "labels",
            "predictions",
            (0.3, 0.7),
        )
        for truth in ("true", "false")
        for sign in ("positives", "negatives")
    },
    "tf.metrics.sparse_precision_at_k": ("classes", "logits", 2),
    "tf.metrics.percentage_below": ("values", 0.5),
    "tf.metrics.recall_at_k": ("classes", "logits", 2),
    "tf.metrics.precision_at_k": ("classes", "logits", 2),
}
# Of classes as numbers.
BY_CLASS = ("accuracy", "precision", "recall", "mean_iou") + tuple(
    f"{truth}_{sign}"
    for truth in ("true", "false")
    for sign in ("positives", "negatives")
)


# A last batch that is smaller: a mean of batches' means would be another number.
BATCHES = (slice(0, 25), slice(25, 40))


def measured_there(name, data, arguments):
    function = getattr(v1.metrics, name.rpartition(".")[2])
    with tf.Graph().as_default(), v1.Session() as session:
        batch = {
            k: v1.placeholder(v.dtype, [None, *v.shape[1:]]) for k, v in data.items()
        }
        given = [batch[a] if isinstance(a, str) else a for a in arguments]
        value, update = function(*given)
        session.run(v1.local_variables_initializer())
        for part in BATCHES:
            session.run(update, {batch[k]: v[part] for k, v in data.items()})
        return session.run(value)


def measured_here(name, data):
    metric = None
    for part in BATCHES:
        made = written(name, **{k: tf.constant(v[part]) for k, v in data.items()})
        metric = metric or made.factory()
        metric.update_state(*made.args)
    return np.asarray(metric.result())


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_as_there(name):
    there = measured_there(name, DATA, METRICS[name])
    np.testing.assert_allclose(measured_here(name, DATA), there, 2e-5)


@pytest.mark.parametrize("name", [f"tf.metrics.{name}" for name in BY_CLASS])
def test_a_metric_of_classes_is_as_there(name):
    predictions = np.where(rng.uniform(size=40) < 0.7, DATA["labels"], 0)
    data = {"labels": DATA["labels"], "predictions": predictions.astype(np.float32)}
    arguments = ["labels", "predictions"]
    if name.endswith("mean_iou"):
        data = {key: value.astype(np.int64) for key, value in data.items()}
        arguments.append(3)
    there = measured_there(name, data, arguments)
    np.testing.assert_allclose(measured_here(name, data), there, 1e-5)


def test_the_moving_variance_of_a_fused_batch():
    """TensorFlow 1 took N/(N-1) times the variance of images into its average."""
    images = tf.constant(rng.normal(size=(4, 2, 2, 3)).astype(np.float32))
    _, _, there = v1.nn.fused_batch_norm(images, tf.ones(3), tf.zeros(3))
    layer = written("tf.layers.batch_normalization")
    layer(images, training=True)
    here = (np.asarray(layer.moving_variance) - 0.99) / 0.01
    np.testing.assert_allclose(here * 16 / 15, there, 1e-3)


LAYERS = {
    f"tf.layers.{name}": case
    for name, case in GOLDEN["layers"].items()
    if name != "conv3d_transpose"
}
LAYERS["tf.layers.Conv3DTranspose"] = GOLDEN["layers"]["conv3d_transpose"]


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_starts_and_computes_as_there(name):
    """By the class of the row's line, with the original's own arguments."""
    case = LAYERS[name]
    keras.utils.set_random_seed(2)
    layer = type(written(name))(**case["arguments"])
    x = values(case["input"])
    layer(x)
    assert [list(w.shape) for w in layer.weights] == case["shapes"]
    largest = [float(np.abs(w).max()) for w in layer.weights]
    np.testing.assert_allclose(largest, case["largest"], rtol=0.1)
    layer.set_weights([values(shape) for shape in case["shapes"]])
    shape, output = case["output"]
    assert list(layer(x).shape) == shape
    np.testing.assert_allclose(np.ravel(layer(x))[:20], output, 1e-4, 1e-4)


def values(shape):
    """Numbers that are no two alike, those of the script that wrote the goldens."""
    count = int(np.prod(shape))
    return np.sin(np.arange(count, dtype=np.float32)).reshape(shape)


def test_layer_normalization():
    """By the written epsilon over the last axis, which is all axes of a matrix."""
    here = written("tf.contrib.layers.layer_norm")(LOGITS)
    mean, variance = LOGITS.mean(1, keepdims=True), LOGITS.var(1, keepdims=True)
    np.testing.assert_allclose(here, (LOGITS - mean) / np.sqrt(variance), 1e-4, 1e-5)
