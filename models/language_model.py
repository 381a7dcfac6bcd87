"""The model_fn of what continues text: losses by token, bits, and text of its own."""

import math
from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, SpecError, TrainOp, metric, text

from . import checks

# Before each step of a sampling, so that other samplings draw other numbers.
_SEED = 20170612


@gin.configurable
def language_model(
    features: Any,
    labels: Any,
    mode: str,
    network: keras.Model,
    optimizer: keras.optimizers.Optimizer | None = None,
    *,
    clip_norm: float | None = 1.0,
    generate: int = 0,
    temperature: float = 0.8,
) -> EstimatorSpec:
    """Predicts the token that follows each token: a model_fn.

    The loss is the mean over tokens, wherever they stand: those with a label below 0
    count for nothing. Reports `bits_per_token`, of bytes the bits per byte, and
    `accuracy`. Predictions are `logits` of the token after the last one, and of bytes
    `generated`, text that follows.

    Args:
      features: tokens, integers `[batch, length]`.
      labels: the tokens that follow, integers `[batch, length]`; below 0 is none. None
        in PREDICT.
      mode: one of `ModeKeys`.
      network: gives logits `[batch, length, vocab_size]` of tokens.
      optimizer: updates the network's trainable variables; may be None outside TRAIN.
      clip_norm: global norm to which the gradient is clipped; None clips nothing.
      generate: bytes to generate: in EVAL after the first example's first half, for
        TensorBoard, and in PREDICT after each example. 0 generates none.
      temperature: below 1 what is likely is drawn more often than its probability.

    Raises:
      SpecError: features, labels and logits do not fit each other, or an argument is
        out of range.
    """
    if generate < 0 or not temperature > 0:
        raise SpecError(
            f"generate is {generate!r} and temperature {temperature!r}: write a number "
            "of bytes, and one above 0, generate=64, temperature=0.8."
        )
    tokens = checks.network_input(features)
    logits = network(tokens, training=mode == ModeKeys.TRAIN)
    logits = checks.network_output(logits, inputs=tokens)
    if logits.shape.rank != 3:
        raise SpecError(
            f"the network turned tokens of shape {tokens.shape} into {logits.shape}, "
            "and [batch, length, vocab_size] is needed."
        )
    if mode == ModeKeys.PREDICT:
        predictions = {"logits": logits[:, -1]}
        if generate:
            more = continued(network, tokens, generate, temperature)
            predictions["generated"] = as_text(more)
        return EstimatorSpec(mode, predictions=predictions)

    labels = checks.labels_of(labels, mode)
    if not labels.shape.is_compatible_with(logits.shape[:2]):
        raise SpecError(
            f"labels have shape {labels.shape} and tokens {tokens.shape}: return the "
            "token that follows each one from input_fn."
        )
    counts = tf.cast(labels >= 0, tf.float32)
    targets = tf.maximum(labels, 0)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
    right = tf.equal(tf.argmax(logits, -1, targets.dtype), targets)
    train_op, summaries = None, {}
    if mode == ModeKeys.TRAIN:
        train_op = TrainOp(optimizer, network.trainable_variables, clip_norm=clip_norm)
    elif generate:
        prompt = tokens[:1, : max(1, tokens.shape[1] // 2)]
        more = as_text(continued(network, prompt, generate, temperature))
        summaries["generated"] = text(_shown(as_text(prompt), more))
    mean = keras.metrics.Mean
    return EstimatorSpec(
        mode,
        loss=loss,
        loss_weights=counts,
        regularization_losses=network.losses,
        train_op=train_op,
        metrics={
            "bits_per_token": metric(mean, loss / math.log(2), sample_weight=counts),
            "accuracy": metric(mean, tf.cast(right, tf.float32), sample_weight=counts),
        },
        summaries=summaries,
    )


def continued(
    network: Any, tokens: tf.Tensor, number: int, temperature: float
) -> tf.Tensor:
    """Returns tokens that follow, drawn one after the other, int32 `[batch, number]`.

    The same tokens are continued in the same way each time.

    Args:
      network: gives logits `[batch, length, vocab_size]`.
      tokens: integers `[batch, length]`. The last `network.context` are looked at.
      number: tokens to draw.
      temperature: what the logits are divided by.
    """
    context = getattr(network, "context", None) or tokens.shape[1] + number
    tokens = tf.cast(tokens, tf.int32)

    def longer(index: tf.Tensor, so_far: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        logits = network(so_far[:, -context:], training=False)[:, -1] / temperature
        seed = tf.stack([_SEED, index])
        drawn = tf.random.stateless_categorical(logits, 1, seed, tf.int32)
        return index + 1, tf.concat([so_far, drawn], 1)

    length = tokens.shape[1]
    _, found = tf.while_loop(
        lambda index, _: index < number,
        longer,
        (tf.constant(0), tokens),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([tokens.shape[0], None])),
    )
    return tf.ensure_shape(found[:, length:], [tokens.shape[0], number])


def as_text(tokens: tf.Tensor) -> tf.Tensor:
    """Returns bytes `[batch, length]` as strings `[batch]`; others are left out."""
    characters = tf.constant([bytes([i]) for i in range(256)])
    known = tf.logical_and(tokens >= 0, tokens < 256)
    letters = tf.gather(characters, tf.where(known, tokens, 0))
    return tf.strings.reduce_join(tf.where(known, letters, ""), axis=-1)


def _shown(prompt: tf.Tensor, more: tf.Tensor) -> tf.Tensor:
    """Returns text and what follows as code in Markdown."""
    whole = tf.strings.join([prompt, "⟶", more])
    whole = tf.strings.unicode_transcode(whole, "UTF-8", "UTF-8", errors="replace")
    return tf.strings.join(["```\n", whole, "\n```"])
