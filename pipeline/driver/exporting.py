"""Exports of a runtime: PREDICT as a SavedModel, or the weights of one Keras model.

The modules are built first, and set to the values to export after that.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from absl import logging

from pipeline.contract.averages import LIVE
from pipeline.contract.model_fn import BoundModelFn
from pipeline.contract.spec import EstimatorSpec, ModeKeys
from pipeline.driver.runtime import Runtime
from pipeline.driver.runtime_pair import Runtimes
from pipeline.export import receivers, saved_model
from pipeline.export.receivers import ServingFn, ServingInputReceiver
from pipeline.model_dir import storage
from pipeline.process.refusals import RefusedValueError


def export(
    runtimes: Runtimes,
    serving_fn: ServingFn | None,
    export_dir_base: str,
    *,
    input_fn: Callable[..., Any] | None = None,
    path: str | None = None,
    weights: str = LIVE,
    assets_extra: Mapping[str, str] | None = None,
) -> str:
    """Writes a SavedModel and returns its directory.

    Args:
      runtimes: runtimes of an Estimator.
      serving_fn: function that returns a `ServingInputReceiver`; None for that of a
        module, or for features as they are.
      export_dir_base: folder in which the directory is made.
      input_fn: function that returns the data with these features; called, in PREDICT,
        only where they count. None for an input that was seen.
      path: checkpoint as the caller asked for it; None for where the run stands.
      weights: 'live', or 'average' for the average of these values.
      assets_extra: files to copy, by their paths below `assets.extra`.

    Raises:
      StorageError: the directory cannot be written.
      ValueError: there is no checkpoint, or nothing says what clients send.
    """
    path = runtimes.found(path)
    if path is None:
        runtimes.check_trained(" to export", ", or give checkpoint_path")
    runtime, seen = runtimes.exporting, runtimes.features_spec
    receiver = _receiver(runtime, serving_fn, input_fn, ModeKeys.PREDICT, seen=seen)
    model_fn, outline = _built(runtime, receiver)
    runtimes.prepare_export(path)
    which = "" if weights == LIVE else f" | {runtime.average_in_words()}"
    text = "export | step %d%s | tracing and writing"
    logging.info(text, runtime.modules.step, which)
    model = saved_model.servable(model_fn, runtime.modules, receiver, outline)
    writing = storage.writing(
        export_dir_base,
        "the SavedModel",
        only_named=True,  # Assets are read besides.
        instead="choose another export_dir_base",
    )
    with runtime.weights(weights), writing:
        return saved_model.save(export_dir_base, model, assets_extra=assets_extra)


def check(
    runtime: Runtime,
    serving_fn: ServingFn | None,
    input_fn: Callable[..., Any] | None,
) -> None:
    """Traces what `export` would write, and neither loads nor writes anything.

    Args:
      runtime: runtime whose modules would be exported.
      serving_fn: function that returns a `ServingInputReceiver`; None for that of a
        module, or for the features of `input_fn` in EVAL.
      input_fn: function that returns the data with these features; called only where
        they count.

    Raises:
      Exception: the error that `export` would raise.
    """
    receiver = _receiver(runtime, serving_fn, input_fn, ModeKeys.EVAL)
    model_fn, outline = _built(runtime, receiver)
    saved_model.servable(model_fn, runtime.modules, receiver, outline)


def keras_weights(
    runtime: Runtime,
    name: str,
    path: str,
    *,
    load: Callable[[], None],
    weights: str = LIVE,
) -> str:
    """Writes the weights of one Keras model, and returns `path`.

    Args:
      runtime: runtime whose module it is.
      name: name of the module.
      path: path of the new file; ends in `.weights.h5`.
      load: function that sets the modules to the values to export.
      weights: 'live', or 'average' for the average of these values.

    Raises:
      ValueError: the module is no built Keras model.
    """
    module = runtime.modules.by_name.get(name)
    if not isinstance(module, keras.Model) or not module.built:
        raise RefusedValueError(
            f"module {name!r} of {sorted(runtime.modules.by_name)} is no Keras "
            "model that this Estimator has built: train, evaluate or predict first."
        )
    load()
    with runtime.weights(weights):
        module.save_weights(path)
    return path


def _receiver(
    runtime: Runtime,
    serving_fn: ServingFn | None,
    input_fn: Callable[..., Any] | None,
    mode: str,
    *,
    seen: Any = None,
) -> ServingInputReceiver:
    """Returns what clients send; calls input_fn only where its features are that."""

    def features_spec() -> Any:
        return (
            seen if input_fn is None else runtime.feed(input_fn, mode).element_spec[0]
        )

    modules = runtime.modules.by_name
    return receivers.receiver_of(serving_fn, modules, features_spec)


def _built(
    runtime: Runtime, receiver: ServingInputReceiver
) -> tuple[BoundModelFn, EstimatorSpec]:
    """Returns the user's function in PREDICT, and its spec on what is sent."""
    model_fn = runtime.bound(ModeKeys.PREDICT)
    element_spec = dict(receiver.receiver_specs), None
    sent_fn = saved_model.served(model_fn, receiver)
    return model_fn, runtime.build(ModeKeys.PREDICT, sent_fn, element_spec)
