"""Keras' mean losses on several replicas; `steps_test.py` trains by them."""

import keras
import tensorflow as tf

from pipeline.tracing import replica_means
from tests.step_trainer import two_cpus


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
