"""Updates of variables that several workers update, each at any time."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import TrainOp
from pipeline.rows.optimizers import RowOptimizer

K = keras.optimizers
IDS, WIDTH = 6, 2
RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(IDS, WIDTH)).astype(np.float32)
GRADIENTS = RNG.normal(size=(20, 3, WIDTH)).astype(np.float32)
ROWS = [RNG.permutation(IDS)[:3] for _ in GRADIENTS]
DIVIDING = {
    "adam": lambda: K.Adam(0.1),
    "adam_w": lambda: K.AdamW(0.1, weight_decay=0.1),
    "amsgrad": lambda: K.Adam(0.1, amsgrad=True),
    "nadam": lambda: K.Nadam(0.1),
    "adamax": lambda: K.Adamax(0.1),
    "rmsprop": lambda: K.RMSprop(0.1),
    "rmsprop_all": lambda: K.RMSprop(0.1, centered=True, momentum=0.5),
}
OTHERS = {
    "sgd": lambda: K.SGD(0.1, momentum=0.9),
    "adagrad": lambda: K.Adagrad(0.1),
    "ftrl": lambda: K.Ftrl(0.1),
}


def made(make_optimizer, *, lazy, shared):
    """Returns a variable, its optimizer, and what applies gradients of rows to it."""
    variable = keras.Variable(TABLE)
    optimizer = make_optimizer()
    optimizer.build([variable])
    rows = RowOptimizer(
        [TrainOp(optimizer, [variable], lazy=lazy)], tf.distribute.get_strategy()
    )
    # As on parameter servers, which are other processes.
    rows._shared = shared

    @tf.function(
        input_signature=[tf.TensorSpec([3, WIDTH]), tf.TensorSpec([3], "int64")]
    )
    def apply(values, ids):
        shape = tf.constant([IDS, WIDTH], tf.int64)
        rows.apply([tf.IndexedSlices(values, ids, shape)], [variable])

    return variable, optimizer, apply


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", [*DIVIDING, *OTHERS])
def test_alone_it_is_the_same_update(name, lazy):
    make = {**DIVIDING, **OTHERS}[name]
    found = []
    for shared in (False, True):
        variable, optimizer, apply = made(make, lazy=lazy, shared=shared)
        for values, ids in zip(GRADIENTS, ROWS, strict=True):
            apply(values, ids)
        found.append([v.numpy() for v in [variable, *optimizer.variables]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.abs(found[0][0] - TABLE).max() > 0.1


READS = {"ReadVariableOp", "ResourceGather"}
ADDS = {"AssignAddVariableOp", "ResourceScatterNdAdd"}
SETS = {"AssignVariableOp", "ResourceScatterUpdate", "ResourceScatterAdd"}


def uses_of(graph, variable, kinds):
    """Returns the operations of some kinds on a variable."""
    (handle,) = [
        inner for outer, inner in graph.captures if outer is variable.value.handle
    ]
    return [op for op in handle.consumers() if op.type in kinds]


def comes_after(later, earlier):
    """Whether an operation waits for another one."""
    waiting, seen = [later], set()
    while waiting:
        op = waiting.pop()
        if op is earlier:
            return True
        if op.name not in seen:
            seen.add(op.name)
            waiting += [*op.control_inputs, *(each.op for each in op.inputs)]
    return False


@pytest.mark.parametrize("lazy", [False, True])
def test_a_velocity_alone_is_read_once(lazy):
    """Not after its write, where another worker's zero may have come in between."""
    _, optimizer, apply = made(DIVIDING["rmsprop"], lazy=lazy, shared=True)
    graph = apply.get_concrete_function().graph
    (slot,) = (v for v in optimizer.variables if v.shape == (IDS, WIDTH))
    (read,), (write,) = uses_of(graph, slot, READS), uses_of(graph, slot, SETS)
    assert comes_after(write, read)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", [name for name in DIVIDING if name != "rmsprop"])
def test_what_divides_is_read_last_and_written_first(name, lazy):
    """Each slot is read once, and what others write to it is not written over."""
    _, optimizer, apply = made(DIVIDING[name], lazy=lazy, shared=True)
    graph = apply.get_concrete_function().graph
    slots = [v for v in optimizer.variables if v.shape == (IDS, WIDTH)]
    divisors = [v for v in slots if re.search("velocity|norm", v.name)]
    others = [v for v in slots if all(v is not each for each in divisors)]
    assert divisors
    assert others
    for slot in slots:
        assert len(uses_of(graph, slot, READS)) == len(uses_of(graph, slot, ADDS)) == 1
        assert not uses_of(graph, slot, SETS)
    for divisor in divisors:
        for other in others:
            (late,), (early,) = (uses_of(graph, v, READS) for v in (divisor, other))
            assert comes_after(late, early)
            (late,), (early,) = (uses_of(graph, v, ADDS) for v in (other, divisor))
            assert comes_after(late, early)
