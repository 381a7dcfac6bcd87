"""Updates by kernels that lock agree with Keras'."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from gin_estimator.contract.train_op import TrainOp
from gin_estimator.servers.locked_updates import lock
from gin_estimator.train.rows import RowOptimizer

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


def test_lazy_adam_is_refused():
    optimizer, variables = make("Adam", {}, locked=False)
    with pytest.raises(ValueError, match="with lazy=True: expected one of"):
        lock(TrainOp(optimizer, variables, lazy=True), tf.distribute.get_strategy())


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


@pytest.mark.parametrize("name", ["Nadam", "Lion", "Lamb", "Adafactor", "Muon"])
def test_what_would_lose_updates_is_refused(name):
    if not hasattr(keras.optimizers, name):
        pytest.skip(f"this Keras has no {name}")
    with pytest.raises(ValueError, match="allow_lost_updates = True"):
        make(name, {}, locked=True)


def test_averages_of_keras_are_refused():
    with pytest.raises(ValueError, match="with use_ema: expected none"):
        make("Adam", {"use_ema": True}, locked=True)


def test_a_subclass_is_refused():
    class Mine(keras.optimizers.SGD):
        """Could have any update."""

    with pytest.raises(ValueError, match="is Mine on parameter servers, expected one of"):
        lock(TrainOp(Mine(), [keras.Variable([1.0])]), tf.distribute.get_strategy())


def test_a_constraint_is_refused():
    dense = keras.layers.Dense(2, kernel_constraint="non_neg")
    dense.build([None, 3])
    optimizer = keras.optimizers.SGD()
    optimizer.build(dense.trainable_variables)
    with pytest.raises(ValueError, match="a variable has a constraint"):
        lock(TrainOp(optimizer, dense.trainable_variables), tf.distribute.get_strategy())
