"""Gradients that model_fn computes itself, and functions of those that are applied."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import EstimatorSpec, SpecError, TrainOp
from tests.step_trainer import (
    CUTS,
    RATE,
    SGD,
    Trainer,
    W,
    X,
    Y,
    objective,
    parts,
    squares,
)


def with_op(make_op):
    """A model_fn of squares with `make_op(gradient, network, optimizer)`."""

    def model_fn(features, labels, mode, network, optimizer):
        with tf.GradientTape() as tape:
            loss = squares(features, labels, mode, network, optimizer).loss
            mean = tf.reduce_mean(loss)
        given = tape.gradient(mean, network), network, optimizer
        return EstimatorSpec(mode, loss=loss, train_op=make_op(*given))

    return model_fn


def doubled(gradient, network, optimizer):
    return TrainOp(optimizer, [network], gradients=[2 * gradient])


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_own_gradients_add_up_as_the_drivers_do(cut, precision):
    model_fn = with_op(doubled)
    trainer = Trainer(model_fn, replicas=len(CUTS[cut]), precision=precision)
    trainer.step(*parts(cut))
    wanted = W - RATE * 2 * objective(W, 1)[1]
    np.testing.assert_allclose(trainer.w, wanted, rtol=1e-5)


@pytest.mark.parametrize("cut", ["whole", "both"])
def test_a_function_changes_what_all_replicas_came_to(cut):
    def halved(gradients, variables, step):
        assert len(gradients) == len(variables) == 1
        assert step.dtype == tf.int64
        return [tf.clip_by_value(0.5 * g, -0.1, 0.1) for g in gradients]

    def make_op(_, network, optimizer):
        # Clipped afterwards, to a norm that is smaller still.
        given = {"gradient_fn": halved, "clip_norm": 0.05}
        return TrainOp(optimizer, [network], **given)

    trainer = Trainer(with_op(make_op), replicas=len(CUTS[cut]))
    trainer.step(*parts(cut))
    moved = np.clip(0.5 * objective(W, 1)[1], -0.1, 0.1)
    moved *= min(1, 0.05 / np.linalg.norm(moved))
    np.testing.assert_allclose(trainer.w, W - RATE * moved, rtol=1e-5)


def test_none_is_not_applied():
    def make_op(gradient, network, optimizer):
        other = network.other
        return TrainOp(
            optimizer,
            [network.w, other],
            gradients=[gradient, tf.ones_like(other)],
            gradient_fn=lambda values, *_: [values[0], None],
        )

    class Two(tf.Module):
        def __init__(self):
            super().__init__()
            self.w, self.other = tf.Variable(W), tf.Variable(W)

    def model_fn(features, labels, mode, network, optimizer):
        with tf.GradientTape() as tape:
            loss = squares(features, labels, mode, network.w, optimizer).loss
            mean = tf.reduce_mean(loss)
        op = make_op(tape.gradient(mean, network.w), network, optimizer)
        return EstimatorSpec(mode, loss=loss, train_op=op)

    trainer = Trainer(model_fn, network=Two, optimizer=lambda: SGD(RATE))
    trainer.step(*parts("whole"))
    np.testing.assert_allclose(trainer["network"].other, W)
    wanted = W - RATE * objective(W, 1)[1]
    np.testing.assert_allclose(trainer["network"].w, wanted, rtol=1e-5)


@pytest.mark.parametrize("cut", ["whole", "replicas"])
def test_an_inner_loop_is_differentiated(cut):
    """The loss after a step of gradient descent on the batch, by the first weights."""

    def model_fn(features, labels, mode, network, optimizer):
        with tf.GradientTape() as tape:
            w = tf.convert_to_tensor(network)
            tape.watch(w)
            error = tf.linalg.matvec(features, w) - labels
            inner = tf.reduce_sum(tf.square(error), [1]) / 3
        # Each example's own step, so that it does not depend on the others.
        steps = tape.jacobian(inner, w)
        moved = w - 0.1 * steps
        error = tf.einsum("btd,bd->bt", features, moved) - labels
        loss = tf.square(error)
        return EstimatorSpec(mode, loss=loss, train_op=TrainOp(optimizer, [network]))

    def after(w):
        inner = np.einsum("btd,bt->bd", X, 2 * (X @ w - Y)) / 3
        return np.mean((np.einsum("btd,bd->bt", X, w - 0.1 * inner) - Y) ** 2)

    trainer = Trainer(model_fn, replicas=len(CUTS[cut]))
    trainer.step(*parts(cut))
    eps = 1e-4
    moves = [eps * unit for unit in np.eye(2)]
    wide = W.astype(np.float64)
    gradient = [(after(wide + m) - after(wide - m)) / (2 * eps) for m in moves]
    np.testing.assert_allclose(trainer.w, W - RATE * np.array(gradient), rtol=1e-4)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"gradients": []}, "0 gradients were given for 1 variables"),
        ({"gradients": [tf.zeros([3])]}, "of shape (3,)"),
        ({"gradients": [tf.zeros([2], tf.float64)]}, "<dtype: 'float64'>"),
        ({"gradients": [None]}, "the loss depends on none"),
        ({"gradients": [tf.zeros([2])], "loss": tf.zeros([5])}, "a loss and gradients"),
        ({"gradient_fn": 3}, "gradient_fn is int 3"),
        ({"gradient_fn": lambda *_: None}, "gradient_fn returned None"),
        ({"gradient_fn": lambda *_: [1.0]}, "of shape None"),
    ],
)
def test_what_does_not_fit_is_told(fields, told):
    model_fn = with_op(lambda _, network, opt: TrainOp(opt, [network], **fields))
    with pytest.raises(SpecError) as error:
        Trainer(model_fn).step(*parts("whole"))
    assert told in str(error.value)
