"""Trains a compiled Keras model by the driver, with the arguments of `keras.Model.fit`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from ..contract import averages, calling
from ..contract.checks import Check, check, instance, integer, is_int, is_number, shown
from ..contract.hooks import Hook, check_hooks
from ..contract.old_names import reject_unknown_arguments
from ..contract.run_config import PRECISIONS, RunConfig
from ..contract.spec import ModeKeys
from ..data.batch import as_pair
from ..data.source import InputContext, Source
from ..distribute import modules as modules_lib
from ..distribute import names
from ..errors import UserTypeError, UserValueError
from ..estimator import execution
from ..estimator.estimator import Estimator, train_and_evaluate
from ..hooks.stock import LoggingHook
from ..hooks.stops import RepeatInputHook
from ..loop.specs import EvalSpec, TrainSpec
from ..run import log
from . import own_steps
from .callbacks import KerasCallbacks, ValidationCallbacks, checked
from .compiled import compile_parts, compiled_spec
from .model import check_compiled, compiled_modules, new_model

_INPUT_ARGUMENTS = ("mode", "params", "config", "input_context", "first_batch")
_STEPS = integer(1, example=100, optional=True)
_CONFIG = instance(RunConfig, "a RunConfig", "RunConfig(model_dir='runs/1')", optional=True)
_CLASS_WEIGHT = Check(
    lambda v: (
        isinstance(v, Mapping)
        and all(is_int(c) and c >= 0 for c in v)
        and all(is_number(w) for w in v.values())
    ),
    "a dict of class numbers and weights",
    "{0: 1.0, 1: 2.0}",
    optional=True,
)


class FitResult(NamedTuple):
    """Result of `fit`.

    Attributes:
      model: compiled model with the trained weights and optimizer, outside of any strategy, in the
        precision of the training; None in a worker or server of parameter servers, which serve
        the chief.
      history: values by Keras' names, such as `loss` and `val_loss`, one for each epoch.
      estimator: the Estimator, to evaluate, predict and export.
    """

    model: keras.Model  # Not `| None`: each program for one machine would have to check it.
    history: dict[str, list[Any]]
    estimator: Estimator

    @property
    def is_chief(self) -> bool:
        """Whether this is the one process of a cluster that writes files, such as an export."""
        return self.estimator.config.is_chief

    def __repr__(self) -> str:
        """Returns the number of epochs, the last values and the directory."""
        epochs = max(map(len, self.history.values()), default=0)
        values = {name: each[-1] for name, each in self.history.items() if len(each) == epochs}
        last = "".join(f"{k}={v:.4g}, " for k, v in values.items() if isinstance(v, float))
        return f"FitResult(epochs={epochs}, {last}model_dir={self.estimator.model_dir!r})"


class Weighted(NamedTuple):
    """Labels of a dataset with weights of examples.

    Attributes:
      labels: nest of tensors.
      weights: tensor `[batch]`, or a nest of these for several outputs.
    """

    labels: Any
    weights: Any


@reject_unknown_arguments
def fit(
    make_model: Callable[[], keras.Model],
    input_fn: Callable[..., tf.data.Dataset],
    *,
    epochs: int = 1,
    steps_per_epoch: int | None = None,
    max_steps: int | None = None,
    validation: Callable[..., tf.data.Dataset] | None = None,
    class_weight: Mapping[int, float] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    hooks: Sequence[Hook] = (),
    config: RunConfig | None = None,
) -> FitResult:
    """Trains a compiled Keras model on one device or many; another call continues a model_dir.

        def make_model():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("adam", "mse", metrics=["mae"])
            return model

        def input_fn():
            return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32)

        result = fit(make_model, input_fn, epochs=3, config=RunConfig("runs/prices"))
        result.model.predict(x)

    It is `train_and_evaluate` with the losses, metrics and callbacks of Keras.

    Args:
      make_model: function that returns a new compiled model at each call, which is made under the
        strategy.
      input_fn: function that returns a dataset of batches of all replicas: `(x, y)` or
        `(x, y, sample_weight)`. It may take no arguments, or those of any input_fn.
      epochs: number of epochs from the beginning of model_dir, also of earlier calls.
      steps_per_epoch: number of steps of an epoch; None for a pass over the data.
      max_steps: global step at which to end if it comes before the end of `epochs`. The history
        has no epoch that did not end.
      validation: input_fn of the data that are evaluated after each epoch.
      class_weight: factors of the losses of examples by class, for one output with class numbers
        or one-hot labels.
      callbacks: Keras callbacks that work at the beginnings and ends of training, epochs and
        validations. With TerminateOnNaN training ends as `RunConfig.on_nan` has it: by default
        with an error.
      hooks: hooks of the driver.
      config: how to run; None for a temporary model_dir on this machine. Checkpoints are saved
        after each epoch if it does not set their interval. Keras' global dtype policy is used if
        it does not set `precision`.

    Returns:
      The model, the history and the Estimator.

    Raises:
      UserError: an argument, the compiled model or a callback is refused, with the remedy.
    """
    log.set_up_default()
    train_fn = _prepared("input_fn", input_fn, class_weight)
    check("epochs", epochs, integer(1, example=10))
    check("steps_per_epoch", steps_per_epoch, _STEPS)
    check("max_steps", max_steps, _STEPS)
    check("class_weight", class_weight, _CLASS_WEIGHT)
    check("config", config, _CONFIG)
    hooks, callbacks = check_hooks("hooks", hooks), checked(callbacks)
    config = _config(config or RunConfig(), callbacks, validates=bool(validation))
    validation_fns = [] if validation is None else [_prepared("validation", validation)]
    if steps_per_epoch is None:
        _check_countable(train_fn, config)
        execution.create(config)  # Devices and clusters have to be set up before any tensor.
        steps_per_epoch = _steps_of_pass(train_fn, config)
    config = _saving(config, steps_per_epoch)

    modules = compiled_modules(make_model, lambda model: check_compiled(model, config))
    estimator = Estimator(_model_fn, modules=modules, config=config)
    total = min(epochs * steps_per_epoch, max_steps or epochs * steps_per_epoch)
    hook = KerasCallbacks(
        callbacks,
        estimator,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        max_step=total,
        validates=bool(validation_fns),
    )
    is_default = "log_step_count_steps" not in config.changes()
    if log.is_terminal() and is_default and not any(isinstance(h, LoggingHook) for h in hooks):
        hooks = [*hooks, LoggingHook(total)]  # Epochs are enough, as in Keras.
    on_validation = [ValidationCallbacks(hook)]
    with log.quiet():  # Epochs are enough, as in Keras.
        train_and_evaluate(
            estimator,
            TrainSpec(train_fn, total, hooks=[*hooks, hook, RepeatInputHook()]),
            [
                EvalSpec(each, hooks=on_validation, every_steps=steps_per_epoch)
                for each in validation_fns
            ],
        )
    if config.cluster.has_servers and config.task_type != "chief":
        return FitResult(None, {}, estimator)
    return FitResult(_plain_model(make_model, estimator, train_fn), hook.history, estimator)


def _model_fn(features: Any, labels: Any, mode: str, network: Any, optimizer: Any) -> Any:
    """Returns the spec of a compiled model."""
    parts = dataclasses.replace(compile_parts(network), optimizer=optimizer)
    if own_steps.reason_for_own_step(network) is not None:
        if mode == ModeKeys.PREDICT:
            return compiled_spec(mode, network, own_steps.call(network, features), None, parts)
        return own_steps.own_step_spec(mode, network, _packed(features, labels))
    weights = None
    if isinstance(labels, Weighted):
        labels, weights = labels
    outputs = network(features, training=mode == ModeKeys.TRAIN)
    return compiled_spec(mode, network, outputs, labels, parts, weights=weights)


def _packed(features: Any, labels: Any) -> Any:
    """Returns what Keras passes to `train_step`."""
    labels, weights = labels if isinstance(labels, Weighted) else (labels, None)
    return keras.utils.pack_x_y_sample_weight(features, labels, weights)


def _config(config: RunConfig, callbacks: Sequence[Any], *, validates: bool) -> RunConfig:
    """Returns the RunConfig with a directory, and the defaults of `fit`."""
    if config.evaluation == "evaluator" and validates:
        raise UserValueError(
            "RunConfig.evaluation is 'evaluator': expected 'inline', since callbacks get the "
            "results of validation at the end of each epoch. Set evaluation='inline'."
        )
    if config.evaluation == "auto":
        config = config.replace(evaluation="inline")
    policy = keras.config.dtype_policy().name
    if config.precision == "float32" and policy in PRECISIONS:
        config = config.replace(precision=policy)
    stops = any(isinstance(each, keras.callbacks.TerminateOnNaN) for each in callbacks)
    if stops and config.on_nan == "warn":
        config = config.replace(on_nan="stop")
    return config.in_model_dir(None)


def _saving(config: RunConfig, steps_per_epoch: int) -> RunConfig:
    """Returns the RunConfig with a checkpoint after each epoch unless it sets the interval."""
    if config.save_checkpoints_steps is None and config.save_checkpoints_secs is None:
        return config.replace(save_checkpoints_steps=steps_per_epoch)
    return config


def _prepared(
    name: str, input_fn: Any, class_weight: Mapping[int, float] | None = None
) -> Callable[..., Any]:
    """Returns the input_fn with weights of examples after the labels."""
    if not callable(input_fn):
        has_arrays = any(hasattr(each, "__array__") for each in tf.nest.flatten(input_fn))
        dataset = "tf.data.Dataset.from_tensor_slices((x, y)).batch(32)"
        raise UserTypeError(
            f"{name} is {shown(input_fn)}: expected a function that returns the dataset. Set "
            f"{name}=lambda: {dataset if has_arrays else 'dataset'}."
        )
    calling.arguments(input_fn, dict.fromkeys(_INPUT_ARGUMENTS), role=name)

    @functools.wraps(input_fn)
    def prepared(*args: Any, **kwargs: Any) -> Any:
        dataset = input_fn(*args, **kwargs)
        if not isinstance(dataset, tf.data.Dataset):
            return dataset  # Its check has the message.
        spec = dataset.element_spec
        pair = spec[:2] if type(spec) is tuple else (spec,)
        if any(getattr(each, "shape", None) == () for each in tf.nest.flatten(pair)):
            raise UserTypeError(
                f"{name} yields single examples, of {spec!r:.200}: expected batches. "
                "Return dataset.batch(32)."
            )
        if type(spec) is tuple and len(spec) == 1:
            dataset = dataset.map(lambda x: x)
        if type(spec) is tuple and len(spec) == 3:
            dataset = dataset.map(lambda x, y, weights: (x, Weighted(y, weights)))
        return dataset if class_weight is None else dataset.map(_by_class(class_weight))

    return prepared


def _by_class(class_weight: Mapping[int, float]) -> Callable[[Any, Any], Any]:
    """Returns the function of a dataset that multiplies the weights of examples by class."""
    table = np.ones(max(class_weight, default=0) + 2, np.float32)  # The last one is of all others.
    for number, weight in class_weight.items():
        table[number] = weight

    def weighted(x: Any, y: Any) -> Any:
        labels, weights = y if isinstance(y, Weighted) else (y, 1.0)
        if not tf.is_tensor(labels):
            raise UserTypeError(
                "class_weight is set, and the labels are of several outputs: expected one tensor. "
                "Yield (x, y, sample_weight) instead."
            )
        classes = labels
        if labels.shape.rank > 1:
            is_one_hot = labels.shape[-1] != 1
            classes = tf.argmax(labels, -1) if is_one_hot else tf.squeeze(labels, -1)
        if classes.dtype.is_floating:
            classes = tf.round(classes)
        classes = tf.minimum(tf.cast(classes, tf.int64), len(table) - 1)
        return x, Weighted(labels, tf.gather(table, classes) * tf.cast(weights, tf.float32))

    return weighted


def _check_countable(input_fn: Callable[..., Any], config: RunConfig) -> None:
    """Refuses trainings in which the steps of a pass are not the elements of the dataset."""
    if config.cluster.has_servers:
        reason = "the workers of parameter servers read at their own speeds"
    elif calling.accepts(input_fn, "input_context"):
        reason = "input_fn takes input_context, so that each process reads other data"
    else:
        return
    raise UserValueError(
        f"steps_per_epoch is None, and {reason}: expected a number. Set steps_per_epoch="
        "number of examples // global batch size."
    )


def _steps_of_pass(input_fn: Callable[..., Any], config: RunConfig) -> int:
    """Returns the number of steps of a pass over the data."""
    source = Source(input_fn, ModeKeys.TRAIN, config)
    dataset = source.dataset(InputContext())
    number = int(dataset.cardinality())
    if number == tf.data.INFINITE_CARDINALITY:
        raise UserValueError(
            f"steps_per_epoch is None, and {source.name} returned endless data: expected a "
            "number. Set steps_per_epoch=100, or drop its repeat()."
        )
    if number == tf.data.UNKNOWN_CARDINALITY:
        logging.info("fit | reading the data once to count the steps: set steps_per_epoch")
        number = int(dataset.reduce(np.int64(0), lambda count, *_: count + 1))
        logging.info("fit | steps_per_epoch is %d", number)
    if not number:
        raise source.empty_error()
    return -(-number // config.gradient_accumulation_steps)


def _plain_model(
    make_model: Callable[[], keras.Model], estimator: Estimator, input_fn: Callable[..., Any]
) -> keras.Model:
    """Returns a new model outside of the strategy, with the state of the trained one."""
    state = estimator.state
    with modules_lib.in_precision(state.config.precision):
        model = new_model(make_model)
        is_own = own_steps.reason_for_own_step(model) is not None
        if is_own or not model.built:
            dataset = Source(input_fn, ModeKeys.TRAIN, state.config).dataset(InputContext())
            features, labels = as_pair(next(iter(dataset)))
        if is_own:
            own_steps.build(model, _packed(features, labels))
        elif not model.built:
            model(features, training=False)
    optimizers = {"optimizer": compile_parts(model).optimizer}
    if is_own:
        optimizers = own_steps.optimizers_of(model)
    else:
        model.optimizer.build(model.trainable_variables)
    modules = {"network": model, **optimizers}
    trained = names.variables_of({name: state.modules[name] for name in modules})
    with state.using(averages.to_serve(None, state.config.average)):
        for name, variable in names.variables_of(modules).items():
            variable.assign(_value(state.replicas.strategy, trained[name]))
    return model


def _value(strategy: tf.distribute.Strategy, variable: Any) -> tf.Tensor:
    """Returns the value of a variable on the first local replica; of a table all rows."""
    if len(names.parts_of(variable)) > 1:
        return tf.convert_to_tensor(variable)
    return tf.convert_to_tensor(strategy.experimental_local_results(variable)[0])
