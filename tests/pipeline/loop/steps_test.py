"""One step: what is minimised, by hand in numpy, however the batch is cut."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, SpecError, TrainOp, metric
from pipeline.loop import losses, steps
from pipeline.strategy import modules
from tests.step_trainer import (
    CUTS,
    EXAMPLE_WEIGHTS,
    EXTRA_SPEC,
    MASK,
    RATE,
    ROWS,
    SGD,
    TIME,
    Trainer,
    W,
    X,
    Y,
    changed,
    objective,
    parts,
    squares,
)

TRAIN, EVAL, PREDICT = ModeKeys.ALL


CASES = {
    "per_example": ({}, np.ones([1, 1]), 0),
    "of_a_row": (
        {"loss": lambda spec, *_: tf.reduce_mean(spec.loss, 1)},
        np.ones([1, 1]),
        0,
    ),
    "scalar": (
        {"loss": lambda spec, *_: tf.reduce_mean(spec.loss)},
        np.ones([1, 1]),
        0,
    ),
    "keras": (
        {
            "loss": lambda spec, *_: keras.losses.MeanAbsoluteError()(
                tf.zeros_like(spec.loss), spec.loss
            )
        },
        np.ones([1, 1]),
        0,
    ),
    "average": (
        {
            "loss": lambda spec, *_: tf.nn.compute_average_loss(
                tf.reduce_mean(spec.loss, 1)
            )
        },
        np.ones([1, 1]),
        0,
    ),
    "example_weights": (
        {"loss_weights": lambda spec, w, weights: weights[:, :1]},
        EXAMPLE_WEIGHTS,
        0,
    ),
    "mask": ({"loss_weights": lambda spec, w, weights: weights[:, 1:]}, MASK, 0),
    "regularized": (
        {"regularization_losses": lambda spec, w, _: [0.3 * tf.reduce_sum(w**2)]},
        np.ones([1, 1]),
        0.3,
    ),
    "regularized_by_replica": (
        {
            "regularization_losses": lambda spec, w, _: [
                tf.nn.scale_regularization_loss(0.3 * tf.reduce_sum(w**2))
            ]
        },
        np.ones([1, 1]),
        0.3,
    ),
}


def feed(trainer, cut, share=None):
    """A step of (features, weights) batches; nested, so built here."""
    batches = [
        [
            ((tf.constant(x[0]), tf.constant(x[1])), tf.constant(y), share)
            for x, y in replica
        ]
        for replica in parts(cut, extra=True)
    ]
    return trainer.call(batches)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("case", CASES)
def test_the_loss_rule(case, cut):
    fields, weights, l2 = CASES[case]
    trainer = Trainer(changed(**fields), replicas=len(CUTS[cut]), features=EXTRA_SPEC)
    totals = feed(trainer, cut)
    loss, gradient = objective(W, weights, l2)
    np.testing.assert_allclose(trainer.w, W - RATE * gradient, rtol=1e-5)
    np.testing.assert_allclose(totals.loss / totals.weight, loss, rtol=1e-5)


@pytest.mark.parametrize("cut", ["whole", "both"])
def test_a_batch_of_no_weight_changes_nothing(cut):
    model_fn = changed(loss_weights=lambda spec, w, _: tf.zeros_like(spec.loss))
    trainer = Trainer(model_fn, replicas=len(CUTS[cut]))
    totals = trainer.step(*parts(cut))
    np.testing.assert_array_equal(trainer.w, W)
    assert (float(totals.loss), float(totals.weight)) == (0, 0)


@pytest.mark.parametrize("cut", CUTS)
def test_without_weight_the_regularization_counts_however_the_batch_is_cut(cut):
    model_fn = changed(
        loss_weights=lambda spec, w, _: tf.zeros_like(spec.loss),
        regularization_losses=lambda spec, w, _: [0.3 * tf.reduce_sum(w**2)],
    )
    trainer = Trainer(model_fn, replicas=len(CUTS[cut]))
    trainer.step(*parts(cut))
    np.testing.assert_allclose(trainer.w, W - RATE * 0.6 * W, rtol=1e-5)


def test_a_stand_in_counts_for_nothing():
    trainer = Trainer(changed(metrics=lambda spec, *_: {"m": spec.loss}), replicas=2)
    totals = trainer.step([(X, Y, 1.0)], [(X[:2], Y[:2], 0.0)])
    loss, gradient = objective(W, 1)
    np.testing.assert_allclose(trainer.w, W - RATE * gradient, rtol=1e-5)
    np.testing.assert_allclose(totals.loss / totals.weight, loss, rtol=1e-5)
    np.testing.assert_allclose(totals.metrics["m"], [loss * ROWS, ROWS], rtol=1e-5)


def batch_normalized(replicas):
    """A trainer of BatchNormalization over the last dimension."""

    def model_fn(features, labels, mode, network, optimizer):
        outputs = network(tf.reshape(features, [-1, 2]), training=mode == TRAIN)
        loss = tf.square(tf.reduce_sum(outputs, 1) - tf.reshape(labels, [-1]))
        loss = tf.reshape(loss, [-1, TIME])
        op = TrainOp(optimizer, network.trainable_variables)
        return EstimatorSpec(mode, loss=loss, train_op=op)

    return Trainer(model_fn, replicas=replicas, network=keras.layers.BatchNormalization)


def test_a_micro_batch_that_stands_in_moves_no_statistics():
    moved = []
    for stand_in in ([], [(X[:1], Y[:1], 0.0)]):
        trainer = batch_normalized(1)
        trainer.step([(X, Y, 1.0), *stand_in])
        moved.append([v.numpy() for v in trainer["network"].variables])
    for one, two in zip(*moved, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)


def test_batch_normalization_survives_a_stand_in():
    weights = {}
    for replicas in (1, 2):
        trainer = batch_normalized(replicas)
        trainer.step(*[[(X, Y, 1.0)], [(X[:1], Y[:1], 0.0)]][:replicas])
        weights[replicas] = [v.numpy() for v in trainer["network"].trainable_variables]
    for one, two in zip(weights[1], weights[2], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)


@pytest.mark.parametrize("cut", ["whole", "micro", "both"])
@pytest.mark.parametrize("where", ["train_op", "optimizer"])
def test_the_norm_that_is_clipped_is_that_of_the_whole(cut, where):
    norm = 0.01

    def model_fn(features, labels, mode, network, optimizer):
        spec = squares(features, labels, mode, network, optimizer)
        clip_norm = norm if where == "train_op" else None
        op = TrainOp(optimizer, [network], clip_norm=clip_norm)
        return EstimatorSpec(mode, loss=spec.loss, train_op=op)

    def optimizer():
        return SGD(RATE, global_clipnorm=norm if where == "optimizer" else None)

    trainer = Trainer(model_fn, replicas=len(CUTS[cut]), optimizer=optimizer)
    trainer.step(*parts(cut))
    gradient = objective(W, 1)[1]
    clipped = gradient * norm / np.linalg.norm(gradient)
    np.testing.assert_allclose(trainer.w, W - RATE * clipped, rtol=1e-5)


def test_keras_still_reduces_where_we_turn_it_off():
    """`_all_reduce_sum_gradients` is private: see `steps._leave_reduction_to_us`."""
    assert hasattr(SGD(), "_all_reduce_sum_gradients"), (
        "Keras has dropped Optimizer._all_reduce_sum_gradients: without another way to "
        "turn its all-reduce off, gradients on several replicas are summed twice and "
        "clipped before they are whole"
    )


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("micro", [1, 2])
def test_sparse_gradients(replicas, micro):
    tokens = np.array([[0, 1, 1], [3, 1, 0], [0, 0, 0], [2, 2, 1]])
    targets = np.arange(12, dtype=np.float32).reshape([4, 3])

    def model_fn(features, labels, mode, network, optimizer):
        loss = tf.square(network(features)[..., 0] - labels)
        op = TrainOp(optimizer, network.trainable_variables)
        return EstimatorSpec(mode, loss=loss, train_op=op)

    trainer = Trainer(
        model_fn,
        replicas=replicas,
        features=tf.TensorSpec([None, 3], tf.int64),
        network=lambda: keras.layers.Embedding(5, 1, embeddings_initializer="zeros"),
    )
    size = 4 // (replicas * micro)
    each = [(tokens[i : i + size], targets[i : i + size]) for i in range(0, 4, size)]
    trainer.step(*[each[i : i + micro] for i in range(0, len(each), micro)])
    expected = np.zeros([5, 1])
    np.add.at(expected[:, 0], tokens, RATE * 2 * targets / 12)
    (table,) = trainer["network"].variables
    np.testing.assert_allclose(table, expected, rtol=1e-5)


def test_a_loss_that_depends_on_nothing_trained_is_an_error():
    trainer = Trainer(changed(loss=lambda spec, *_: tf.stop_gradient(spec.loss)))
    with pytest.raises(SpecError) as error:
        trainer.step(*parts("whole"))
    assert (
        "the loss depends on none of TrainOp.variables ['w:0']: was it computed from "
        "the network's output inside of model_fn?" in str(error.value)
    )


def test_a_loss_of_another_number_of_examples_is_an_error():
    trainer = Trainer(changed(loss=lambda spec, *_: tf.reshape(spec.loss, [-1])))
    with pytest.raises(SpecError) as error:
        trainer.step(*parts("whole"))
    assert (
        "loss has shape (15,) for a batch of 5 examples: return per-example losses "
        "[batch, ...] or the scalar mean." in str(error.value)
    )


@pytest.mark.parametrize("replicas", [1, 2])
def test_evaluation_sums_and_changes_nothing(replicas):
    model_fn = changed(
        metrics=lambda spec, *_: {"total": metric(keras.metrics.Sum, spec.loss)},
        scalars=lambda spec, *_: {"largest": tf.reduce_max(spec.loss)},
    )
    trainer = Trainer(model_fn, replicas=replicas, mode=EVAL)
    totals = trainer.step(*parts("replicas" if replicas == 2 else "whole"))
    loss, _ = objective(W, 1)
    np.testing.assert_allclose(totals.loss, loss * Y.size, rtol=1e-5)
    np.testing.assert_allclose(totals.metrics["total"], [loss * Y.size], rtol=1e-5)
    assert float(totals.weight) == Y.size
    assert list(totals.scalars) == ["largest"]
    np.testing.assert_array_equal(trainer.w, W)


@pytest.mark.parametrize("cut", CUTS)
def test_a_scalar_is_the_mean_over_what_each_replica_gave(cut):
    """By examples, so that a mean over the batch is one over the global batch."""
    model_fn = changed(scalars=lambda spec, *_: {"mean": tf.reduce_mean(spec.loss)})
    trainer = Trainer(model_fn, replicas=len(CUTS[cut]))
    mean = losses.means(trainer.step(*parts(cut)).scalars)["mean"]
    np.testing.assert_allclose(mean, objective(W, 1)[0], rtol=1e-5)


def test_a_stand_in_counts_for_no_scalar():
    model_fn = changed(scalars=lambda spec, *_: {"mean": tf.reduce_mean(spec.loss)})
    trainer = Trainer(model_fn, replicas=2)
    totals = trainer.step([(X, Y, 1.0)], [(X[:1], Y[:1], 0.0)])
    mean = losses.means(totals.scalars)["mean"]
    np.testing.assert_allclose(mean, objective(W, 1)[0], rtol=1e-5)


def test_predictions_come_by_replica():
    def model_fn(features, labels, mode, network, optimizer, step):
        assert labels is None
        outputs = tf.linalg.matvec(features, network)
        return EstimatorSpec(mode, predictions={"y": outputs, "step": step + 0})

    trainer = Trainer(squares, replicas=2)
    bound = modules.bind(model_fn, PREDICT, trainer.modules, {})

    def predict_fn(features, labels, step):
        return bound(features, labels, step)

    trainer.modules.global_step.assign(7)
    predict = steps.PredictStep(predict_fn, trainer.modules)
    first, second = tf.function(predict, autograph=False)([X[:3], X[3:]])
    np.testing.assert_allclose(first["y"], X[:3] @ W, rtol=1e-5)
    np.testing.assert_allclose(second["y"], X[3:] @ W, rtol=1e-5)
    assert int(first["step"]) == 7
