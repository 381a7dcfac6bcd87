"""The model that the benchmarks train, by its model_fn and by the tutorial's loop."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, TrainOp, metric


def losses(labels: Any, logits: Any) -> tf.Tensor:
    """Returns the cross-entropy by example, `[batch]`."""
    return keras.losses.sparse_categorical_crossentropy(
        labels, logits, from_logits=True
    )


def model_fn(
    features: Any, labels: Any, mode: str, network: Any, optimizer: Any
) -> EstimatorSpec:
    """Classifies features; the accuracy is the only metric."""
    logits = network(features, training=mode == ModeKeys.TRAIN)
    return EstimatorSpec(
        mode,
        loss=losses(labels, logits),
        train_op=TrainOp(optimizer, network.trainable_variables),
        metrics={
            "accuracy": metric(keras.metrics.SparseCategoricalAccuracy, labels, logits)
        },
    )


def tutorial_loop(
    strategy: tf.distribute.Strategy,
    network: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    global_batch_size: int,
) -> Callable[[Any], tf.Tensor]:
    """Returns the custom-training tutorial's loop, `for x in dataset` in a tf.function.

    Args:
      strategy: strategy under whose scope network and optimizer were made.
      network: network to train.
      optimizer: optimizer of the network's variables.
      global_batch_size: examples in a batch of all replicas.

    Returns:
      A function that trains on a distributed dataset for one epoch, and returns its
      mean loss.
    """
    with strategy.scope():
        optimizer.build(network.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def train_step(inputs: Any) -> tf.Tensor:
        x, y = inputs
        with tf.GradientTape() as tape:
            logits = network(x, training=True)
            loss = tf.nn.compute_average_loss(
                losses(y, logits), global_batch_size=global_batch_size
            )
        gradients = tape.gradient(loss, network.trainable_variables)
        optimizer.apply(gradients, network.trainable_variables)
        accuracy.update_state(y, logits)
        return loss

    @tf.function
    def epoch(dataset: Any) -> tf.Tensor:
        total, count = 0.0, 0
        for x in dataset:
            per_replica = strategy.run(train_step, args=(x,))
            total += strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)
            count += 1
        return total / tf.cast(count, tf.float32)

    return epoch
