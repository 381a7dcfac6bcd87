# SPDX-License-Identifier: Apache-2.0
"""Private names of Keras, TensorFlow and gin: one function each, and nowhere else.

Their next release may rename them. `tests/private_test.py` shows which one broke. It ran on Keras
3.6.0, 3.15.1 and 3.16.0.dev2026102704, TensorFlow 2.16.2, 2.21.0 and 2.22.0rc0, and gin 0.5.0.
"""

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.eager import context

# The class of layers' variables. Before Keras 3.7 they are not instances of keras.Variable itself.
KERAS_VARIABLE: type = keras.Variable.__base__
# The class of a table in shards: publicly, only the scope of a parameter server strategy makes one.
SHARDED_VARIABLE: type = tf.__internal__.distribute.ShardedVariable
# The class of tf.train.Checkpoint and of loaded SavedModels.
AUTO_TRACKABLE: type = tf.__internal__.tracking.AutoTrackable


def use_summed_gradients(optimizer: Any) -> None:
    """Makes an optimizer take gradients that are the same on each replica.

    Keras 3.6 to 3.16 adds them up in `_all_reduce_sum_gradients`, after clipping, without option.
    """
    optimizer._all_reduce_sum_gradients = list


def clip_by(optimizer: Any, clip: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    """Makes an optimizer clip gradients by a function instead of by its options.

    Keras 3.6 to 3.16: `_clip_gradients`. The options cannot be unset while several replicas, each
    in a thread, apply gradients.
    """
    optimizer._clip_gradients = clip


def decays(optimizer: Any, variable: Any) -> bool:
    """Returns whether a built optimizer has a weight decay for a variable.

    Keras 3.6 to 3.16: `_use_weight_decay`. `exclude_from_weight_decay` has no reader.
    """
    kind = type(optimizer)
    return optimizer.weight_decay is not None and kind._use_weight_decay(optimizer, variable)


def decay_without(optimizer: Any, variables: Iterable[Any]) -> None:
    """Makes a built optimizer not decay these variables until the next call.

    Keras 3.6 to 3.16: `_use_weight_decay`. `exclude_from_weight_decay` comes before `build`.
    """
    index_of = optimizer._get_variable_index
    excluded = {index_of(variable) for variable in variables}
    optimizer._use_weight_decay = lambda v: index_of(v) not in excluded and decays(optimizer, v)


def slots_of(optimizer: Any, variable: Any) -> dict[str, Any]:
    """Returns the slots of a variable by the optimizer's lists such as `_momentums`, or {}.

    Keras 3.6 to 3.16: `_get_variable_index`. Public names of slots do not all have the variable's.
    """
    try:
        index = optimizer._get_variable_index(variable)
    except KeyError:
        return {}
    lists = {name: each for name, each in vars(optimizer).items() if isinstance(each, list)}
    found = {
        name: each[index]
        for name, each in lists.items()
        if len(each) > index and name not in ("_variables", "_trainable_variables")
    }
    slots = {name: each for name, each in found.items() if isinstance(each, KERAS_VARIABLE)}
    return {name: slot for name, slot in slots.items() if slot.shape == variable.shape}


def with_slots(optimizer: Any, variable: Any, convert: Callable[[Any], Any]) -> Any:
    """Returns a twin to call `update_step` with an object in place of a variable and of its slots.

    Keras 3.6 to 3.16: `_get_variable_index`. A public copy would create variables. `convert` makes
    the object for a slot. They need `assign`, `assign_add` and `assign_sub`.
    """
    index = optimizer._get_variable_index(variable)
    twin = object.__new__(type(optimizer))
    own = vars(twin)
    own |= vars(optimizer)
    own |= {name: {index: convert(slot)} for name, slot in slots_of(optimizer, variable).items()}
    own["_get_variable_index"] = lambda _: index
    for method in ("assign", "assign_add", "assign_sub"):
        own[method] = lambda slot, value, method=method: getattr(slot, method)(value)
    return twin


def scale_rate(optimizer: Any, scale: Callable[[Any], tf.Tensor] | None) -> None:
    """Makes an optimizer use a function of its configured learning rate; None: the rate itself.

    Keras 3.6 to 3.16: `_get_current_learning_rate`. To set `learning_rate` to a function removes
    the variable of a constant rate from the optimizer, and so from checkpoints.
    """
    vars(optimizer).pop("_get_current_learning_rate", None)
    if scale is not None:
        configured = optimizer._get_current_learning_rate
        optimizer._get_current_learning_rate = lambda: scale(configured())


def restore_methods(optimizer: Any) -> None:
    """Undoes what replaces methods of the one object: the functions above, and RowOptimizer."""
    for name in (
        "_all_reduce_sum_gradients",
        "_clip_gradients",
        "_get_current_learning_rate",
        "_use_weight_decay",
        "update_step",
    ):
        vars(optimizer).pop(name, None)


def sublayers(layer: keras.Layer) -> list[keras.Layer]:
    """Returns the layers directly in a layer, in the order in which they were set.

    Keras 3.6 to 3.16: `_layers`. Only models have `layers`, without the ones in lists and dicts.
    """
    return layer._layers


class _LossesOfThread(threading.local):
    """The operations of Keras' layers on their list of losses, on a list for each thread."""

    def __init__(self) -> None:
        self._found: list[Any] = []

    def extend(self, losses: Sequence[Any]) -> None:
        self._found.extend(losses)

    def clear(self) -> None:
        self._found.clear()

    def __getitem__(self, part: slice) -> list[Any]:
        return self._found[part]

    def __reduce__(self) -> tuple[Any, ...]:  # To copy a layer.
        return _LossesOfThread, ()


def keep_losses_by_thread(layer: keras.Layer) -> None:
    """Makes a layer keep the losses of `add_loss` for each thread, as each replica has one.

    Keras 3.6 to 3.16: `_losses`, a list that a replica would read after another one's call.
    """
    layer._losses = _LossesOfThread()


def compile_arguments(model: Any) -> Mapping[str, Any]:
    """Returns the arguments of `compile` as they were given; empty if it was not called.

    Keras 3.6 to 3.16: `_compile_config`. `get_compile_config` copies metrics and losses.
    """
    return getattr(getattr(model, "_compile_config", None), "config", {})


def compile_containers(model: Any) -> list[Any]:
    """Returns the parts of a compiled model that call its losses and its metrics.

    Keras 3.6 to 3.16: `_compile_loss` and `_compile_metrics`. Only their metrics are public.
    """
    found = [getattr(model, name, None) for name in ("_compile_loss", "_compile_metrics")]
    return [each for each in found if each is not None]


def metrics_of_call(model: Any) -> list[Any]:
    """Returns the metrics of a compiled model and its layers that are not those of `compile`.

    Keras 3.6 to 3.16: `_loss_tracker`. `model.metrics` does not say whose they are.
    """
    made = [model._loss_tracker, *compile_containers(model)]
    made += [metric for each in compile_containers(model) for metric in each.metrics]
    ids = {id(each) for each in made}
    return [metric for metric in model.metrics if id(metric) not in ids]


def takes_number(metric: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> bool:
    """Returns whether a MeanMetricWrapper gets one number for a batch, without a weight.

    Keras 3.6 to 3.16: `_fn` and `_fn_kwargs`. The configuration has no function itself.
    """
    if sample_weight is not None:
        return False
    return keras.ops.ndim(metric._fn(y_true, y_pred, **metric._fn_kwargs)) == 0


def trained_by(optimizer: Any) -> list[Any]:
    """Returns the variables for which an optimizer was built.

    Keras 3.6 to 3.16: `_trainable_variables`, which `apply` takes if it is given none.
    """
    return list(optimizer._trainable_variables)


@contextlib.contextmanager
def names_of_new_process() -> Iterator[None]:
    """Makes Keras count the names of this thread (`dense`, `dense_1`) from 0 in the block.

    Keras 3.6 to 3.16: `global_state`. No public function restores the counts after the block.
    """
    naming = sys.modules[keras.backend.get_uid.__module__]
    tracker, key = naming.global_state, "object_name_uids"
    before = tracker.get_global_attribute(key)
    naming.reset_uids()
    try:
        yield
    finally:
        tracker.set_global_attribute(key, before)


def compiles_by_default(model: keras.Model) -> bool:
    """Returns whether `compile` takes its default `jit_compile="auto"` for True, as on a GPU.

    Keras 3.6 to 3.16: `_resolve_auto_jit_compile`. Its result is stored as if it was given.
    """
    return model._resolve_auto_jit_compile()


def choose_monitor_op(callback: Any) -> None:
    """Makes a callback that compares a metric choose the direction now; a ValueError: unknown.

    Keras 3.6 to 3.16: `_set_monitor_op`. At its first comparison it forgets a restored best value.
    """
    if getattr(callback, "monitor_op", callback) is None:
        callback._set_monitor_op()


def profiles_batches(callback: Any) -> bool:
    """Returns whether a callback is a TensorBoard with `profile_batch`.

    Keras 3.6 to 3.16: `_start_batch` and `_stop_batch`. The argument itself is not kept.
    """
    return bool(getattr(callback, "_start_batch", 0) or getattr(callback, "_stop_batch", 0))


def set_batch_number(callback: Any, number: int) -> None:
    """Makes a TensorBoard take its next batch for the one of a number, from 1.

    Keras 3.6 to 3.16: `_global_train_batch`. It counts calls, and is not called in each batch.
    Keras 3.6: `_train_step`, the step of its points, which stays 0 there.
    """
    if isinstance(callback, keras.callbacks.TensorBoard):
        callback._global_train_batch = number - 1
        callback._train_step = number


def generator_of_process() -> Any:
    """Returns the generator of `keras.random` without a seed; None before this thread has drawn.

    Keras 3.6 to 3.16: `global_seed_generator` of `global_state`. No public name has it.
    """
    module = sys.modules[keras.random.SeedGenerator.__module__]
    return module.global_state.get_global_attribute("global_seed_generator")


def set_eager_seed(seed: int | None, base: int | None) -> None:
    """Sets the seed that draws operations' own seeds, and `base`, which they combine with these.

    TensorFlow 2.16 to 2.22: `_seed` and `_rng`. `tf.random.set_seed` also clears all compiled
    kernels: random operations of a training would repeat their numbers after each evaluation.
    """
    eager = context.context()
    eager._seed, eager._rng = base, random.Random(seed)


def set_heartbeat_timeout(jobs: Mapping[str, Sequence[str]], leader: str, secs: float) -> None:
    """Sets the heartbeat timeout of tasks by job, before their strategy exists, instead of 10 s.

    TensorFlow 2.16 to 2.22: `configure_coordination_service`. No public option is for heartbeats.
    """
    make_job = context.coordination_config_pb2.CoordinatedJob
    context.context().configure_coordination_service(
        "standalone",
        service_leader=f"/job:{leader}/replica:0/task:0",
        coordinated_jobs=[make_job(name=job, num_tasks=len(tasks)) for job, tasks in jobs.items()],
        heartbeat_timeout_in_ms=int(1000 * secs),
    )


def packed_handle(variable: Any) -> tf.Tensor | None:
    """Returns the handle of all copies of a variable, by which TPUs capture it; None elsewhere.

    TensorFlow 2.16 to 2.22: `_packed_variable`. A public read may add up the copies of workers.
    """
    return getattr(getattr(variable, "_packed_variable", None), "packed_handle", None)


class DatasetParts(NamedTuple):
    """Inputs, concrete functions and arrays of a dataset; whether it was set to be unordered."""

    inputs: list[tf.data.Dataset]
    functions: list[Any]
    arrays: list[tf.Tensor]
    is_unordered: bool


def parts_of(dataset: tf.data.Dataset) -> DatasetParts:
    """Returns the parts of a dataset; its public graph has copies of all arrays, at most 2 GB.

    TensorFlow 2.16 to 2.22: `_inputs`, `_functions`, `_tensors` and `_deterministic`.
    """
    return DatasetParts(
        list(dataset._inputs()),
        [each.function for each in dataset._functions()],
        list(getattr(dataset, "_tensors", [])),
        getattr(dataset, "_deterministic", "") == "false",
    )


def gin_registry(gin_config: Any) -> Any:
    """Returns all that gin can configure, by full name, with `wrapped` and `denylist`.

    gin 0.5: `_REGISTRY`; no public list. The core does not import `gin.config`, the argument.
    """
    return gin_config._REGISTRY


def gin_operative(gin_config: Any) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Returns the values that calls so far took from gin, by scope and full name.

    gin 0.5: `_OPERATIVE_CONFIG`. `operative_config_str` has shortened names.
    """
    return dict(gin_config._OPERATIVE_CONFIG)
