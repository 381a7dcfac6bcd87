"""A model whose weights tell what its dropout dropped."""

import keras
import tensorflow as tf

import pipeline as ge


def mask_fn(features, mode, network, optimizer):
    """An example's gradient is its dropout mask, in the kernel's row that it picks."""
    return ge.EstimatorSpec(
        mode,
        loss=tf.reduce_sum(network(features, training=True), 1),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
    )


def mask_network():
    kernel = keras.layers.Dense(64, use_bias=False, kernel_initializer="ones")
    return keras.Sequential([kernel, keras.layers.Dropout(0.5)])
