"""Several updates in a step: each with its loss, its variables, its times."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import EstimatorSpec, TrainOp
from tests import players
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


def test_a_variable_that_the_loss_does_not_depend_on_is_left_alone(caplog):
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
    (said,) = (text for text in caplog.messages if "depend" in text)
    assert said.startswith("TrainOp.variables holds other, which the loss does not")


def test_trainable_variables_that_no_op_takes_are_told(caplog):
    """Frozen layers, which may be meant, and a head that was forgotten."""

    def layer():
        made = keras.layers.Dense(2, name="head")
        made.build([None, 3])
        return made

    with caplog.at_level("INFO", logger="absl"):
        trainer = Trainer(squares, other=layer)
        trainer.step(*parts("whole"))
    (said,) = (text for text in caplog.messages if "no TrainOp" in text)
    assert said == (
        "train | no TrainOp takes 2 of 2 trainable variables, which stay as they are: "
        "other/kernel, other/bias"
    )


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


# Two players: the loss of d is -d, that of g is d * g, and both start at 0. What g has
# come to after an update is minus the d that it saw.


def two_players(d_options, g_options):
    def model_fn(features, labels, mode, d, g, d_optimizer, g_optimizer):
        each = tf.zeros_like(labels)
        ops = [
            TrainOp(d_optimizer, [d], loss=each - d, **d_options),
            TrainOp(g_optimizer, [g], loss=each + d * g, **g_options),
        ]
        return EstimatorSpec(mode, loss=each + d, train_op=ops)

    return model_fn


def played(d_options, g_options, *, cut="whole", steps=1, **options):
    """d, g and the reported loss after each step."""
    trainer = Trainer(
        two_players(d_options, g_options),
        replicas=len(CUTS[cut]),
        d=lambda: tf.Variable(0.0),
        g=lambda: tf.Variable(0.0),
        d_optimizer=lambda: SGD(1.0),
        g_optimizer=lambda: SGD(1.0),
        **options,
    )
    seen = []
    for _ in range(steps):
        totals = trainer.step(*parts(cut))
        values = trainer["d"], trainer["g"], totals.loss / totals.weight
        seen.append(pytest.approx([float(v.numpy()) for v in values], rel=1e-5))
    return seen


OWN_PASS = {"sequential": True}


def test_ops_share_a_forward_pass():
    assert played({"repeat": 3}, {}) == [[3, -2, 2]]


@pytest.mark.parametrize(
    ("cut", "options"),
    [
        ("whole", {}),
        ("whole", {"jit_compile": True}),
        ("both", {}),
        ("both", {"eager": True}),
        ("both", {"precision": "mixed_float16"}),
    ],
)
def test_a_sequential_op_sees_the_updates_before_it(cut, options):
    # What is reported is of the first group's last pass.
    assert played({"repeat": 3}, OWN_PASS, cut=cut, **options) == [[3, -3, 2]]


def test_a_sequential_op_may_be_repeated():
    def model_fn(features, labels, mode, d, d_optimizer):
        each = tf.zeros_like(labels)
        ops = [
            TrainOp(d_optimizer, [d], loss=each - d),
            TrainOp(d_optimizer, [d], loss=each - d * d, repeat=2, sequential=True),
        ]
        return EstimatorSpec(mode, loss=each, train_op=ops)

    trainer = Trainer(
        model_fn, d=lambda: tf.Variable(0.0), d_optimizer=lambda: SGD(1.0)
    )
    trainer.step(*parts("whole"))
    # 0 + 1, then twice d + 2 d.
    assert float(trainer["d"].numpy()) == pytest.approx(9)


@pytest.mark.parametrize(
    ("cut", "options"),
    [("whole", {}), ("both", {}), ("both", {"precision": "mixed_float16"})],
)
def test_a_sequential_op_takes_its_turn(cut, options):
    second = {"every": 2, "sequential": True}
    seen = played({}, second, cut=cut, steps=4, **options)
    assert seen == [[1, 0, 0], [2, -2, 1], [3, -2, 2], [4, -6, 3]]


@pytest.mark.parametrize("cut", ["whole", "both"])
def test_ops_take_turns(cut):
    first, second = {"every": 2, "at": 1}, {"every": 2}
    seen = played(first, second, cut=cut, steps=4)
    assert seen == [[1, 0, 0], [1, -1, 1], [2, -1, 1], [2, -3, 2]]


def test_an_op_may_have_several_turns():
    seen = played({"every": 3, "at": (1, 2)}, {"every": 3}, steps=6)
    assert seen[1::3] == [[2, 0, 1], [4, -2, 3]]
    assert seen[2::3] == [[2, -2, 2], [4, -6, 4]]


@pytest.mark.parametrize(
    ("every", "at"), [(1, None), (3, None), (3, 1), (3, (1, 3)), (4, (2, 3))]
)
def test_updates_are_counted_as_they_are_made(every, at):
    op = TrainOp(SGD(), [tf.Variable(0.0)], every=every, at=at, repeat=2)
    for first in range(7):
        for last in range(first, 9):
            steps = range(first, last)
            made = [step for step in steps if step % every + 1 in op.at]
            assert op.updates(first, last) == 2 * len(made)


@pytest.mark.parametrize(
    "config",
    [{}, {"devices": ("CPU:0", "CPU:1")}, {"precision": "mixed_float16"}],
    ids=["one", "two", "scaled"],
)
def test_an_estimator_moves_them_in_turn(tmp_path, config):
    """Workers do in `tests/multi_worker_test.py`."""
    result = players.play(tmp_path, **config)
    assert result == pytest.approx(players.EXPECTED, rel=1e-6)
