"""A runtime's PREDICT as a SavedModel: of a checkpoint, or of what is live."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from absl import logging

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
    assets_extra: Mapping[str, str] | None = None,
) -> str:
    """Writes a SavedModel and returns its directory.

    Args:
      runtime: whose modules it holds.
      receiver: what is sent.
      export_dir_base: where the directory is made.
      load: sets the modules, once they are built, to what is to be exported.
      assets_extra: file to copy by its path below `assets.extra`.
    """
    model_fn, outline = _built(runtime, receiver)
    load()
    logging.info("export | step %d | tracing and writing", runtime.modules.step)
    model = saved_model.servable(model_fn, runtime.modules, receiver, outline)
    with storage.writing(
        export_dir_base,
        "the SavedModel",
        only_named=True,  # Assets are read besides.
        instead="choose another export_dir_base",
    ):
        return saved_model.save(export_dir_base, model, assets_extra=assets_extra)


def check(
    runtime: Runtime,
    serving_fn: ServingFn | None,
    input_fn: Callable[..., Any] | None,
) -> None:
    """Traces what `export` would write, and neither loads nor writes anything.

    Args:
      runtime: whose modules would be exported.
      serving_fn: says what is sent; None for the features of `input_fn` in EVAL.
      input_fn: called only for these.

    Raises:
      Exception: what `export` would raise.
    """
    features = None
    if serving_fn is None and input_fn is not None:
        features = runtime.feed(input_fn, ModeKeys.EVAL).element_spec[0]
    receiver = saved_model.receiver_of(serving_fn, features)
    model_fn, outline = _built(runtime, receiver)
    saved_model.servable(model_fn, runtime.modules, receiver, outline)


def weights(runtime: Runtime, name: str, path: str, load: Callable[[], None]) -> str:
    """Writes the weights of one Keras model, and returns `path`.

    Args:
      runtime: whose module it is.
      name: of the module.
      path: to write to; ends in `.weights.h5`.
      load: sets the modules to the values.

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
    module.save_weights(path)
    return path


def _built(
    runtime: Runtime, receiver: ServingInputReceiver
) -> tuple[BoundModelFn, EstimatorSpec]:
    """model_fn of what is sent, and what it returns."""
    model_fn = saved_model.served(runtime.bound(ModeKeys.PREDICT), receiver)
    element_spec = dict(receiver.receiver_specs), None
    return model_fn, runtime.build(ModeKeys.PREDICT, model_fn, element_spec)
