"""A step that tells where NaN and Inf come from, and which examples bring them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints.holding import Snapshot
from pipeline.driver.runtime import Runtime
from pipeline.rescue import suspects
from pipeline.rescue.traced_step import TracedStep
from tests import fakes

NO_SCALE = [1.0]


@tf.function
def ratio(above, below):
    return above / below


def any_fn(features, labels, mode, network, optimizer):
    """Takes all kinds of features; what is not finite depends on them."""
    assert labels is None
    x = features["x"]
    out = network(x, training=True)
    keys = tf.where([True, True, False], out, -np.inf)  # A mask's -Inf is meant.
    _, grown = tf.while_loop(
        lambda i, _: i < 3, lambda i, y: (i + 1, y * y), (0, features["start"])
    )
    dense = tf.ensure_shape(tf.sparse.reduce_sum(features["sparse"], 1), [4])
    loss = tf.reduce_sum(tf.nn.softmax(keys), 1) + tf.reduce_sum(features["words"], 1)
    # Its gradient is infinite at 0.
    size = tf.sqrt(tf.reduce_sum(tf.square(tf.matmul(x, network.layers[0].kernel)), 1))
    return ge.EstimatorSpec(
        mode,
        loss=loss + size + grown + ratio(1.0, dense),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
    )


def features(**changed):
    x = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    given = {
        "x": tf.constant(x),
        "text": tf.constant(["a", "b", "c", "d"]),
        "words": tf.ragged.constant([[1.0], [], [2.0, 3.0], [4.0]]),
        "sparse": tf.sparse.from_dense([[0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [1, 0]]),
        "start": tf.ones([4]),
    }
    return {**given, **changed}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    layers = keras.layers
    estimator = fakes.make_estimator(
        tmp_path_factory.mktemp("any"),
        model_fn=any_fn,
        network=lambda: keras.Sequential(
            [
                layers.Dense(3, name="dense"),
                layers.BatchNormalization(),
                layers.Dropout(0.2),
                layers.Dense(3, name="dense_1"),
            ]
        ),
    )
    runtime = Runtime(estimator.recipe, tf.distribute.get_strategy())
    specs = {n: tf.type_spec_from_value(v) for n, v in features().items()}
    runtime.build("train", runtime.bound("train"), (specs, None))
    return runtime


@pytest.fixture(scope="module")
def step(runtime):
    return TracedStep(runtime.bound("train"), runtime.modules, features())


def alone(step, element):
    def is_bad(rows):
        part = suspects.repeated(element, rows, 4)
        return not step.is_finite(step(part, NO_SCALE))

    return suspects.guilty(is_bad, 4).alone


def test_a_gradient_of_a_finite_loss(step):
    x = features()["x"].numpy()
    x[2] = 0
    element = features(x=tf.constant(x))
    seen = step(element, NO_SCALE)
    cause = step.cause(seen)
    assert np.isfinite(seen.loss) and np.isfinite(seen.each).all()
    assert cause.where == ("gradient of network/dense/kernel",)
    first, nan = cause.operation, cause.nan
    assert (first.kind, first.gradient_of, first.layer) == ("SqrtGrad", "Sqrt", None)
    assert "size = tf.sqrt(tf.reduce_sum(" in first.lines[1]
    assert first.lines[0].endswith("in any_fn")
    assert (first.inputs[0].lowest, first.outputs[0].num_inf) == (0, 1)
    assert (nan.kind, nan.gradient_of) == ("Mul", "Square")
    assert alone(step, element) == (2,)


def test_an_operation_of_a_function_of_the_users(step):
    sparse = tf.sparse.from_dense([[0.0, 1.0], [1.0, -1.0], [2.0, 0.0], [0, 0]])
    element = features(sparse=sparse)
    cause = step.cause(step(element, NO_SCALE))
    assert (cause.where, cause.operation.kind) == (("loss",), "RealDiv")
    assert "return above / below" in cause.operation.lines[-1]
    assert alone(step, element) == (1, 3)


def test_a_loop_is_one_operation(step):
    start = features(start=tf.constant([1.0, 1.0, 1.0, 1e30]))
    cause = step.cause(step(start, NO_SCALE))
    assert "While" in cause.operation.kind
    assert cause.operation.inputs[0].name == "features['start']"
    assert str(cause.operation.inputs[0]) == "features['start'] float32 [4]: 1 to 1e+30"


def test_what_the_batch_held(step):
    x = features()["x"].numpy()
    x[3, 1] = np.inf
    words = tf.ragged.constant([[1.0], [], [2.0, np.nan], [4.0]])
    element = features(x=tf.constant(x), words=words)
    cause = step.cause(step(element, NO_SCALE))
    assert cause.held == ("features['x'], example 3", "features['words']")
    assert cause.operation is None
    assert alone(step, element) == (2, 3)


def test_what_the_weights_held(step, runtime):
    before = Snapshot(runtime.modules)
    runtime.modules.named_variables()["network/dense/bias"].assign([0.0, np.nan, 0.0])
    cause = step.cause(step(features(), NO_SCALE))
    before.put(runtime.modules)
    assert cause.held == ("network/dense/bias",)


@pytest.mark.parametrize("layer", ["network/dense", "network/dense_1"])
def test_the_layer_of_an_operation(step, runtime, layer):
    before = Snapshot(runtime.modules)
    kernel = runtime.modules.named_variables()[f"{layer}/kernel"]
    kernel.assign(tf.fill(kernel.shape, 3e38))
    cause = step.cause(step(features(x=10 * features()["x"]), NO_SCALE))
    before.put(runtime.modules)
    assert (cause.operation.kind, cause.operation.layer) == ("MatMul", layer)
    assert f"{layer}/kernel" in [values.name for values in cause.operation.inputs]
    assert "out = network(x, training=True)" in cause.operation.lines[-1]


def test_a_finite_step_and_nothing_changes(step, runtime):
    before = Snapshot(runtime.modules)._values
    seen = step(features(), NO_SCALE)
    assert step.cause(seen) is None
    # The random numbers are the same again.
    again = step(features(), NO_SCALE)
    np.testing.assert_array_equal(again.stats, seen.stats)
    for name, value in Snapshot(runtime.modules)._values.items():
        np.testing.assert_array_equal(value, before[name])
    with tf.GradientTape() as tape:
        spec = runtime.bound("train")(features(), None, tf.zeros([], tf.int64))
        loss = tf.reduce_mean(spec.loss)
    variables = runtime.modules.by_name["network"].trainable_variables
    norms = [float(tf.norm(g)) for g in tape.gradient(loss, variables)]
    norm = "batch_normalization"
    names = ["dense/kernel", "dense/bias", f"{norm}/gamma", f"{norm}/beta"]
    names = [f"network/{n}" for n in [*names, "dense_1/kernel", "dense_1/bias"]]
    found = step.norms(seen, NO_SCALE)
    assert [found[name] for name in names] == pytest.approx(norms, rel=1e-4)
    assert float(seen.loss) == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize(
    ("bad", "alone", "together", "complete"),
    [
        ({5}, (5,), (), True),
        ({0, 6}, (0, 6), (), True),
        (set(range(7)), (0, 1, 2, 3, 4), (), False),
    ],
)
def test_examples_are_found_by_halves(bad, alone, together, complete):
    found = suspects.guilty(lambda rows: bool(bad & {*rows}), 7, most_runs=10)
    assert (found.alone, found.together) == (alone, together)
    assert found.complete == complete


def test_examples_that_do_it_together():
    found = suspects.guilty(lambda rows: {1, 4} <= {*rows} or 5 in rows, 6)
    assert (found.alone, found.together) == ((5,), ())
    found = suspects.guilty(lambda rows: {1, 4} <= {*rows}, 6)
    assert found.together == ((0, 1, 2, 3, 4, 5),)
    assert "not finite together, and no half of them" in list(found.lines())[0]
