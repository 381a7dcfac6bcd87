"""Gradients of each example by itself; clipped and noised they keep it private."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from pipeline import MeanOverExamples, SpecError
from pipeline.mistakes.checks import kind_of
from pipeline.strategy import variables as raw_variables

# More than a model has variables, each of which has a stream of noise.
_STREAMS = 2**20

LossFn = Callable[..., tf.Tensor]


def per_example_gradients(
    loss_fn: LossFn, variables: Sequence[Any], *batch: Any
) -> list[tf.Tensor]:
    """Returns the gradient of each example's loss, computed for all of them at once.

        def loss_fn(image, label):              # a batch of one example
            return cross_entropy(label, network(image, training=True))

        gradients = per_example_gradients(
            loss_fn, network.trainable_variables, features, labels)

    Layers that look at other examples, as BatchNormalization in training does, see one.

    Args:
      loss_fn: function of a batch of one example that returns its loss, `[1]` or a
        scalar. It is traced for all of them.
      variables: variables that the loss depends on.
      *batch: features and labels, as many as `loss_fn` takes: tensors, or nests of
        them, `[batch, ...]`.

    Returns:
      A tensor `[batch, *shape]` for each variable; zeros where a loss does not depend
      on it.

    Raises:
      SpecError: `loss_fn` returns something else than one loss, or one that depends on
        no variable.
    """
    raw = [raw_variables.raw(variable) for variable in variables]
    if not raw:
        raise SpecError(
            "variables is empty. A network without input shape has variables only once "
            "it was called: write loss = loss_fn(features, labels) before, and read "
            "network.trainable_variables after it."
        )
    others = [kind_of(v) for v in raw if not isinstance(v, tf.Variable)]
    if others:
        raise SpecError(
            f"variables holds {others[0]}, not a variable: write "
            "network.trainable_variables."
        )

    def of_one(example: Any) -> list[tf.Tensor]:
        alone = tf.nest.map_structure(lambda x: x[tf.newaxis], example)
        with tf.GradientTape() as tape:
            loss = tf.convert_to_tensor(loss_fn(*alone))
            if loss.shape.num_elements() != 1:
                raise SpecError(
                    f"loss_fn returned {kind_of(loss)} of shape {loss.shape} for one "
                    "example: return its loss, [1] or a scalar."
                )
            loss = tf.reshape(loss, [])
        found = tape.gradient(loss, raw)
        if all(gradient is None for gradient in found):
            raise SpecError(
                f"the loss depends on none of the variables {[v.name for v in raw]}: "
                "does loss_fn call the network itself?"
            )
        return [
            tf.zeros(v.shape, v.dtype) if g is None else tf.convert_to_tensor(g)
            for g, v in zip(found, raw, strict=True)
        ]

    def of_all(batch: Any) -> list[tf.Tensor]:
        return tf.vectorized_map(of_one, batch, fallback_to_while_loop=False)

    # Eagerly it would make a function by itself, with autograph, which dresses up the
    # errors of loss_fn.
    if not tf.inside_function():
        of_all = tf.function(of_all, autograph=False)
    return of_all(batch)


def clipped_mean_gradients(
    loss_fn: LossFn,
    variables: Sequence[Any],
    *batch: Any,
    clip_norm: float,
    at_once: int = 32,
) -> MeanOverExamples:
    """Returns the mean of the examples' gradients, each clipped to a global norm.

    With `gradient_noise` this is the gradient of DP-SGD (Abadi et al. 2016, "Deep
    Learning with Differential Privacy"):

        gradients = clipped_mean_gradients(
            loss_fn, network.trainable_variables, features, labels, clip_norm=1.0)
        noise = gradient_noise(1.1 * 1.0 / batch_size)
        train_op = TrainOp(optimizer, network.trainable_variables,
                           gradients=gradients, gradient_fn=noise)

    Args:
      loss_fn: see `per_example_gradients`.
      variables: variables that the loss depends on.
      *batch: see `per_example_gradients`.
      clip_norm: greatest norm of one example's gradient, over all variables.
      at_once: examples whose gradients are held in memory together.

    Returns:
      A tensor of each variable's shape. They count by examples, also where the loss of
      the spec has weights: each example then moves the mean by as little as another.

    Raises:
      SpecError: an argument is out of range, or see `per_example_gradients`.
    """
    if not clip_norm > 0:
        raise SpecError(f"clip_norm is {clip_norm!r}: write a number > 0.")
    if at_once < 1:
        raise SpecError(f"at_once is {at_once!r}: write a number of examples, 32.")
    size = tf.shape(tf.nest.flatten(batch)[0])[0]

    def body(start: tf.Tensor, sums: Sequence[tf.Tensor]) -> Any:
        part = tf.nest.map_structure(lambda x: x[start : start + at_once], batch)
        found = per_example_gradients(loss_fn, variables, *part)
        scale = _scales(found, clip_norm)
        added = [tf.tensordot(tf.cast(scale, g.dtype), g, 1) for g in found]
        return start + at_once, [a + b for a, b in zip(sums, added, strict=True)]

    zeros = [tf.zeros(v.shape, v.dtype) for v in variables]
    _, sums = tf.while_loop(lambda start, _: start < size, body, (0, zeros))
    return MeanOverExamples(
        tf.math.divide_no_nan(s, tf.cast(size, s.dtype)) for s in sums
    )


def gradient_noise(stddev: float, *, seed: int = 0) -> Callable[..., list[Any]]:
    """Returns a `TrainOp.gradient_fn` that adds normal noise, once for all replicas.

    A step's noise is the same on each replica, for any number of them, and in a run
    that goes on. It comes of a counter-based generator with a seed that is known, which
    is no secret: choose the seed at random, and keep it to yourself, where privacy has
    to hold. Give each TrainOp a seed of its own: two of one seed draw the same noise,
    and so do the updates of one step, with `TrainOp(repeat=)`. With parameter servers
    a worker's batch is a step; where a worker is lost, a step's number may come twice,
    and its noise with it.

    Args:
      stddev: of the noise in each number of the mean gradient: noise multiplier *
        clip_norm / examples in a global batch, which holds all micro-batches.
      seed: seed of all steps' noise.

    Raises:
      SpecError: stddev is below 0.
    """
    if isinstance(stddev, (int, float)) and not stddev >= 0:
        raise SpecError(f"stddev is {stddev!r}: write a number of 0 or more.")

    def noised(gradients: Sequence[Any], _: Any, step: Any) -> list[Any]:
        found = []
        for index, gradient in enumerate(gradients):
            dense = tf.convert_to_tensor(gradient)
            stream = tf.constant(seed * _STREAMS + index, tf.int64)
            key = tf.stack([stream, tf.cast(step, tf.int64)])
            noise = tf.random.stateless_normal(tf.shape(dense), key, dtype=dense.dtype)
            found.append(dense + stddev * noise)
        return found

    return noised


def _scales(gradients: Sequence[tf.Tensor], clip_norm: float) -> tf.Tensor:
    """Returns what each example's gradients are multiplied by, float32 `[batch]`."""
    squares = []
    for gradient in gradients:
        flat = tf.reshape(tf.cast(gradient, tf.float32), [tf.shape(gradient)[0], -1])
        squares.append(tf.reduce_sum(tf.square(flat), axis=1))
    norms = tf.sqrt(tf.add_n(squares))
    return clip_norm / tf.maximum(norms, clip_norm)
