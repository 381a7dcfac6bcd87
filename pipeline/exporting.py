"""A runtime's PREDICT as a SavedModel: of a checkpoint, or of what is live."""

from collections.abc import Mapping

from pipeline import checkpoint, saved_model
from pipeline import checkpoint_path as checkpoint_path_lib
from pipeline.model_fn import EstimatorSpec, ModeKeys
from pipeline.runtime import Runtime
from pipeline.saved_model import ServingInputReceiver
from pipeline.steps import BoundModelFn


def export(
    runtime: Runtime,
    receiver: ServingInputReceiver,
    export_dir_base: str,
    *,
    assets_extra: Mapping[str, str] | None = None,
    checkpoint_path: str | None = None,
) -> str:
    """Writes a SavedModel and returns its directory.

    Args:
      runtime: whose modules it holds; they are set to the checkpoint.
      receiver: what is sent.
      export_dir_base: where the directory is made.
      assets_extra: file to copy by its path below `assets.extra`.
      checkpoint_path: what to export; None for the latest, or for what is live where
        nothing was saved, or training is under way.

    Raises:
      ValueError: there is no checkpoint, and nothing was trained.
    """
    model_dir = runtime.config.model_dir
    live = runtime.values_from if runtime.training else None
    # Its files may come later, as saving is asynchronous: the weights are here.
    is_live = live is not None and checkpoint_path == live
    path = live if is_live else checkpoint_path_lib.found(checkpoint_path) or live
    newest = path or checkpoint.latest(model_dir)
    # Trained without saving: what is live is all that there is.
    if newest is None and not runtime.modules.step:
        raise ValueError(
            f"{model_dir} has no checkpoint to export: train first, or give "
            "checkpoint_path."
        )
    model_fn, outline = _built(runtime, receiver)
    if path is not None:
        runtime.load(path)
    elif newest is not None:
        runtime.load_newest(newest)
    model = saved_model.servable(model_fn, runtime.modules, receiver, outline)
    return saved_model.save(export_dir_base, model, assets_extra=assets_extra)


def check(runtime: Runtime, receiver: ServingInputReceiver) -> None:
    """Traces what `export` would write, and neither loads nor writes anything.

    Args:
      runtime: whose modules would be exported.
      receiver: what is sent.

    Raises:
      Exception: what `export` would raise.
    """
    model_fn, outline = _built(runtime, receiver)
    saved_model.servable(model_fn, runtime.modules, receiver, outline)


def _built(
    runtime: Runtime, receiver: ServingInputReceiver
) -> tuple[BoundModelFn, EstimatorSpec]:
    """model_fn of what is sent, and what it returns."""
    model_fn = saved_model.served(runtime.bound(ModeKeys.PREDICT), receiver)
    element_spec = dict(receiver.receiver_specs), None
    return model_fn, runtime.build(ModeKeys.PREDICT, model_fn, element_spec)
