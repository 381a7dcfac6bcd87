"""Several updates in a step: each with its loss, its variables, its times."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline.model_fn import EstimatorSpec, TrainOp
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


def two_losses(features, labels, mode, network, other, optimizer, second):
    """The spec's loss moves `network`; the second op's own moves `other`."""
    spec = squares(features, labels, mode, network, optimizer)
    own = 3 * tf.square(tf.linalg.matvec(features, other))
    ops = [TrainOp(optimizer, [network]), TrainOp(second, [other], loss=own)]
    return EstimatorSpec(mode, loss=spec.loss, train_op=ops)


SECOND = {"other": lambda: tf.Variable(W, name="v"), "second": lambda: SGD(0.5)}


@pytest.mark.parametrize("cut", ["whole", "both"])
def test_ops_with_losses_of_their_own(cut):
    trainer = Trainer(two_losses, replicas=len(CUTS[cut]), **SECOND)
    totals = trainer.step(*parts(cut))
    loss, gradient = objective(W, 1)
    np.testing.assert_allclose(trainer.w, W - RATE * gradient, rtol=1e-5)
    own = np.einsum("btd,bt->d", X, 6 * (X @ W)) / Y.size
    np.testing.assert_allclose(trainer["other"], W - 0.5 * own, rtol=1e-5)
    # What is reported is the spec's.
    np.testing.assert_allclose(totals.loss / totals.weight, loss, rtol=1e-5)
    rates = trainer.learning_rates()
    assert rates == pytest.approx(
        {"learning_rate/optimizer": RATE, "learning_rate/second": 0.5}
    )


def test_ops_may_share_variables_and_an_optimizer():
    def model_fn(features, labels, mode, network, other, optimizer):
        loss = squares(features, labels, mode, network, optimizer).loss
        ops = [
            TrainOp(optimizer, [network]),
            TrainOp(optimizer, [network, other], loss=loss + tf.reduce_sum(other**2)),
        ]
        return EstimatorSpec(mode, loss=loss, train_op=ops)

    trainer = Trainer(model_fn, other=SECOND["other"])
    trainer.step(*parts("whole"))
    # Both gradients are of the step's beginning.
    np.testing.assert_allclose(trainer.w, W - 2 * RATE * objective(W, 1)[1], rtol=1e-5)
    np.testing.assert_allclose(trainer["other"], W - RATE * 2 * W, rtol=1e-5)
    assert int(trainer["optimizer"].iterations.numpy()) == 2
    assert trainer.learning_rates() == pytest.approx({"learning_rate": RATE})


def counted(**options):
    def model_fn(features, labels, mode, network, other, optimizer, second):
        spec = two_losses(features, labels, mode, network, other, optimizer, second)
        first = TrainOp(optimizer, [network], **options)
        return EstimatorSpec(mode, loss=spec.loss, train_op=[first, spec.train_op[1]])

    return model_fn


def test_every_applies_an_op_at_the_steps_that_it_divides():
    trainer = Trainer(counted(every=3), **SECOND)
    counts = []
    for _ in range(7):
        trainer.step(*parts("whole"))
        counts.append(int(trainer["optimizer"].iterations.numpy()))
    assert counts == [0, 0, 1, 1, 1, 2, 2]
    assert int(trainer["second"].iterations.numpy()) == 7


@pytest.mark.parametrize("cut", ["whole", "both"])
def test_repeat_updates_several_times_a_step(cut):
    trainer = Trainer(counted(repeat=3), replicas=len(CUTS[cut]), **SECOND)
    totals = trainer.step(*parts(cut))
    assert int(trainer["optimizer"].iterations.numpy()) == 3
    assert int(trainer["second"].iterations.numpy()) == 1
    w = W
    for _ in range(3):
        loss, gradient = objective(w, 1)
        w = w - RATE * gradient
    np.testing.assert_allclose(trainer.w, w, rtol=1e-4)
    # Of the last forward pass; each example counts once.
    np.testing.assert_allclose(totals.loss / totals.weight, loss, rtol=1e-4)
    assert float(totals.weight) == Y.size


def test_a_variable_that_the_loss_does_not_depend_on_is_left_alone():
    def model_fn(features, labels, mode, network, other, optimizer):
        loss = squares(features, labels, mode, network, optimizer).loss
        op = TrainOp(optimizer, [network, other])
        return EstimatorSpec(mode, loss=loss, train_op=op)

    trainer = Trainer(
        model_fn, other=SECOND["other"], optimizer=lambda: SGD(RATE, weight_decay=0.5)
    )
    trainer.step(*parts("whole"))
    np.testing.assert_array_equal(trainer["other"], W)
    assert np.all(trainer.w != W)


@pytest.mark.parametrize("cut", ["whole", "replicas", "both"])
@pytest.mark.parametrize("options", [{"jit_compile": True}, {"eager": True}])
def test_the_same_weights_compiled_or_eager(options, cut):
    reference = Trainer(two_losses, **SECOND)
    trainer = Trainer(two_losses, replicas=len(CUTS[cut]), **SECOND, **options)
    for _ in range(2):
        reference.step(*parts("whole"))
        trainer.step(*parts(cut))
    np.testing.assert_allclose(trainer.w, reference.w, rtol=1e-4)
    np.testing.assert_allclose(trainer["other"], reference["other"], rtol=1e-4)
