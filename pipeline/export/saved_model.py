# SPDX-License-Identifier: Apache-2.0
"""Writes a model_fn in mode PREDICT as a SavedModel."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from .. import private
from ..contract import paths
from ..contract.spec import EstimatorSpec, ModeKeys
from ..data.same_batches import PYTHON_CALLS
from ..distribute.names import parts_of, tables_of, variables_of
from ..errors import SpecError, UserValueError
from ..loop.bound_model import BoundModel
from ..loop.exporter import exports_in
from ..model_dir import local_copy, storage_watchdog
from ..model_dir.files import delete_folder, rename_folder, writing
from .receivers import SERVING_DEFAULT, ServingFn, ServingInputReceiver, receiver_of

# Age at which an unfinished export is the remains of a killed process.
_TEMPORARY_SECS = 6 * 3600


class Servable:
    """The traced signatures of a model, with the variables and tables that they use."""

    def __init__(self, model: BoundModel, receiver: ServingInputReceiver) -> None:
        """Traces all signatures; writes nothing.

        Args:
          model: the model_fn, with its variables set.
          receiver: the arguments of the signatures, from `build_receiver`.

        Raises:
          SpecError: the outputs make no signature, a signature calls Python, or it uses a
            variable or table that is in no module.
        """
        bound, networks = model.in_mode(ModeKeys.PREDICT), model.state.networks
        variables, tables = variables_of(networks), tables_of(networks)

        def predict(features: Any) -> EstimatorSpec:
            return bound(features, None, tf.zeros([], tf.int64))

        self.signatures = _signatures(predict, receiver)
        for prefix, alternative in receiver.alternatives.items():
            for name, function in _signatures(predict, alternative).items():
                name = prefix if name == SERVING_DEFAULT else f"{prefix}:{name}"
                if name in self.signatures:
                    raise SpecError(
                        f"the signature {name!r} is in export_outputs and in "
                        "ServingInputReceiver.alternatives: expected different names."
                    )
                self.signatures[name] = function
        self.root = tf.Module()
        # A dict, because names contain slashes.
        self.root.state = dict(variables)
        self.root.tables = list(tables)
        for name, function in self.signatures.items():
            _check_calls_no_python(name, function)
            _check_captured(name, function, variables, tables)

    def save(self, base: str, assets_extra: Mapping[str, str] | None = None) -> str:
        """Writes the SavedModel to a new directory below `base`, named by the time.

        It is written to another name and renamed, so that a server finds it complete.

        Args:
          base: directory of the exports.
          assets_extra: files to copy to `assets.extra/`: paths by relative name there.

        Returns:
          The directory.

        Raises:
          StorageError: the file system refuses to write.
          UserValueError: the path cannot be that of a folder.
        """
        with writing(base, f"a SavedModel in {base}"):
            try:
                storage_watchdog.call(base, tf.io.gfile.makedirs, base)
            except tf.errors.FailedPreconditionError as error:
                raise UserValueError(
                    f"export_dir_base is {base!r}: expected the path of a folder. A part of it is "
                    "a file."
                ) from error
            # Two exports within a second get increasing names.
            existing = [] if storage_watchdog.is_watched(base) else exports_in(base)
            newest = max((int(os.path.basename(path)) for path in existing), default=0)
            name = str(max(int(time.time()), newest + 1))
            temporary, target = os.path.join(base, f"temp-{name}"), os.path.join(base, name)
            try:
                local_copy.write(temporary, lambda path: self._write(path, assets_extra or {}))
                storage_watchdog.call(base, rename_folder, temporary, target)
            finally:
                storage_watchdog.call(base, _remove_temporary, base, temporary)
        return target

    def _write(self, folder: str, assets_extra: Mapping[str, str]) -> None:
        tf.saved_model.save(self.root, folder, signatures=self.signatures)
        for path, source in assets_extra.items():
            copy = os.path.join(folder, "assets.extra", path)
            tf.io.gfile.makedirs(os.path.dirname(copy))
            tf.io.gfile.copy(paths.expanded(source), copy, overwrite=True)


def build_receiver(
    model: BoundModel, serving_fn: ServingFn | None, features_spec: Any = None
) -> ServingInputReceiver:
    """Returns the receiver of an export, and builds the model by it, so that all variables exist.

    Args:
      model: the model_fn.
      serving_fn: function of the call or exporter, see `receiver_of`.
      features_spec: specs of the features; None for those that the model was built for.
    """
    features_spec = model.features_spec if features_spec is None else features_spec
    receiver = receiver_of(serving_fn, model.state.modules.values(), features_spec)
    bound = model.in_mode(ModeKeys.PREDICT)

    def build_all(sent: Any, _: Any, step: tf.Tensor) -> EstimatorSpec:
        return bound(receiver.to_features(sent), None, step)

    model.build_by(build_all, (dict(receiver.receiver_specs), None))
    return receiver


def check_assets(assets_extra: Mapping[str, str] | None) -> None:
    """Checks names and files of `assets_extra`.

    Raises:
      UserValueError: a name leaves `assets.extra/`, or a file does not exist.
    """
    for name, source in (assets_extra or {}).items():
        if not name or os.path.isabs(name) or ".." in name.split("/"):
            raise UserValueError(
                f"assets_extra has the name {name!r}: expected a path below assets.extra/."
            )
        path = paths.expanded(source)
        if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
            raise UserValueError(f"assets_extra[{name!r}] is {source!r}: expected a file.")


def _remove_temporary(base: str, own: str) -> None:
    """Deletes an unfinished export, and those of processes that were killed hours ago."""
    with contextlib.suppress(tf.errors.OpError):  # The first error counts.
        for name in tf.io.gfile.listdir(base):
            kind, _, seconds = name.rstrip("/").partition("-")
            path = os.path.join(base, name.rstrip("/"))
            is_old = seconds.isdigit() and time.time() - int(seconds) > _TEMPORARY_SECS
            if kind == "temp" and (path == own or is_old):
                delete_folder(path)


def _signatures(
    predict: Callable[[Any], EstimatorSpec], receiver: ServingInputReceiver
) -> dict[str, Any]:
    """Traces model_fn once; returns a function for each of its signatures."""

    @tf.function(autograph=False)
    def outputs(**sent: Any) -> dict[str, dict[str, tf.Tensor]]:
        return _outputs(predict(receiver.to_features(sent)))

    specs = {
        name: tf.TensorSpec(spec.shape, spec.dtype, name)
        if isinstance(spec, tf.TensorSpec)
        else spec
        for name, spec in receiver.receiver_specs.items()
    }

    def signature(name: str) -> Any:
        serve = tf.function(lambda **sent: outputs(**sent)[name], autograph=False)
        return serve.get_concrete_function(**specs)

    names = outputs.get_concrete_function(**specs).structured_outputs
    return {name: signature(name) for name in names}


def _outputs(spec: EstimatorSpec) -> dict[str, dict[str, tf.Tensor]]:
    """Returns the outputs of each signature, by signature and name."""
    if spec.export_outputs is None:
        return {SERVING_DEFAULT: _named(spec.predictions)}
    outputs = {name: dict(value) for name, value in spec.export_outputs.items()}
    if SERVING_DEFAULT not in outputs:
        if len(outputs) != 1:
            raise SpecError(
                f"export_outputs is {sorted(outputs)}: expected one signature, or one called "
                f"{SERVING_DEFAULT!r}, which servers use by default."
            )
        outputs[SERVING_DEFAULT] = next(iter(outputs.values()))
    return outputs


def _named(predictions: Any) -> dict[str, tf.Tensor]:
    if tf.is_tensor(predictions):
        return {"output": predictions}
    if isinstance(predictions, Mapping) and all(map(tf.is_tensor, predictions.values())):
        return dict(predictions)
    raise SpecError(
        "predictions is nested: expected a tensor or a dict of tensors for an export. Set "
        "EstimatorSpec(export_outputs={'serving_default': {'name': tensor}})."
    )


def _check_calls_no_python(name: str, function: Any) -> None:
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    if any(node.op in PYTHON_CALLS for node in nodes):
        raise SpecError(
            f"the signature {name!r} calls Python (py_function or numpy_function): expected "
            "TensorFlow operations only, because a server has no Python."
        )


def _check_captured(
    name: str, function: Any, variables: Mapping[str, tf.Variable], tables: Sequence[Any]
) -> None:
    known = {id(table.resource_handle) for table in tables}
    for variable in variables.values():
        for shard in parts_of(variable):
            # A distributed variable is captured by the handle of one of its copies.
            known |= {id(copy.handle) for copy in getattr(shard, "values", None) or [shard]}
    known |= {id(private.packed_handle(variable)) for variable in variables.values()}
    handles = [t for t in function.captured_inputs if t.dtype == tf.resource]
    if any(id(handle) not in known for handle in handles):
        raise SpecError(
            f"the signature {name!r} uses a variable or table that is in no module: expected "
            "all of them in Estimator(modules={...}). Create it in a factory."
        )
