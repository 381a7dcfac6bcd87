# SPDX-License-Identifier: Apache-2.0
"""The model_fn of a generative adversarial network."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gin
import keras
import tensorflow as tf

from gin_estimator import EstimatorSpec, ModeKeys, TrainOp, errors, summary

from . import features as features_lib


class _Objective(NamedTuple):
    """Losses by logit.

    Attributes:
      real: loss of the discriminator on real images.
      fake: loss of the discriminator on generated images.
      generator: loss of the generator.
      boundary: logit above which an image is taken for real.
    """

    real: Callable[[tf.Tensor], tf.Tensor]
    fake: Callable[[tf.Tensor], tf.Tensor]
    generator: Callable[[tf.Tensor], tf.Tensor]
    boundary: float = 0.0


_OBJECTIVES = {
    # Cross-entropy. With flipped labels the generator has a gradient while it loses.
    "non_saturating": _Objective(
        lambda logits: tf.nn.softplus(-logits), tf.nn.softplus, lambda x: tf.nn.softplus(-x)
    ),
    "least_squares": _Objective(
        lambda logits: tf.square(logits - 1), tf.square, lambda x: tf.square(x - 1), 0.5
    ),
    "hinge": _Objective(
        lambda logits: tf.nn.relu(1 - logits), lambda x: tf.nn.relu(1 + x), tf.negative
    ),
}


@gin.configurable
def gan(
    features: Any,
    mode: str,
    generator: keras.Model,
    discriminator: keras.Model,
    noise: Callable[..., Any],
    generator_optimizer: keras.optimizers.Optimizer | None = None,
    discriminator_optimizer: keras.optimizers.Optimizer | None = None,
    labels: Any = None,
    *,
    objective: str = "non_saturating",
    discriminator_updates: int = 1,
    generator_every: int = 1,
) -> EstimatorSpec:
    """Returns the spec of a generator that is trained against a discriminator.

    Both optimizers see the same forward pass. Reports `discriminator_loss`, `generator_loss`, and
    `real_accuracy` and `fake_accuracy`, the shares of real and of generated images that the
    discriminator recognizes. Predicts `images` and their `logits`; an export serves the images.
    Of an evaluation TensorBoard shows generated images, always of the same noise.

    Args:
      features: real images `[batch, ...]`, in the generator's range; in PREDICT noise
        `[batch, dim]`.
      mode: one of `ModeKeys`.
      generator: returns images of noise.
      discriminator: returns logits `[batch, 1]` or `[batch]` of images, high for real ones.
      noise: `noise(images, training=)` returns noise for as many images; see `gaussian_noise`.
      generator_optimizer: updates the generator; None outside of TRAIN.
      discriminator_optimizer: updates the discriminator; None outside of TRAIN.
      labels: not used; data of images have them.
      objective: 'non_saturating', 'least_squares' or 'hinge'.
      discriminator_updates: updates of the discriminator in a step, each with fresh noise.
      generator_every: number of steps from one update of the generator to the next.

    Raises:
      SpecError: the objective is unknown, or shapes do not fit.
    """
    del labels
    if objective not in _OBJECTIVES:
        raise errors.SpecError(
            f"objective is {objective!r}: expected one of {sorted(_OBJECTIVES)}."
        )
    images = features_lib.network_input(features, None)
    if mode == ModeKeys.PREDICT:
        return _predict_spec(images, generator, discriminator)
    training, chosen = mode == ModeKeys.TRAIN, _OBJECTIVES[objective]
    fakes = generator(noise(images, training=training), training=training)
    if not images.shape[1:].is_compatible_with(fakes.shape[1:]):
        raise errors.SpecError(
            f"real images have shape {images.shape} and generated ones {fakes.shape}: expected "
            "equal shapes. Change the generator, or resize the images in the input_fn."
        )
    real_logits = _logits(discriminator, images, training=training)
    fake_logits = _logits(discriminator, fakes, training=training)
    discriminator_loss = chosen.real(real_logits) + chosen.fake(fake_logits)
    generator_loss = chosen.generator(fake_logits)
    ops, summaries = [], {}
    if mode == ModeKeys.EVAL and features_lib.are_images(fakes):
        summaries["samples"] = summary.image(fakes, 16, value_range=None)
    if training:
        # The loss of a TrainOp has its own regularization, which is in the mean once.
        ops = [
            TrainOp(
                discriminator_optimizer,
                discriminator.trainable_variables,
                loss=discriminator_loss + sum(discriminator.losses),
                repeat=discriminator_updates,
            ),
            TrainOp(
                generator_optimizer,
                generator.trainable_variables,
                loss=generator_loss + sum(generator.losses),
                every=generator_every,
            ),
        ]
    return EstimatorSpec(
        mode,
        loss=discriminator_loss + generator_loss,
        train_op=ops,
        metrics={
            "discriminator_loss": discriminator_loss,
            "generator_loss": generator_loss,
            "real_accuracy": tf.cast(real_logits > chosen.boundary, tf.float32),
            "fake_accuracy": tf.cast(fake_logits <= chosen.boundary, tf.float32),
        },
        summaries=summaries,
    )


def _predict_spec(noise: Any, generator: Any, discriminator: Any) -> EstimatorSpec:
    if noise.shape.rank != 2:
        raise errors.SpecError(
            f"features have shape {noise.shape} in PREDICT: expected noise [batch, dim]. Set "
            "features = tf.random.normal([batch, dim])."
        )
    images = tf.cast(generator(noise, training=False), tf.float32)
    # The call also builds the discriminator, whose variables are in the checkpoint.
    logits = _logits(discriminator, images, training=False)
    return EstimatorSpec(
        ModeKeys.PREDICT,
        predictions={"images": images, "logits": logits},
        export_outputs={"serving_default": {"images": images}},
    )


def _logits(discriminator: Any, images: Any, *, training: bool) -> tf.Tensor:
    """Returns the discriminator's logits, float32 `[batch]`."""
    logits = tf.cast(discriminator(images, training=training), tf.float32)
    if logits.shape.rank == 2 and logits.shape[-1] == 1:
        logits = tf.squeeze(logits, axis=-1)
    if logits.shape.rank != 1:
        raise errors.SpecError(
            f"the discriminator returned shape {logits.shape}: expected one logit for each image. "
            "Set its last layer to keras.layers.Dense(1)."
        )
    return logits
