"""The models that the benchmarks train."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import gin_estimator as ge


def mlp() -> keras.Model:
    """Returns a network 16 -> 32 -> 10, whose steps cost little arithmetic."""
    layers = keras.layers
    return keras.Sequential([keras.Input([16]), layers.Dense(32, "relu"), layers.Dense(10)])


def cnn() -> keras.Model:
    """Returns the network of TensorFlow's tutorial on MNIST with Keras."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input([28, 28, 1]),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns the loss of each example."""
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def model_fn(features: Any, labels: Any, mode: str, network: Any, optimizer: Any) -> Any:
    """Classifies."""
    logits = network(features, training=mode == ge.ModeKeys.TRAIN)
    return ge.EstimatorSpec(
        mode,
        loss=losses(labels, logits),
        train_op=ge.TrainOp(optimizer, network.trainable_variables),
        metrics={"accuracy": ge.metric(keras.metrics.SparseCategoricalAccuracy, labels, logits)},
    )


def dataset(shape: list[int], batch_size: int) -> tf.data.Dataset:
    """Returns random examples without end."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[4096, *shape]).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, rng.integers(10, size=4096)))
    return data.repeat().batch(batch_size).prefetch(tf.data.AUTOTUNE)
