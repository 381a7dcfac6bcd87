"""Updates by kernels that lock agree with Keras'."""

import functools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from gin_estimator.contract.train_op import TrainOp
from gin_estimator.servers.locked_updates import lock
from gin_estimator.train.row_updates import RowOptimizer
from refusals import refused

pytestmark = pytest.mark.oldest

CASES = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adagrad", {}),
    ("Ftrl", {"l1_regularization_strength": 0.01, "l2_regularization_strength": 0.02}),
    ("Ftrl", {"beta": 0.1, "l2_shrinkage_regularization_strength": 0.03}),
    ("Adam", {}),
    ("Adam", {"amsgrad": True, "clipnorm": 0.5}),
    ("AdamW", {"weight_decay": 0.1}),
    ("Adamax", {}),
    ("Adadelta", {"learning_rate": 1.0}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
]


def make(name, options, *, locked):
    rng = np.random.default_rng(0)
    variables = [keras.Variable(rng.normal(size=shape), name="v") for shape in ((4, 3), (5,))]
    optimizer = getattr(keras.optimizers, name)(**{"learning_rate": 0.05, **options})
    optimizer.build(variables)
    if locked:
        lock(TrainOp(optimizer, variables), tf.distribute.get_strategy())
    return optimizer, variables


@pytest.mark.thin
@pytest.mark.parametrize("name, options", CASES)
def test_twenty_updates_are_those_of_keras(name, options):
    results = []
    for locked in (False, True):
        rng = np.random.default_rng(1)
        optimizer, variables = make(name, options, locked=locked)
        for _ in range(20):
            gradients = [tf.constant(rng.normal(size=v.shape), tf.float32) for v in variables]
            optimizer.apply(gradients, variables)
        results.append([np.asarray(v) for v in [*variables, *optimizer.variables]])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


BY_ROWS = [
    ("SGD", {"weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9}),
    ("Adagrad", {}),
    ("Ftrl", {"beta": 0.1}),
    ("Adadelta", {"learning_rate": 1.0}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
]


@pytest.mark.oldest
@pytest.mark.parametrize("name, options", BY_ROWS)
def test_updates_of_rows_are_those_of_keras_on_rows(name, options):
    results = []
    for locked in (False, True):
        rng = np.random.default_rng(1)
        optimizer, [variable, _] = make(name, options, locked=False)
        op = TrainOp(optimizer, [variable], lazy=True)
        rows = RowOptimizer(op)
        if locked:
            lock(op, tf.distribute.get_strategy())
        for _ in range(10):
            values = tf.constant(rng.normal(size=[2, 3]), tf.float32)
            rows.apply(
                [tf.IndexedSlices(values, tf.constant([3, 1]), tf.constant([4, 3]))], [variable]
            )
        results.append([np.asarray(v) for v in [variable, *optimizer.variables]])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("by_rows", [False, True])
def test_threads_lose_no_update(by_rows):
    variable = keras.Variable(np.zeros([1000, 100]), name="v")
    optimizer = keras.optimizers.Adagrad(1.0, initial_accumulator_value=0.0)
    optimizer.build([variable])
    lock(TrainOp(optimizer, [variable]), tf.distribute.get_strategy())
    ones = tf.ones(variable.shape)
    if by_rows:
        ones = tf.IndexedSlices(ones, tf.range(1000), tf.constant([1000, 100]))

    @tf.function(autograph=False)
    def update():
        optimizer.update_step(ones, variable.value, 1.0)

    threads = [threading.Thread(target=lambda: [update() for _ in range(50)]) for _ in range(4)]
    update()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.all(np.asarray(optimizer.variables[-1]) == 201)


class Mine(keras.optimizers.SGD):
    """Could have any update."""


def constrained():
    dense = keras.layers.Dense(2, kernel_constraint="non_neg")
    dense.build([None, 3])
    optimizer = keras.optimizers.SGD()
    optimizer.build(dense.trainable_variables)
    return TrainOp(optimizer, dense.trainable_variables)


def op(name, options=(), **more):
    return TrainOp(*make(name, dict(options), locked=False), **more)


OTHERS = ["Nadam", "Lion", "Lamb", "Adafactor", *["Muon"] * hasattr(keras.optimizers, "Muon")]

test_what_would_lose_updates_is_refused = refused(
    lambda make_op: lock(make_op(), tf.distribute.get_strategy()),
    (lambda: op("Adam", lazy=True), "with lazy=True: expected one of"),
    (lambda: op("Adam", {"use_ema": True}), "with use_ema: expected none"),
    (
        lambda: TrainOp(Mine(), [keras.Variable([1.0])]),
        "is Mine on parameter servers, expected one",
    ),
    (constrained, "a variable has a constraint"),
    *((functools.partial(op, name), "allow_lost_updates = True") for name in OTHERS),
)
