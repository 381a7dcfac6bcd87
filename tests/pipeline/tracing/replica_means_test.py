"""Keras' mean losses on several replicas; `steps_test.py` trains by them."""

import keras
import pytest
import tensorflow as tf

from pipeline import EstimatorSpec, TrainOp
from pipeline.tracing import replica_means
from tests.step_trainer import Trainer, two_cpus


def means(wrapped):
    """A Keras mean of ones and TensorFlow's, on each of two replicas."""

    def on_replica():
        ones, zeros = tf.ones([3, 2]), tf.zeros([3, 2])
        return keras.losses.MeanAbsoluteError()(zeros, ones), (
            tf.nn.compute_average_loss(ones[:, 0])
        )

    def inside():
        with replica_means.kept():
            # Replicas are traced in turns, and change over within the block.
            tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([]))
            return on_replica()

    strategy = two_cpus()
    each = strategy.run(inside if wrapped else on_replica)
    return [float(v) for m in each for v in strategy.experimental_local_results(m)]


def test_only_inside_are_they_means_over_a_replica():
    assert means(wrapped=True) == [1, 1, 1, 1]
    assert means(wrapped=False) == [0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("replicas", "synchronized", "weighted", "warns"),
    [
        (2, True, True, True),
        (2, True, False, False),
        (2, False, True, False),
        (1, True, True, False),
    ],
)
def test_says_where_moments_of_all_replicas_have_another_gradient(
    log, replicas, synchronized, weighted, warns
):
    def model_fn(features, labels, mode, network, optimizer):
        outputs = network(features, training=True)
        return EstimatorSpec(
            mode,
            loss=tf.square(tf.reduce_sum(outputs, 2) - labels),
            loss_weights=tf.cast(labels > 0, tf.float32) if weighted else None,
            train_op=TrainOp(optimizer, network.trainable_variables),
        )

    layer = keras.layers.BatchNormalization
    Trainer(
        model_fn,
        replicas=replicas,
        network=lambda: keras.Sequential([layer(synchronized=synchronized)]),
    )
    said = [text for text in log() if "(synchronized=True)" in text]
    assert [text.split(" is ")[0] for text in said] == (
        ["network/batch_normalization"] if warns else []
    )
