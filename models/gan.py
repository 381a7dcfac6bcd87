"""The model_fn of a generative adversarial network: two losses, two optimizers."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline import EstimatorSpec, ModeKeys, SpecError, TrainOp, image

from . import checks


@dataclasses.dataclass(frozen=True)
class _Objective:
    """Losses of the discriminator's logits, example by example.

    Attributes:
      real: the discriminator's loss on real images.
      fake: the discriminator's loss on generated images.
      generator: the generator's loss on generated images.
      boundary: the logit above which the discriminator takes an image for real.
    """

    real: Callable[[tf.Tensor], tf.Tensor]
    fake: Callable[[tf.Tensor], tf.Tensor]
    generator: Callable[[tf.Tensor], tf.Tensor]
    boundary: float = 0.0


_OBJECTIVES = {
    # Binary cross-entropy. The generator's has flipped labels, for its gradient then
    # does not vanish while the discriminator wins (Goodfellow et al., 2014).
    "non_saturating": _Objective(
        real=lambda logits: tf.nn.softplus(-logits),
        fake=tf.nn.softplus,
        generator=lambda logits: tf.nn.softplus(-logits),
    ),
    "least_squares": _Objective(
        real=lambda logits: tf.square(logits - 1),
        fake=tf.square,
        generator=lambda logits: tf.square(logits - 1),
        boundary=0.5,
    ),
    "hinge": _Objective(
        real=lambda logits: tf.nn.relu(1 - logits),
        fake=lambda logits: tf.nn.relu(1 + logits),
        generator=lambda logits: -logits,
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
    clip_norm: float | None = None,
    num_samples: int = 16,
    value_range: tuple[float, float] = (-1, 1),
) -> EstimatorSpec:
    """Trains a generator against a discriminator: a model_fn.

    Minimises `discriminator_loss` and `generator_loss`, each with its own optimizer.
    Reports both, and their sum as `loss`. `real_accuracy` and `fake_accuracy` are the
    parts of the real and of the generated images that the discriminator recognised.
    Both optimizers see the same forward pass, as in TensorFlow's DCGAN tutorial.
    Predictions are `images` and the discriminator's `logits` of them; an export serves
    the images.

    TensorBoard shows generated images: in TRAIN of the same noise each time, in EVAL of
    the first examples'.

    Args:
      features: real images `[batch, ...]`, scaled as the generator scales its own; in
        PREDICT noise `[batch, dim]`.
      mode: one of `ModeKeys`.
      generator: takes noise and returns images.
      discriminator: takes images and returns logits `[batch, 1]` or `[batch]`, high for
        real images.
      noise: `noise(images, training)` returns noise `[batch, dim]` for as many images;
        see `gaussian_noise`.
      generator_optimizer: updates the generator; may be None outside TRAIN.
      discriminator_optimizer: updates the discriminator; may be None outside TRAIN.
      labels: not used.
      objective: 'non_saturating', 'least_squares' or 'hinge'.
      discriminator_updates: updates of the discriminator in a step, all on the step's
        images, each with fresh noise.
      generator_every: steps from one update of the generator to the next; between them
        the discriminator sees fresh images.
      clip_norm: global norm to which each gradient is clipped; None clips nothing.
      num_samples: generated images to show; 0 shows none.
      value_range: values of the images that are shown as black and as white.

    Raises:
      SpecError: the objective is unknown, or real and generated images differ in shape.
    """
    del labels
    if objective not in _OBJECTIVES:
        raise SpecError(
            f"objective is {objective!r}: write one of {sorted(_OBJECTIVES)}."
        )
    features = checks.network_input(features)
    if mode == ModeKeys.PREDICT:
        return _predict_spec(features, generator, discriminator)

    training = mode == ModeKeys.TRAIN
    fakes = generator(noise(features, training=training), training=training)
    _check_images(features, fakes)
    real_logits = _logits(discriminator, features, training=training)
    fake_logits = _logits(discriminator, fakes, training=training)
    chosen = _OBJECTIVES[objective]
    generator_loss = chosen.generator(fake_logits)
    discriminator_loss = chosen.real(real_logits) + chosen.fake(fake_logits)
    train_op = None
    if training:
        # A TrainOp with its own loss brings its own regularization. Added to each
        # example's loss, it is in their mean once.
        train_op = [
            TrainOp(
                discriminator_optimizer,
                discriminator.trainable_variables,
                loss=discriminator_loss + sum(discriminator.losses),
                clip_norm=clip_norm,
                repeat=discriminator_updates,
            ),
            TrainOp(
                generator_optimizer,
                generator.trainable_variables,
                loss=generator_loss + sum(generator.losses),
                clip_norm=clip_norm,
                every=generator_every,
            ),
        ]
    samples = fakes
    # After `generator.losses` were read: another call of a model changes them.
    if training and num_samples and checks.are_images(fakes):
        # Noise that is not for training depends on the images alone, which are blank.
        blank = tf.zeros([num_samples, *features.shape[1:]], features.dtype)
        samples = generator(noise(blank, training=False), training=False)
    return EstimatorSpec(
        mode,
        loss=discriminator_loss + generator_loss,
        train_op=train_op,
        metrics={
            "discriminator_loss": discriminator_loss,
            "generator_loss": generator_loss,
            "real_accuracy": tf.cast(real_logits > chosen.boundary, tf.float32),
            "fake_accuracy": tf.cast(fake_logits <= chosen.boundary, tf.float32),
        },
        summaries=_summaries(samples, num_samples, value_range),
    )


def _summaries(
    samples: Any, number: int, value_range: tuple[float, float]
) -> dict[str, Any]:
    if not number or not checks.are_images(samples):
        return {}
    columns = math.ceil(math.sqrt(number))
    shown = image(samples, number, value_range=value_range, columns=columns)
    return {"samples": shown}


def _predict_spec(features: Any, generator: Any, discriminator: Any) -> EstimatorSpec:
    """Returns the spec of PREDICT, whose features are noise."""
    if features.shape.rank != 2:
        raise SpecError(
            f"PREDICT takes noise [batch, dim] as features and got {features.shape}: "
            "give tf.random.normal([batch, dim]) from input_fn."
        )
    images = tf.cast(generator(features, training=False), tf.float32)
    # The call also builds the discriminator: a checkpoint has its variables, which
    # have to be there when it is loaded.
    logits = _logits(discriminator, images, training=False)
    return EstimatorSpec(
        ModeKeys.PREDICT,
        predictions={"images": images, "logits": logits},
        export_outputs={"serving_default": {"images": images}},
    )


def _logits(discriminator: Any, images: Any, *, training: bool) -> tf.Tensor:
    """Returns the discriminator's logits, float32 `[batch]`."""
    outputs = discriminator(images, training=training)
    logits = checks.network_output(outputs, inputs=images)
    if logits.shape.rank == 2 and logits.shape[-1] == 1:
        logits = tf.squeeze(logits, axis=-1)
    if logits.shape.rank != 1:
        raise SpecError(
            f"the discriminator turned images of shape {images.shape} into "
            f"{logits.shape}, and one logit an image is needed: end it in "
            "keras.layers.Dense(1)."
        )
    return logits


def _check_images(real: Any, fake: Any) -> None:
    if not real.shape[1:].is_compatible_with(fake.shape[1:]):
        raise SpecError(
            f"real images have shape {real.shape} and generated ones {fake.shape}: "
            "change the generator's image_size and channels, or resize in input_fn."
        )
