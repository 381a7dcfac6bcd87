"""Steps in half precision: weights in float32, a loss scale that adapts."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import EstimatorSpec, TrainOp
from pipeline.checkpoints import checkpoint
from pipeline.strategy import loss_scale
from tests.step_trainer import (
    RATE,
    SGD,
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
    monkeypatch.setattr(loss_scale, "_GROWTH_UPDATES", 2)
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


def two_ops(first, second):
    """Two ops whose gradients are the means of a feature each."""

    def model_fn(features, labels, mode, a, b, a_optimizer, b_optimizer):
        each = tf.zeros_like(labels)
        ops = [
            TrainOp(a_optimizer, [a], loss=each + a * features[..., 0], **first),
            TrainOp(b_optimizer, [b], loss=each + b * features[..., 1], **second),
        ]
        return EstimatorSpec(mode, loss=each, train_op=ops)

    return model_fn


def scaled(first, second, *, overflows, replicas=1, steps=3):
    """The trainer of two ops after some steps, in one of which the first overflows."""
    trainer = Trainer(
        two_ops(first, second),
        replicas=replicas,
        precision="mixed_float16",
        a=lambda: tf.Variable(0.0),
        b=lambda: tf.Variable(0.0),
        a_optimizer=lambda: SGD(1.0),
        b_optimizer=lambda: SGD(1.0),
    )
    for step in range(1, steps + 1):
        x = np.ones_like(X)
        x[0, 0, 0] = np.inf if step == overflows else 1
        trainer.step(*[[(x, Y)], [(np.ones_like(X), Y)]][:replicas])
    return trainer


def after(trainer):
    """By op: its updates, as its variable has them, its scale, its good updates."""
    state = trainer.modules.driver_state
    suffixes = {"a": "", "b": "_of_train_op_2"}
    return [
        (
            -float(trainer[name].numpy()),
            float(state["loss_scale" + suffix].numpy()),
            int(state["loss_scale_good_steps" + suffix].numpy()),
        )
        for name, suffix in suffixes.items()
    ]


FULL, HALF = 2.0**15, 2.0**14


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("second", [{}, {"sequential": True}])
def test_an_overflow_is_its_own_ops(second, replicas):
    trainer = scaled({}, second, overflows=2, replicas=replicas)
    assert after(trainer) == [(2, HALF, 1), (3, FULL, 3)]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("at", [1, 2])
def test_an_overflow_of_an_op_that_is_not_due_is_nothing(at, replicas):
    due = len(range(at, 5, 2))
    options = {"every": 2, "at": at}
    trainer = scaled(options, {}, overflows=3 - at, replicas=replicas, steps=4)
    assert after(trainer) == [(due, FULL, due), (4, FULL, 4)]


def test_an_overflow_of_an_op_that_is_due_skips_its_turn():
    trainer = scaled({"every": 2}, {}, overflows=2, steps=4)
    assert after(trainer) == [(1, HALF, 1), (4, FULL, 4)]


@pytest.mark.parametrize("second", [{}, {"sequential": True}])
def test_the_scale_counts_its_own_ops_updates(second, monkeypatch):
    monkeypatch.setattr(loss_scale, "_GROWTH_UPDATES", 4)
    trainer = scaled({"repeat": 3}, second, overflows=None)
    # Nine updates of the one, three of the other.
    assert after(trainer) == [(9, 4 * FULL, 1), (3, FULL, 3)]


def test_a_checkpoint_of_one_scale_is_every_ops(tmp_path):
    saved = scaled({}, {}, overflows=2).modules.named_state()
    saved["driver"] = {
        k: v for k, v in saved["driver"].items() if not k.endswith("_of_train_op_2")
    }
    path = checkpoint.Saver(str(tmp_path), saved).save(3)
    trainer = scaled({}, {}, overflows=None, steps=0)
    checkpoint.restore(trainer.modules.named_state(), path)
    assert after(trainer) == [(2, HALF, 1), (3, HALF, 1)]
    own = scaled({}, {}, overflows=2).modules.named_state()
    checkpoint.restore(
        trainer.modules.named_state(), checkpoint.Saver(str(tmp_path), own).save(4)
    )
    assert after(trainer) == [(2, HALF, 1), (3, FULL, 3)]
