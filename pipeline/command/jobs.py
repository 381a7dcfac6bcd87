"""The jobs `evaluate`, `predict` and `export`, and their specs, for an Estimator.

The command hands in what gin has built, and gets metrics, lines of JSON and a folder.
Training is `train_and_evaluate`; its configuration is written down by a hook from here.
"""

import base64
import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contract import hooks
from pipeline.driver import evaluating
from pipeline.hooks import summary
from pipeline.mistakes.checks import kind_of
from pipeline.process.refusals import RefusedTypeError

CONFIG_FILE = "config.gin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictSpec:
    """The input and the output of `--job=predict`.

    Attributes:
      input_fn: called in PREDICT mode; labels that it yields are not used.
      predict_keys: names of the predictions to write; None for all.
      hooks: hooks that watch the prediction.
    """

    input_fn: Callable[..., Any]
    predict_keys: Sequence[str] | None = None
    hooks: Sequence[Any] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSpec:
    """The signature and the place of the SavedModel of `--job=export`.

    Attributes:
      serving_input_receiver_fn: describes the tensors that a server is sent; None for
        that of the module that has one, else for the features that EvalSpec.input_fn
        yields in PREDICT mode.
      export_dir_base: folder of the SavedModels, each in a folder named by its time;
        None for `export` in model_dir.
    """

    serving_input_receiver_fn: Callable[..., Any] | None = None
    export_dir_base: str | None = None


class ConfigHook(hooks.Hook):
    """Keeps the run's configuration beside its checkpoints, and in TensorBoard."""

    def __init__(self, text: str) -> None:
        """Takes the configuration to write down.

        Args:
          text: the configuration, as a gin file.
        """
        self._text = text

    def begin(self, run: hooks.Run) -> None:
        """Writes the configuration."""
        # Not before the strategy was made: whatever initialises TensorFlow earlier
        # keeps a cluster from forming.
        tf.io.gfile.makedirs(run.model_dir)
        path = os.path.join(run.model_dir, CONFIG_FILE)
        with tf.io.gfile.GFile(path, "w") as stream:
            stream.write(self._text)
        writer = summary.Writer(run.model_dir)
        writer.text(run.step, "config", f"```\n{self._text}\n```")
        writer.close()


def evaluate(
    estimator: Any, specs: Sequence[Any], *, checkpoint_path: str | None = None
) -> dict[str, Any]:
    """Evaluates once by each spec.

    Args:
      estimator: the Estimator.
      specs: the EvalSpecs.
      checkpoint_path: path prefix of the checkpoint, or "best"; None for the latest.

    Returns:
      The metrics by name; with several specs, by `name/metric`.
    """
    found = {}
    for index, spec in enumerate(specs):
        metrics = spec.evaluate(estimator, checkpoint_path)
        prefix = f"{spec.name or index}/" if len(specs) > 1 else ""
        found.update({f"{prefix}{name}": value for name, value in metrics.items()})
    return found


def evaluate_all(estimator: Any, spec: Any) -> list[str]:
    """Evaluates each checkpoint by a spec; returns the lines of a table.

    Args:
      estimator: the Estimator.
      spec: the EvalSpec.
    """
    found = estimator.evaluate(
        spec.data_fn, spec.steps, hooks=spec.hooks, name=spec.name, all_checkpoints=True
    )
    title = [f"evaluation {spec.name}"] if spec.name else []
    return [*title, *evaluating.table(found)]


def predict(
    estimator: Any,
    spec: PredictSpec,
    write: Callable[[str], None],
    *,
    checkpoint_path: str | None = None,
) -> int:
    """Writes one line of JSON for each example.

    Args:
      estimator: the Estimator.
      spec: what to predict.
      write: takes one line, without its end.
      checkpoint_path: path prefix of the checkpoint, or "best"; None for the latest.

    Returns:
      The number of examples.

    Raises:
      TypeError: JSON cannot hold a prediction.
    """
    count = 0
    for prediction in estimator.predict(
        spec.input_fn,
        predict_keys=spec.predict_keys,
        hooks=spec.hooks,
        checkpoint_path=checkpoint_path,
    ):
        write(json.dumps(to_json(prediction)))
        count += 1
    return count


def export(
    estimator: Any,
    spec: ExportSpec,
    input_fn: Callable[..., Any] | None,
    *,
    checkpoint_path: str | None = None,
) -> str:
    """Writes a SavedModel.

    Args:
      estimator: the Estimator.
      spec: what to write.
      input_fn: yields in PREDICT mode the features that a server is sent; called, for
        their shapes and dtypes alone, where neither `spec` nor a module says what is.
      checkpoint_path: path prefix of the checkpoint, or "best"; None for the latest.

    Returns:
      The SavedModel's folder.
    """
    return estimator.export_saved_model(
        spec.export_dir_base or os.path.join(estimator.model_dir, "export"),
        spec.serving_input_receiver_fn,
        input_fn=input_fn,
        checkpoint_path=checkpoint_path,
    )


def to_json(value: Any) -> Any:
    """Returns a prediction in JSON's types: arrays as lists, bytes as text.

    Bytes that are not UTF-8 become {"b64": ...}, as in TensorFlow Serving.

    Args:
      value: a nest of arrays, tensors and plain values.

    Raises:
      TypeError: a value is neither a nest nor an array.
    """
    if isinstance(value, Mapping):
        return {str(name): to_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode()}
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json(value.astype(_plain(value.dtype)).tolist())
    if hasattr(value, "numpy"):
        return to_json(value.numpy())
    raise RefusedTypeError(
        f"predictions hold {kind_of(value)}, which JSON cannot: return tensors from "
        "model_fn, or choose others by PredictSpec.predict_keys."
    )


def _plain(dtype: np.dtype) -> Any:
    """Returns the dtype to write: NumPy itself has no bfloat16."""
    return np.float32 if dtype.kind == "V" else dtype
