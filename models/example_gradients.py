# SPDX-License-Identifier: Apache-2.0
"""Gradients of single examples, and their clipped and noisy mean: DP-SGD.

Abadi et al. 2016, "Deep Learning with Differential Privacy":

    def loss_fn(image, label):  # A batch of one example.
        return cross_entropy(label, network(image, training=True))

    variables = network.trainable_variables
    gradients = clipped_mean_gradients(loss_fn, variables, features, labels, clip_norm=1.0)
    noise = gradient_noise(1.1 * 1.0 / batch_size)
    train_op = TrainOp(optimizer, variables, gradients=gradients, gradient_fn=noise)
"""

from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf

from gin_estimator import MeanOverExamples, errors

_STREAMS = 2**20  # More than a model has variables, each with its own noise.


@gin.configurable
def per_example_gradients(
    loss_fn: Callable[..., tf.Tensor], variables: Sequence[Any], *batch: Any
) -> list[tf.Tensor]:
    """Returns the gradient of each example's loss, computed for all at once.

    Layers that compute with other examples, such as BatchNormalization, see one.

    Args:
      loss_fn: function of a batch of one example that returns its loss, `[1]` or a scalar.
      variables: variables that the loss depends on.
      *batch: arguments of `loss_fn`, nests of tensors `[batch, ...]`.

    Returns:
      A tensor `[batch, *shape]` for each variable; zeros if the loss does not depend on it.

    Raises:
      SpecError: `loss_fn` does not return one loss that depends on a variable.
    """
    # The gradient tape takes TensorFlow's variables.
    raw = [v if isinstance(v, tf.Variable) else v.value for v in variables]

    def of_one(example: Any) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = loss_fn(*tf.nest.map_structure(lambda x: x[tf.newaxis], example))
            if loss.shape.num_elements() != 1:
                raise errors.SpecError(
                    f"loss_fn returned shape {loss.shape} for one example: expected its loss, [1] "
                    "or a scalar."
                )
        gradients = tape.gradient(loss, raw)
        if all(gradient is None for gradient in gradients):
            raise errors.SpecError(
                "the loss of loss_fn depends on none of the variables: expected a call of the "
                "network in loss_fn, and the network's variables after its first call."
            )
        return [
            tf.zeros(v.shape, v.dtype) if g is None else tf.convert_to_tensor(g)
            for g, v in zip(gradients, raw, strict=True)
        ]

    def of_all(nest: Any) -> list[tf.Tensor]:
        return tf.vectorized_map(of_one, nest, fallback_to_while_loop=False)

    # Eagerly vectorized_map would use autograph, which hides the errors of loss_fn.
    return (of_all if tf.inside_function() else tf.function(of_all, autograph=False))(batch)


@gin.configurable
def clipped_mean_gradients(
    loss_fn: Callable[..., tf.Tensor],
    variables: Sequence[Any],
    *batch: Any,
    clip_norm: float,
    at_once: int = 32,
) -> MeanOverExamples:
    """Returns the mean of the examples' gradients, each clipped to a global norm.

    Examples have equal weights, whatever weights the loss of the spec has.

    Args:
      loss_fn: see `per_example_gradients`.
      variables: see `per_example_gradients`.
      *batch: see `per_example_gradients`.
      clip_norm: maximum norm of an example's gradient over all variables.
      at_once: number of examples whose gradients are in memory at a time.

    Raises:
      SpecError: an argument is out of range; see also `per_example_gradients`.
    """
    if not clip_norm > 0 or at_once < 1:
        raise errors.SpecError(
            f"clipped_mean_gradients has clip_norm={clip_norm!r} and at_once={at_once!r}: expected "
            "a number above 0, and an int > 0."
        )
    size = tf.shape(tf.nest.flatten(batch)[0])[0]

    def add(start: tf.Tensor, sums: Sequence[tf.Tensor]) -> Any:
        part = tf.nest.map_structure(lambda x: x[start : start + at_once], batch)
        gradients = per_example_gradients(loss_fn, variables, *part)
        squares = [tf.square(tf.cast(g, tf.float32)) for g in gradients]
        squares = [tf.reduce_sum(s, list(range(1, s.shape.rank))) for s in squares]
        scale = clip_norm / tf.maximum(tf.sqrt(tf.add_n(squares)), clip_norm)
        added = [tf.tensordot(tf.cast(scale, g.dtype), g, 1) for g in gradients]
        return start + at_once, [a + b for a, b in zip(sums, added, strict=True)]

    zeros = [tf.zeros(v.shape, v.dtype) for v in variables]
    _, sums = tf.while_loop(lambda start, _: start < size, add, (0, zeros))
    return MeanOverExamples(tf.math.divide_no_nan(s, tf.cast(size, s.dtype)) for s in sums)


@gin.configurable
def gradient_noise(stddev: float, *, seed: int = 0) -> Callable[..., list[Any]]:
    """Returns a `TrainOp.gradient_fn` that adds normal noise once, whatever the replicas.

    The noise of a step depends on the seed alone: for privacy, draw the seed at random and keep it
    secret. Give each TrainOp another seed. Updates of one step, by `TrainOp(repeat=)` or by several
    workers of parameter servers, have the same noise.

    Args:
      stddev: standard deviation for the mean gradient: noise multiplier * clip_norm / global
        batch size.
      seed: seed of the noise of all steps.

    Raises:
      SpecError: `stddev` is below 0.
    """
    if not stddev >= 0:
        raise errors.SpecError(f"gradient_noise.stddev is {stddev!r}: expected 0 or more.")

    def add_noise(gradients: Sequence[Any], _: Any, step: Any) -> list[Any]:
        noisy = []
        for index, gradient in enumerate(map(tf.convert_to_tensor, gradients)):
            stream = tf.constant(seed * _STREAMS + index, tf.int64)
            key = tf.stack([stream, tf.cast(step, tf.int64)])
            noise = tf.random.stateless_normal(tf.shape(gradient), key, dtype=gradient.dtype)
            noisy.append(gradient + stddev * noise)
        return noisy

    return add_noise
