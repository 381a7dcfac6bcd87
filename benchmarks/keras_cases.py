"""Keras programs that people train on several devices, small enough to compare all numbers.

The threads that reported them are linked; the programs are ours. Three more are about all cases:
https://github.com/keras-team/keras/issues/20585 and
https://github.com/ray-project/ray/issues/47464 (several workers),
https://github.com/keras-team/keras/issues/18624 (parameter servers).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks import models

layers = keras.layers

BATCH_SIZE = 32
_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=[160, 4]).astype("float32")
_Y = (_X.sum(axis=1) > 0).astype("int64")
_IMAGES = _RNG.normal(size=[160, 28, 28, 1]).astype("float32")
_WORDS = np.where(np.arange(6) < _RNG.integers(1, 7, size=[160, 1]), _Y[:, None] + 1, 0)
_TOKENS = _WORDS + (_WORDS > 0) * _RNG.integers(20, size=[160, 6])
_WEIGHTS = _RNG.uniform(0, 2, size=160).astype("float32")
_CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@dataclasses.dataclass(frozen=True)
class Case:
    """A compiled model and its data.

    Attributes:
      model: makes the compiled model.
      arrays: features, labels, and weights if there are any, of 160 examples; the last 40 are for
        validation.
      num_examples: examples of an epoch; batches have 32.
      callbacks: makes Keras callbacks.
      epochs: number of epochs.
      is_shuffled: whether the data are shuffled, in one order for all epochs.
      kill_step: step at which the training is killed, to be started again; None for none.
      is_in_arrays: whether fit gets arrays in place of a dataset.
      batch_callbacks: makes Keras callbacks that only the measured speed has.
      steps_per_execution: steps of a call of fit whose speed is measured.
    """

    model: Callable[[], keras.Model]
    arrays: tuple[Any, ...] = (_X, _Y)
    num_examples: int = 97
    callbacks: Callable[[], list[keras.callbacks.Callback]] = list
    epochs: int = 3
    is_shuffled: bool = False
    kill_step: int | None = None
    is_in_arrays: bool = False
    batch_callbacks: Callable[[], list[keras.callbacks.Callback]] = list
    steps_per_execution: int = 10

    def make_model(self, steps_per_execution: int = 1) -> keras.Model:
        """Returns the model, with the same initial weights at each call."""
        keras.utils.set_random_seed(1)
        model = self.model()
        model.steps_per_execution = steps_per_execution
        return model

    def inputs(self, repeats: int = 1) -> dict[str, Any]:
        """Returns the data of an epoch as arguments of fit, repeated to measure the speed."""
        if not self.is_in_arrays:
            data = self.training()
            return {"x": data if repeats == 1 else data.repeat(repeats)}
        x, y = (np.concatenate([array[: self.num_examples]] * repeats) for array in self.arrays)
        return {"x": x, "y": y, "batch_size": BATCH_SIZE, "shuffle": repeats > 1}

    def training(self) -> tf.data.Dataset:
        """Returns the batches of an epoch."""
        data = self._examples(slice(self.num_examples))
        if self.is_shuffled:
            tf.random.set_seed(1)  # The order depends on it and on the seed of shuffle.
            data = data.shuffle(160, seed=1, reshuffle_each_iteration=False)
        return data.batch(BATCH_SIZE)

    def validation(self) -> tf.data.Dataset:
        """Returns a full batch and a rest of 8 examples."""
        return self._examples(slice(120, 160)).batch(BATCH_SIZE)

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-self.num_examples // BATCH_SIZE)

    def _examples(self, part: slice) -> tf.data.Dataset:
        arrays = tf.nest.map_structure(lambda array: array[part], self.arrays)
        return tf.data.Dataset.from_tensor_slices(arrays)


def _compiled(
    model: keras.Model,
    loss: Any = _CLASSES,
    metrics: Any = ("accuracy",),
    optimizer: type[keras.optimizers.Optimizer] = keras.optimizers.Adam,
) -> Any:
    metrics = metrics if isinstance(metrics, Mapping) else list(metrics)
    model.compile(optimizer(0.01), loss, metrics=metrics)
    return model


def _compiled_words(*parts: keras.layers.Layer) -> keras.Model:
    # With Adam, fit adds the squares of the gradients of a word, and ge.fit squares their sum.
    return _compiled(keras.Sequential(parts), optimizer=keras.optimizers.SGD)


def _stack(*middle: keras.layers.Layer) -> keras.Model:
    hidden = layers.Dense(8, "relu")
    return _compiled(keras.Sequential([keras.Input([4]), hidden, *middle, layers.Dense(2)]))


def _cnn() -> keras.Model:
    return _compiled(models.cnn())


def _two_outputs() -> keras.Model:
    inputs = keras.Input([4])
    hidden = layers.Dense(8, "relu")(inputs)
    outputs = {"kind": layers.Dense(2)(hidden), "size": layers.Dense(1)(hidden)}
    losses = {"kind": _CLASSES, "size": "mse"}
    model = keras.Model(inputs, outputs)
    return _compiled(model, losses, {"kind": ["accuracy"], "size": ["mae"]})


def _tagger() -> keras.Model:
    """Predicts each word; words of index 0 are masked."""
    words, rnn = layers.Embedding(32, 8, mask_zero=True), layers.SimpleRNN(8, return_sequences=True)
    return _compiled_words(words, rnn, layers.Dense(32))


def _auc() -> keras.Model:
    model = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(1, "sigmoid")])
    return _compiled(model, "binary_crossentropy", [keras.metrics.AUC(name="auc")])


class Subclassed(keras.Model):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.logits = layers.Dense(8, "relu"), layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        """Returns logits."""
        return self.logits(self.hidden(inputs))


def _words() -> keras.Model:
    pooling = layers.GlobalAveragePooling1D()
    return _compiled_words(layers.Embedding(32, 8), pooling, layers.Dense(2))


class Autoencoder(keras.Model):
    """A variational autoencoder with its own steps, whose noise is a part of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.Input([4]), layers.Dense(8, "relu"), layers.Dense(4)]
        )
        self.decoder = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(4)])
        self.means = [keras.metrics.Mean(name=name) for name in ("loss", "kl_loss")]

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The two losses."""
        return self.means

    def train_step(self, data: Any) -> dict[str, Any]:
        """Updates the weights."""
        with tf.GradientTape() as tape:
            losses = self._both_losses(data[0])
        gradients = tape.gradient(losses[0], self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self._updated(losses)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Returns the losses."""
        return self._updated(self._both_losses(data[0]))

    def _both_losses(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        mean, log_var = tf.split(self.encoder(x), 2, axis=-1)
        decoded = self.decoder(mean + tf.exp(0.5 * log_var) * x[:, :2])
        kl = -0.5 * tf.reduce_sum(1 + log_var - mean**2 - tf.exp(log_var), -1)
        error = tf.reduce_sum((x - decoded) ** 2, -1)
        return tf.reduce_mean(error + kl), tf.reduce_mean(kl)

    def _updated(self, losses: tuple[tf.Tensor, tf.Tensor]) -> dict[str, Any]:
        for mean, value in zip(self.means, losses, strict=True):
            mean.update_state(value)
        return {mean.name: mean.result() for mean in self.means}


class _Batches(keras.callbacks.Callback):
    """Reads the loss of each batch for which it is called."""

    total = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.total += logs["loss"]


def _batches() -> list[keras.callbacks.Callback]:
    return [_Batches()]


def _early_stopping() -> list[keras.callbacks.Callback]:
    # No epoch improves by this much: training ends after three, with the weights of the first.
    return [
        keras.callbacks.EarlyStopping(
            "val_loss", min_delta=9, patience=2, restore_best_weights=True
        )
    ]


CASES = {
    "tutorial's CNN, full batches": Case(_cnn, (_IMAGES, _Y), num_examples=96),
    # https://github.com/tensorflow/tensorflow/issues/38596
    "last batch of 26 examples": Case(_stack, num_examples=90),
    # https://github.com/tensorflow/tensorflow/issues/45594
    "last batch of 1: an empty replica": Case(_stack),
    # https://github.com/tensorflow/tensorflow/issues/52986
    "BatchNormalization(synchronized=True)": Case(
        lambda: _stack(layers.BatchNormalization(synchronized=True))
    ),
    # Other random numbers on each replica: its weights differ from one replica in any case.
    "Dropout (random)": Case(lambda: _stack(layers.Dropout(0.2))),
    # https://github.com/tensorflow/tensorflow/issues/24226
    "sample weights": Case(_stack, (_X, _Y, _WEIGHTS)),
    # https://github.com/tensorflow/tensorflow/issues/36319
    "two outputs": Case(_two_outputs, (_X, {"kind": _Y, "size": _X[:, :1]})),
    # https://github.com/keras-team/keras/issues/15323
    "masked words": Case(_tagger, (_TOKENS, _TOKENS)),
    # https://github.com/tensorflow/tensorflow/issues/48152
    "AUC": Case(_auc, (_X, _Y[:, None])),
    "subclassed model": Case(lambda: _compiled(Subclassed())),
    # https://github.com/tensorflow/tensorflow/issues/20651
    "embedding": Case(_words, (_TOKENS, _Y)),
    "EarlyStopping": Case(_stack, callbacks=_early_stopping, epochs=9),
    # https://github.com/tensorflow/tensorflow/issues/58925
    "own train_step: a VAE": Case(lambda: _compiled(Autoencoder(), None, ())),
    "arrays": Case(_stack, is_in_arrays=True),
    "a callback in each step": Case(_stack, batch_callbacks=_batches, steps_per_execution=1),
    "a callback every 10 steps": Case(_stack, batch_callbacks=_batches),
    "killed in epoch 3, shuffled": Case(_stack, epochs=5, is_shuffled=True, kill_step=10),
}
