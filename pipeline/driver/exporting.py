"""Exports of a runtime: PREDICT as a SavedModel, or the weights of one Keras model.

The modules are built first, and set to the values to export after that: the caller
hands in the function that sets them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from absl import logging

from pipeline.contract.averages import LIVE
from pipeline.contract.model_fn import BoundModelFn
from pipeline.contract.spec import EstimatorSpec, ModeKeys
from pipeline.driver.runtime import Runtime
from pipeline.export import saved_model
from pipeline.export.saved_model import ServingFn, ServingInputReceiver
from pipeline.model_dir import storage
from pipeline.process.refusals import RefusedValueError


def export(
    runtime: Runtime,
    receiver: ServingInputReceiver,
    export_dir_base: str,
    *,
    load: Callable[[], None],
    weights: str = LIVE,
    assets_extra: Mapping[str, str] | None = None,
) -> str:
    """Writes a SavedModel and returns its directory.

    Args:
      runtime: runtime whose modules are exported.
      receiver: inputs that clients send, and the features made of them.
      export_dir_base: folder in which the directory is made.
      load: function that sets the modules, once they are built, to the values to
        export.
      weights: 'live', or 'average' for the average of these values.
      assets_extra: files to copy, by their paths below `assets.extra`.

    Raises:
      StorageError: the directory cannot be written.
    """
    model_fn, outline = _built(runtime, receiver)
    load()
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
      serving_fn: function that returns a `ServingInputReceiver`; None for the features
        of `input_fn` in EVAL.
      input_fn: function that returns the data; called only where serving_fn is None.

    Raises:
      Exception: the error that `export` would raise.
    """
    features = None
    if serving_fn is None and input_fn is not None:
        features = runtime.feed(input_fn, ModeKeys.EVAL).element_spec[0]
    receiver = saved_model.receiver_of(serving_fn, features)
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


def _built(
    runtime: Runtime, receiver: ServingInputReceiver
) -> tuple[BoundModelFn, EstimatorSpec]:
    """Returns model_fn as a function of the inputs that are sent, and its spec."""
    model_fn = saved_model.served(runtime.bound(ModeKeys.PREDICT), receiver)
    element_spec = dict(receiver.receiver_specs), None
    return model_fn, runtime.build(ModeKeys.PREDICT, model_fn, element_spec)
