"""Steps in half precision: weights in float32, a loss scale that adapts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import steps
from pipeline.spec import EstimatorSpec, TrainOp
from tests.step_trainer import (
    RATE,
    Trainer,
    X,
    Y,
    objective,
    parts,
)


def dense_fn(features, labels, mode, network, optimizer):
    loss = tf.square(network(features)[..., 0] - tf.cast(labels, network.compute_dtype))
    op = TrainOp(optimizer, network.trainable_variables)
    return EstimatorSpec(mode, loss=loss, train_op=op)


def one_dense():
    return keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")


def mixed(precision, **options):
    return Trainer(dense_fn, precision=precision, network=one_dense, **options)


def test_bfloat16_computes_in_half_and_keeps_float32():
    trainer = mixed("mixed_bfloat16")
    totals = trainer.step(*parts("whole"))
    (kernel,) = trainer["network"].variables
    assert kernel.dtype == "float32"
    assert totals.loss.dtype == tf.float32
    gradient = objective(np.ones(2, np.float32), 1)[1]
    np.testing.assert_allclose(kernel.numpy()[:, 0], 1 - RATE * gradient, atol=5e-3)


def kernel_of(trainer):
    return trainer["network"].kernel.numpy()[:, 0]


@pytest.mark.parametrize("replicas", [1, 2])
def test_float16_skips_an_overflow_and_halves_the_scale(replicas):
    trainer = mixed("mixed_float16", replicas=replicas)
    state = trainer.modules.driver_state
    state["loss_scale_good_steps"].assign(7)
    big = X * 60000.0  # Finite in float16, its squared error is not.
    trainer.step(*[[(X, Y)], [(big, Y)]][-replicas:])
    np.testing.assert_array_equal(kernel_of(trainer), [1, 1])
    assert int(trainer["optimizer"].iterations.numpy()) == 0
    assert state["loss_scale"].numpy() == 2.0**14
    assert state["loss_scale_good_steps"].numpy() == 0


def test_float16_doubles_the_scale_after_enough_good_steps(monkeypatch):
    monkeypatch.setattr(steps, "_LOSS_SCALE_GROWTH_STEPS", 2)
    trainer = mixed("mixed_float16")
    state = trainer.modules.driver_state
    state["loss_scale"].assign(16.0)
    scales = []
    for _ in range(5):
        trainer.step(*parts("whole"))
        scales.append(float(state["loss_scale"]))
    assert scales == [16, 32, 32, 64, 64]
    assert int(trainer["optimizer"].iterations.numpy()) == 5


def test_float16_takes_the_scale_out_of_the_gradient():
    trainer = mixed("mixed_float16")
    trainer.modules.driver_state["loss_scale"].assign(64.0)
    trainer.step(*parts("whole"))
    gradient = objective(np.ones(2, np.float32), 1)[1]
    np.testing.assert_allclose(kernel_of(trainer), 1 - RATE * gradient, atol=2e-3)


def test_the_scale_never_falls_below_one():
    trainer = mixed("mixed_float16")
    scale = trainer.modules.driver_state["loss_scale"]
    scale.assign(1.0)
    trainer.step([(X * 60000.0, Y)])
    assert float(scale) == 1.0
