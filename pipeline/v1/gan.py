# SPDX-License-Identifier: Apache-2.0
"""`tf.contrib.gan`: a generator and a discriminator, their losses, and GANEstimator.

Each step updates both from the same batch and from the values before the step, which is
`get_joint_train_hooks` of TensorFlow 1.
"""

import collections
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ..contract.spec import ModeKeys
from . import metrics
from .errors import refusal
from .estimators import Estimator
from .specs import EstimatorSpec
from .variables import get_global_step, trainable_variables

GANModel = collections.namedtuple(
    "GANModel",
    (
        *("generator_inputs", "generated_data", "generator_variables", "generator_scope"),
        *("generator_fn", "real_data", "discriminator_real_outputs", "discriminator_gen_outputs"),
        *("discriminator_variables", "discriminator_scope", "discriminator_fn"),
    ),
)
GANLoss = collections.namedtuple("GANLoss", ("generator_loss", "discriminator_loss"))
GANTrainOps = collections.namedtuple(
    "GANTrainOps",
    ("generator_train_op", "discriminator_train_op", "global_step_inc_op", "train_hooks"),
    defaults=((),),
)
GANTrainSteps = collections.namedtuple(
    "GANTrainSteps", ("generator_train_steps", "discriminator_train_steps")
)


def gan_model(
    generator_fn: Callable[..., Any],
    discriminator_fn: Callable[..., Any],
    real_data: Any,
    generator_inputs: Any,
    generator_scope: str = "Generator",
    discriminator_scope: str = "Discriminator",
    check_shapes: bool = True,
) -> GANModel:
    """Replaces `tf.contrib.gan.gan_model`."""
    with tf1.variable_scope(generator_scope) as of_generator:
        generated = generator_fn(generator_inputs)
    with tf1.variable_scope(discriminator_scope) as of_discriminator:
        of_generated = discriminator_fn(generated, generator_inputs)
    real_data = tf.convert_to_tensor(real_data)
    with tf1.variable_scope(of_discriminator, reuse=True):
        of_real = discriminator_fn(real_data, generator_inputs)
    if check_shapes and not generated.shape.is_compatible_with(real_data.shape):
        raise ValueError(
            f"Generator output shape ({generated.shape}) must be the same shape as real data "
            f"({real_data.shape})."
        )
    return GANModel(
        generator_inputs,
        generated,
        trainable_variables(f"{of_generator.name}/"),
        of_generator,
        generator_fn,
        real_data,
        of_real,
        of_generated,
        trainable_variables(f"{of_discriminator.name}/"),
        of_discriminator,
        discriminator_fn,
    )


def wasserstein_generator_loss(gan_model: GANModel, *, add_summaries: bool = False) -> Any:
    """Replaces `tf.contrib.gan.losses.wasserstein_generator_loss`."""
    return -tf.reduce_mean(gan_model.discriminator_gen_outputs)


def wasserstein_discriminator_loss(gan_model: GANModel, *, add_summaries: bool = False) -> Any:
    """Replaces `tf.contrib.gan.losses.wasserstein_discriminator_loss`."""
    real, generated = gan_model.discriminator_real_outputs, gan_model.discriminator_gen_outputs
    return tf.reduce_mean(generated) - tf.reduce_mean(real)


def modified_generator_loss(
    gan_model: GANModel, label_smoothing: float = 0.0, *, add_summaries: bool = False
) -> Any:
    """Replaces `tf.contrib.gan.losses.modified_generator_loss`."""
    return _cross_entropy(gan_model.discriminator_gen_outputs, 1.0, label_smoothing)


def minimax_generator_loss(
    gan_model: GANModel, label_smoothing: float = 0.0, *, add_summaries: bool = False
) -> Any:
    """Replaces `tf.contrib.gan.losses.minimax_generator_loss`."""
    generated = gan_model.discriminator_gen_outputs
    ones = _cross_entropy(tf.ones_like(generated), 1.0, label_smoothing)
    return -(ones + _cross_entropy(generated, 0.0))


def modified_discriminator_loss(
    gan_model: GANModel, label_smoothing: float = 0.25, *, add_summaries: bool = False
) -> Any:
    """Replaces `tf.contrib.gan.losses.modified_discriminator_loss`."""
    real = _cross_entropy(gan_model.discriminator_real_outputs, 1.0, label_smoothing)
    return real + _cross_entropy(gan_model.discriminator_gen_outputs, 0.0)


minimax_discriminator_loss = modified_discriminator_loss


def least_squares_generator_loss(
    gan_model: GANModel, real_label: float = 1, *, add_summaries: bool = False
) -> Any:
    """Replaces `tf.contrib.gan.losses.least_squares_generator_loss`."""
    return 0.5 * tf.reduce_mean(tf.square(gan_model.discriminator_gen_outputs - real_label))


def least_squares_discriminator_loss(
    gan_model: GANModel,
    real_label: float = 1,
    fake_label: float = 0,
    *,
    add_summaries: bool = False,
) -> Any:
    """Replaces `tf.contrib.gan.losses.least_squares_discriminator_loss`."""
    real, generated = gan_model.discriminator_real_outputs, gan_model.discriminator_gen_outputs
    squares = tf.reduce_mean(tf.square(real - real_label))
    return 0.5 * (squares + tf.reduce_mean(tf.square(generated - fake_label)))


def _cross_entropy(logits: Any, label: float, smoothing: float = 0.0) -> Any:
    labels = tf.fill(tf.shape(logits), label)
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels * (1 - smoothing) + 0.5 * smoothing, logits)
    )


def gan_loss(
    model: GANModel,
    generator_loss_fn: Callable[..., Any] = wasserstein_generator_loss,
    discriminator_loss_fn: Callable[..., Any] = wasserstein_discriminator_loss,
    add_summaries: bool = True,
    **options: Any,
) -> GANLoss:
    """Replaces `tf.contrib.gan.gan_loss`, without gradient penalty and other additions."""
    if unknown := [name for name, value in options.items() if value is not None]:
        raise refusal(f"gan_loss has {unknown}: expected None. Add it to discriminator_loss_fn.")
    losses = [
        function(model, add_summaries=add_summaries)
        + tf1.losses.get_regularization_loss(f"(.*/)?{scope.name}/")
        for function, scope in (
            (generator_loss_fn, model.generator_scope),
            (discriminator_loss_fn, model.discriminator_scope),
        )
    ]
    return GANLoss(*losses)


def gan_train_ops(
    model: GANModel,
    loss: GANLoss,
    generator_optimizer: Any,
    discriminator_optimizer: Any,
    check_for_unused_update_ops: bool = True,
    *,
    is_chief: bool = True,
    summarize_gradients: bool = False,
    **options: Any,
) -> GANTrainOps:
    """Replaces `tf.contrib.gan.gan_train_ops`; the results do not count the step."""
    if unknown := sorted(name for name, value in options.items() if value is not None):
        raise refusal(
            f"gan_train_ops has {unknown}: expected none. Change the gradients in the optimizer."
        )
    parts = (
        (loss.generator_loss, generator_optimizer, model.generator_variables),
        (loss.discriminator_loss, discriminator_optimizer, model.discriminator_variables),
    )
    with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        ops = [optimizer.minimize(each, var_list=variables) for each, optimizer, variables in parts]
    return GANTrainOps(*ops, get_global_step().assign_add(1))


def get_joint_train_hooks(train_steps: Any = (1, 1)) -> Any:
    """Replaces `tf.contrib.gan.get_joint_train_hooks`: one joint update of both in a step."""
    if tuple(train_steps) != (1, 1):
        raise refusal(
            f"train_steps is {tuple(train_steps)}: expected GANTrainSteps(1, 1). Set the learning "
            "rates of both optimizers instead."
        )
    return lambda train_ops: []


get_sequential_train_hooks = get_joint_train_hooks


class GANEstimator(Estimator):
    """Replaces `tf.contrib.gan.estimator.GANEstimator`; both learn from one batch in a step."""

    def __init__(
        self,
        model_dir: str | None = None,
        generator_fn: Any = None,
        discriminator_fn: Any = None,
        generator_loss_fn: Any = None,
        discriminator_loss_fn: Any = None,
        generator_optimizer: Any = None,
        discriminator_optimizer: Any = None,
        get_hooks_fn: Any = None,
        get_eval_metric_ops_fn: Any = None,
        add_summaries: Any = None,
        use_loss_summaries: bool = True,
        config: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        losses = (generator_loss_fn, discriminator_loss_fn)
        optimizers = (generator_optimizer, discriminator_optimizer)

        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            generate = _with_mode(generator_fn, mode)
            if mode == ModeKeys.PREDICT:
                with tf1.variable_scope("Generator"):
                    return EstimatorSpec(mode, predictions=generate(features))
            model = gan_model(generate, _with_mode(discriminator_fn, mode), labels, features)
            loss = GANLoss(*(f(model, add_summaries=use_loss_summaries) for f in losses))
            total = loss.generator_loss + loss.discriminator_loss
            if mode == ModeKeys.EVAL:
                ops = {name: metrics.mean(each) for name, each in loss._asdict().items()}
                own = get_eval_metric_ops_fn and get_eval_metric_ops_fn(model)
                ops |= own or {}
                return EstimatorSpec(mode, model.generated_data, total, None, ops)
            made = [each() if callable(each) else each for each in optimizers]
            ops = gan_train_ops(model, loss, *made)
            hooks = get_hooks_fn(ops) if get_hooks_fn else []
            return EstimatorSpec(mode, loss=total, train_op=tf.group(ops[:2]), training_hooks=hooks)

        super().__init__(model_fn, model_dir, config, None, warm_start_from)


def _with_mode(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """Returns a function that gets the mode, if it takes one."""
    if "mode" not in inspect.signature(function).parameters:
        return function
    return lambda *args: function(*args, mode=mode)


LOSSES: Mapping[str, Any] = {
    name: value for name, value in globals().items() if name.endswith("r_loss")
}
