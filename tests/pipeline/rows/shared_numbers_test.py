"""What an update of many variables reads once, against Keras' own updates."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import TrainOp
from pipeline.rows.optimizers import RowOptimizer

K = keras.optimizers
SHAPES = (4, 3), (3,)
RNG = np.random.default_rng(0)
GRADIENTS = [[RNG.normal(size=s).astype("float32") for s in SHAPES] for _ in range(3)]
DECAYING = K.schedules.ExponentialDecay(0.1, 2, 0.5)
MADE = [
    lambda: K.SGD(0.1, momentum=0.9, nesterov=True),
    lambda: K.Adagrad(DECAYING),
    lambda: K.Ftrl(0.1),
    lambda: K.Adam(0.1, amsgrad=True, use_ema=True),
    lambda: K.RMSprop(0.1, centered=True, momentum=0.5),
    lambda: K.Nadam(0.1),
    lambda: K.Adamax(lambda: 0.1),
    lambda: K.Lion(0.1, weight_decay=0.1),
    lambda: K.Adadelta(0.1),
    lambda: K.Adafactor(0.1),
    lambda: K.AdamW(DECAYING, clipnorm=0.5),
    lambda: Counting(0.1),
]


class Counting(K.SGD):
    """An own formula, which assigns in a way that Keras' formulas do not."""

    def build(self, variables):
        super().build(variables)
        self.updates = self.add_variable((), dtype="int32", name="updates")

    def update_step(self, gradient, variable, learning_rate):
        self.updates.assign(self.updates + 1)
        super().update_step(gradient, variable, learning_rate)


def after_updates(strategy, made, *, by_keras):
    """All values of all optimizers and their variables, after some updates."""
    with strategy.scope():
        made = [each() for each in made]
        trained = [[tf.Variable(tf.ones(s)) for s in SHAPES] for _ in made]
        for optimizer, variables in zip(made, trained, strict=True):
            optimizer.build(variables)
            optimizer._all_reduce_sum_gradients = list
    pairs = list(zip(made, trained, strict=True))
    apply = [
        each.apply if by_keras else RowOptimizer([TrainOp(each, of)], strategy).apply
        for each, of in pairs
    ]

    @tf.function(autograph=False)
    def update(gradients):
        def on_replica():
            for applied, of in zip(apply, trained, strict=True):
                applied(gradients, of)

        strategy.run(on_replica)

    for gradients in GRADIENTS:
        update([tf.constant(each) for each in gradients])
    return [[v.numpy() for v in [*o.variables, *of]] for o, of in pairs]


@pytest.mark.parametrize(("devices", "made"), [(1, MADE), (2, MADE[-3:])])
def test_updates_are_those_of_keras_to_the_last_bit(devices, made):
    strategy = tf.distribute.get_strategy()
    if devices == 2:
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    expected = after_updates(strategy, made, by_keras=True)
    found = after_updates(strategy, made, by_keras=False)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def reads(graph, variable):
    """How often a graph reads a variable."""
    inside = next(i for x, i in graph.captures if x is variable.handle)
    return sum(op.type == "ReadVariableOp" for op in inside.consumers())


def test_numbers_are_read_once_for_all_variables():
    optimizer, variables = K.Adam(0.1), [tf.Variable(tf.ones(s)) for s in SHAPES]
    optimizer.build(variables)
    apply = RowOptimizer(
        [TrainOp(optimizer, variables)], tf.distribute.get_strategy()
    ).apply

    @tf.function(autograph=False)
    def update():
        apply([tf.ones(s) for s in SHAPES], variables)

    graph = update.get_concrete_function().graph
    assert reads(graph, optimizer.learning_rate.value) == 1
    # Once more to count the update.
    assert reads(graph, optimizer.iterations.value) == 2
