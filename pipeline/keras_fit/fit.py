# SPDX-License-Identifier: Apache-2.0
"""Trains a compiled Keras model by the driver, with the arguments of `keras.Model.fit`."""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from ..contract import seeds, signatures, weight_averages
from ..contract.batch_functions import random_numbers
from ..contract.checks import Check, check, instance, integer, is_int, is_number, repr_short
from ..contract.hooks import Hook, check_hooks
from ..contract.old_names import reject_unknown_arguments
from ..contract.run_config import PRECISIONS, RunConfig
from ..contract.spec import ModeKeys
from ..data import data_service
from ..data.batch import as_pair
from ..data.source import InputContext, Source
from ..distribute import modules as modules_lib
from ..distribute import names
from ..errors import UserRuntimeError, UserTypeError, UserValueError
from ..estimator import execution
from ..estimator.estimator import Estimator, train_and_evaluate
from ..hooks.logging_hook import LoggingHook
from ..hooks.stop_hooks import RepeatInputHook
from ..loop.specs import EvalSpec, TrainSpec
from ..run import log
from ..warm_start.settings import WarmStartSettings
from . import own_steps
from .callbacks import (
    BatchCallbacks,
    KerasCallbacks,
    ValidationCallbacks,
    checked,
    steps_between_batches,
)
from .compiled import compile_parts, compiled_spec
from .data import Data, warn_of_order
from .given_model import GivenModel
from .model import build, check_compiled, compiled_modules, modules_of, new_model
from .result import FitResult

_INPUT_ARGUMENTS = ("mode", "params", "config", "input_context", "first_batch")
_STEPS = integer(1, example=100, optional=True)
_VERBOSE = Check(lambda v: v == "auto" or (is_int(v) and v in (0, 1, 2)), "'auto', 0, 1 or 2", "0")
_CONFIG = instance(RunConfig, "a RunConfig", "RunConfig(model_dir='runs/1')", optional=True)
# Global steps at which the calls of this process with a model have ended, by model_dir.
_calls: dict[str, list[int]] = {}
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
    make_model: keras.Model | Callable[[], keras.Model],
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: Sequence[keras.callbacks.Callback] | None = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int = 1,
    *,
    hooks: Sequence[Hook] = (),
    config: RunConfig | None = None,
) -> FitResult:
    """Trains a compiled Keras model on one device or many; another call continues a model_dir.

        def make_model():
            model = keras.Sequential([keras.layers.Dense(1)])
            model.compile("adam", "mse", metrics=["mae"])
            return model

        result = fit(make_model, x, y, epochs=3, config=RunConfig("runs/prices"))
        result.model.predict(x)

    It is `train_and_evaluate` with the arguments, losses, metrics and callbacks of Keras.

    A function is called under the strategy; another call with it continues the training of
    model_dir. A model keeps what it has learned, so that another call in the program is another
    training from its weights, as in Keras: to train on, to unfreeze layers, to compile it again.
    Calls with a model are numbered in the order of the program: the first one writes to model_dir,
    the second one to model_dir/fit_2, and so on. A program that is started again resumes each call
    where it was: those that have ended only set the weights of the model.

    Args:
      make_model: function that returns a new compiled model at each call; or a compiled model. On
        one device without a strategy the model itself is trained. Otherwise it is made again from
        its configuration and compared, and afterwards gets the trained values.
      x: arrays or tensors with one row for each example, or a nest of these; a `tf.data.Dataset`
        or `keras.utils.PyDataset` of batches of all replicas, `(x, y)` or `(x, y,
        sample_weight)`; or a function that returns such a dataset, which may take the arguments
        of any input_fn. Every process passes the same data.
      y: labels, if `x` is arrays: an array, or a nest of arrays for several outputs.
      batch_size: number of examples of a step of all replicas, if `x` is arrays; None for 32.
      epochs: number of the last epoch; of a function from the beginning of model_dir, also of
        earlier calls.
      verbose: 0 prints no line for each epoch.
      callbacks: Keras callbacks. Those with methods for batches are called every
        `steps_per_execution` steps of `compile`. With TerminateOnNaN training ends as
        `RunConfig.on_nan` has it: by default with an error.
      validation_split: share of the rows of arrays, the last ones, to validate on.
      validation_data: data that are evaluated after each epoch: `(x_val, y_val)` or `(x_val,
        y_val, sample_weight)` of arrays, or as `x`.
      shuffle: whether each epoch has the rows of arrays, or the batches of a PyDataset, in another
        order. The seed of the run decides it, so that all processes and a restart agree.
      class_weight: factors of the losses of examples by class, for one output with class numbers
        or one-hot labels.
      sample_weight: factors of the losses of examples, if `x` is arrays.
      initial_epoch: number of the first epoch, from 0, in a new model_dir. A call that continues
        one has the same.
      steps_per_epoch: number of steps of an epoch; None for a pass over the data.
      validation_steps: number of batches of a validation, the first ones; None for all.
      validation_batch_size: number of examples of a batch of validation; None for `batch_size`.
      validation_freq: number of epochs from one validation to the next.
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
    check("config", config, _CONFIG)
    check("epochs", epochs, integer(1, example=10))
    check("initial_epoch", initial_epoch, integer(0, most=epochs - 1, example=0))
    check("verbose", verbose, _VERBOSE)
    check("steps_per_epoch", steps_per_epoch, _STEPS)
    check("validation_steps", validation_steps, _STEPS)
    check("validation_freq", validation_freq, integer(1, example=1))
    check("class_weight", class_weight, _CLASS_WEIGHT)
    hooks, callbacks = check_hooks("hooks", hooks), checked(callbacks)
    data = Data(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        shuffle=shuffle,
        validation_split=validation_split,
        validation_data=validation_data,
        validation_batch_size=validation_batch_size,
    )
    train_fn = _prepared("x", data.train_fn, class_weight)
    validation_fns = []
    if data.validation_fn is not None:
        validation_fns = [_prepared("validation_data", data.validation_fn)]
    is_model = isinstance(make_model, keras.Model)
    policy = make_model.dtype_policy if is_model else keras.config.dtype_policy()
    config = _config(config or RunConfig(), callbacks, policy, validates=bool(validation_fns))
    if verbose == 0:
        config = config.replace(progress=False)
    if config.cluster.has_servers and isinstance(x, keras.utils.PyDataset):
        raise UserTypeError(
            f"x is {repr_short(x)}: expected arrays, or a function that returns a dataset of "
            "TensorFlow's operations, which workers of parameter servers run without Python. Set "
            "x=np.concatenate([...])."
        )
    warn_of_order("x", x, num_processes=len(config.cluster.tasks))
    if steps_per_epoch is None:
        _check_countable(train_fn, config)
        execution.create(config)  # Devices and clusters have to be set up before any tensor.
        steps_per_epoch = _steps_of_pass(train_fn, config)
    config = _saving(config, steps_per_epoch)

    given, calls = None, None
    if is_model:
        model_dir = str(config.model_dir)
        calls = _calls.setdefault(model_dir, [])
        if calls:
            folder = os.path.join(model_dir, f"fit_{len(calls) + 1}")
            config = config.replace(model_dir=folder)
        strategy = execution.create(config)
        with _connect_in_errors():
            given = GivenModel(make_model, strategy, _batch(train_fn, config))
        make_model = given
    modules = compiled_modules(make_model, lambda model: check_compiled(model, config))
    estimator = Estimator(_model_fn, modules=modules, config=config)
    if given is not None:
        start = WarmStartSettings(
            init_fn=lambda modules: given.set_values(modules, estimator.state.replicas)
        )
        estimator = Estimator(_model_fn, modules=modules, config=config, warm_start_from=start)
    total = (epochs - initial_epoch) * steps_per_epoch
    params = {
        "verbose": 1 if verbose == "auto" else verbose,
        "epochs": epochs,
        "steps": steps_per_epoch,
    }
    make_plain = functools.cache(functools.partial(_plain_model, make_model, config, train_fn))
    hook = KerasCallbacks(
        callbacks,
        estimator,
        params=params,
        initial_epoch=initial_epoch,
        validation_freq=validation_freq if validation_fns else None,
        earlier=None if calls is None else tuple(calls),
        copy=lambda: _with_values(make_plain(), _values(estimator)),
    )
    on_batches = [BatchCallbacks(hook)] if any(map(steps_between_batches, callbacks)) else []
    if calls is not None:
        calls.append(-1)  # Until it ends.
    is_default = "log_step_count_steps" not in config.changes()
    if log.is_terminal() and is_default and not any(isinstance(h, LoggingHook) for h in hooks):
        hooks = [*hooks, LoggingHook(total)]  # Epochs are enough, as in Keras.
    # Steps count from initial_epoch, and epochs with a validation from 0.
    every_steps = steps_per_epoch * math.gcd(validation_freq, initial_epoch)
    on_validation = [ValidationCallbacks(hook)]
    with log.quiet():  # Epochs are enough, as in Keras.
        train_and_evaluate(
            estimator,
            TrainSpec(train_fn, total, hooks=[*hooks, hook, *on_batches, RepeatInputHook()]),
            [
                EvalSpec(each, validation_steps, hooks=on_validation, every_steps=every_steps)
                for each in validation_fns
            ],
        )
    if config.cluster.has_servers and config.task_type != "chief":
        return FitResult(None, {}, estimator, [], params)
    with estimator.state.using(weight_averages.to_serve(None, estimator.config.average)):
        values = _values(estimator)
    if given is not None and calls is not None:
        calls[-1] = estimator.state.step
        model, estimator = given.take(values), given.released(estimator)
    else:
        model = _with_values(make_plain(), values)
    return FitResult(model, hook.history, estimator, hook.epoch, params)


def _model_fn(features: Any, labels: Any, mode: str, network: Any, optimizer: Any) -> Any:
    """Returns the spec of a compiled model."""
    parts = dataclasses.replace(compile_parts(network), optimizer=optimizer)
    is_first = mode == ModeKeys.TRAIN and not tf.distribute.has_strategy()  # Before the steps.
    if own_steps.reason_for_own_step(network) is not None:
        if mode == ModeKeys.PREDICT:
            return compiled_spec(mode, network, own_steps.call(network, features), None, parts)
        return own_steps.own_step_spec(mode, network, _packed(features, labels))
    weights = None
    if isinstance(labels, Weighted):
        labels, weights = labels
    outputs = network(features, training=mode == ModeKeys.TRAIN)
    spec = compiled_spec(mode, network, outputs, labels, parts, weights=weights)
    if is_first:
        _warn_of_joined_outputs(network, features)  # Other losses are in `network.losses` then.
    return spec


def _warn_of_joined_outputs(network: keras.Model, features: Any) -> None:
    """Warns, on several replicas, if the outputs of an example depend on the rest of its batch."""
    number = network.distribute_strategy.num_replicas_in_sync
    if number == 1:
        return
    random = np.random.default_rng(0)

    def outputs(rows: int) -> list[np.ndarray]:
        part = tf.nest.map_structure(lambda each: tf.constant(each[:rows]), batch)
        with own_steps.without_effect(network):
            found = tf.nest.flatten(network(part, training=False))
        return [np.asarray(each, np.float32)[:4] for each in found]

    def close(one: np.ndarray, other: np.ndarray) -> bool:
        share = 1e-3 if network.compute_dtype == "float32" else 5e-2
        return np.allclose(one, other, rtol=0, atol=share * np.abs(one).max())

    with contextlib.suppress(Exception):  # It may need other examples.
        batch = tf.nest.map_structure(
            lambda each: random_numbers(random, each.shape[1:], each.dtype), features
        )
        # A difference of two calls with the same rows comes from random numbers.
        whole, again, half = (own_steps.outside(outputs, rows) for rows in (8, 8, 4))
        if all(map(close, whole, again)) and not all(map(close, whole, half)):
            logging.warning(
                "%s joins the examples of a batch: its outputs for 4 examples depend on 4 others, "
                "and so on the %d replicas. Write operations that leave the first axis alone, or "
                "train on one device.",
                type(network).__name__,
                number,
            )


def _packed(features: Any, labels: Any) -> Any:
    """Returns what Keras passes to `train_step`."""
    labels, weights = labels if isinstance(labels, Weighted) else (labels, None)
    return keras.utils.pack_x_y_sample_weight(features, labels, weights)


def _config(
    config: RunConfig, callbacks: Sequence[Any], policy: Any, *, validates: bool
) -> RunConfig:
    """Returns the RunConfig with a directory, and the defaults of `fit`."""
    if config.evaluation == "evaluator" and validates:
        raise UserValueError(
            "RunConfig.evaluation is 'evaluator': expected 'inline', since callbacks get the "
            "results of validation at the end of each epoch. Set evaluation='inline'."
        )
    if config.evaluation == "auto":
        config = config.replace(evaluation="inline")
    if config.precision == "float32" and policy.name in PRECISIONS:
        config = config.replace(precision=policy.name)
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
    signatures.arguments(input_fn, dict.fromkeys(_INPUT_ARGUMENTS), role=name)

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
            dataset = dataset.map(lambda x: (x, None))
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
    """Refuses trainings that make other steps in a pass than the dataset has elements."""
    if config.cluster.has_servers:
        reason = "the workers of parameter servers read at their own speeds"
    elif signatures.accepts(input_fn, "input_context"):
        reason = "input_fn takes input_context, so that each process reads other data"
    elif data_service.address(ModeKeys.TRAIN):
        reason = "each data worker may end its part of the data with a smaller batch"
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


@contextlib.contextmanager
def _connect_in_errors() -> Iterator[None]:
    """Explains TensorFlow's error for values that it has lost when it connected the tasks."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if "Client for target" not in str(error):
            raise
        raise UserRuntimeError(
            "The program made the model or tensors before its tasks were connected, and TensorFlow "
            "has lost them: expected none before. Write connect(config) as the first line."
        ) from error


def _batch(input_fn: Callable[..., Any], config: RunConfig) -> Any:
    """Returns one batch as Keras passes it to `train_step`."""
    dataset = Source(input_fn, ModeKeys.TRAIN, config).dataset(InputContext())
    return _packed(*as_pair(next(iter(dataset))))


def _values(estimator: Estimator) -> dict[str, tf.Tensor]:
    """Returns the values of network and optimizer by name."""
    state = estimator.state
    return {
        name: _value(state.replicas.strategy, variable)
        for name, variable in names.variables_of(state.modules).items()
    }


def _plain_model(
    make_model: Callable[[], keras.Model], config: RunConfig, input_fn: Callable[..., Any]
) -> keras.Model:
    """Returns a new model outside of the strategy, in the precision of the training."""
    seed = config.tf_random_seed or 0  # Training may continue with its own random numbers.
    with modules_lib.in_precision(config.precision), seeds.seeded(seed, "plain model"):
        model = new_model(make_model)
        build(model, _batch(input_fn, config))
    return model


def _with_values(model: keras.Model, values: Mapping[str, tf.Tensor]) -> keras.Model:
    """Returns a model of `_plain_model` with the values of network and optimizer by name."""
    for name, variable in names.variables_of(modules_of(model)).items():
        variable.assign(values[name])
    return model


def _value(strategy: tf.distribute.Strategy, variable: Any) -> tf.Tensor:
    """Returns the value of a variable on the first local replica; of a table all rows."""
    if len(names.parts_of(variable)) > 1:
        return tf.convert_to_tensor(variable)
    return tf.convert_to_tensor(strategy.experimental_local_results(variable)[0])
