"""Writes the PREDICT of a model_fn as a SavedModel, for a server.

model_fn is traced on the features that a `ServingInputReceiver` makes of what a server
is sent; each of its export outputs becomes a signature. Variables and tables go along,
Python does not: a signature that needs it is refused.
"""

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from pipeline.contract.model_fn import BoundModelFn
from pipeline.contract.spec import EstimatorSpec
from pipeline.contract.train_op import SpecError
from pipeline.export.receivers import DEFAULT_SIGNATURE, ServingInputReceiver
from pipeline.mistakes import user_errors
from pipeline.model_dir import paths
from pipeline.process.refusals import RefusedValueError
from pipeline.strategy import variables
from pipeline.strategy.modules import Modules
from pipeline.strategy.replicas import has_one_trace
from pipeline.strategy.sharding import shards_of
from pipeline.tracing import graph_defs

# Name of a bare prediction, where a signature needs names.
OUTPUT_NAME = "output"
_GLOBAL_STEP = "driver/global_step"


def served(model_fn: BoundModelFn, receiver: ServingInputReceiver) -> BoundModelFn:
    """Returns `model_fn` as a function of the tensors that are sent."""

    def received_fn(
        received: Mapping[str, tf.Tensor], labels: Any, step: tf.Tensor
    ) -> EstimatorSpec:
        where = "the serving_input_receiver_fn's to_features"
        features = user_errors.call(lambda: where, receiver.to_features, received)
        return model_fn(features, labels, step)

    return received_fn


@dataclasses.dataclass(frozen=True)
class Servable:
    """The object that is written as a SavedModel.

    Attributes:
      root: holds the variables and tables that the signatures compute with, such as
        `root.state["network/dense/kernel"]`. It holds no Keras object: Keras would
        trace that by itself, with arguments of its own.
      signatures: concrete functions by name.
    """

    root: tf.Module
    signatures: Mapping[str, Any]


def servable(
    model_fn: BoundModelFn,
    modules: Modules,
    receiver: ServingInputReceiver,
    outline: EstimatorSpec,
) -> Servable:
    """Traces the signatures; neither computes nor writes anything.

    Args:
      model_fn: the user's function in PREDICT, bound to its modules.
      modules: the modules that it computes with; they are built.
      receiver: the tensors that a server is sent, and what may be sent instead.
      outline: the spec that `model_fn` returned when it was built.

    Raises:
      SpecError: the predictions make no signature, no server can run one, or an
        alternative has the name of one.
    """
    names = list(_export_outputs(outline))
    signatures = _signatures(model_fn, receiver, names)
    for alternative, each in receiver.alternatives.items():
        for name, signature in _signatures(model_fn, each, names).items():
            default = name == DEFAULT_SIGNATURE
            key = alternative if default else f"{alternative}:{name}"
            if key in signatures:
                raise SpecError(
                    f"the name {key!r} is that of an alternative of what a server is "
                    "sent, and of one of export_outputs: name one of them otherwise."
                )
            signatures[key] = signature
    for name, function in signatures.items():
        _check_needs_no_python(name, function)
    return Servable(_root(modules, signatures), signatures)


def _signatures(
    model_fn: BoundModelFn, receiver: ServingInputReceiver, names: Sequence[str]
) -> dict[str, Any]:
    """Traces what answers with each export output to what `receiver` takes.

    model_fn is traced once for all of them: a server leaves out what an answer does not
    need.
    """
    from_received = served(model_fn, receiver)
    specs = {key: _named(s, key) for key, s in receiver.receiver_specs.items()}

    @tf.function(autograph=False)
    def answers(**received: tf.Tensor) -> dict[str, dict[str, tf.Tensor]]:
        # A server has no labels and no global step.
        spec = from_received(received, None, tf.zeros([], tf.int64))
        return _export_outputs(spec)

    def signature(name: str) -> Any:
        serve = tf.function(lambda **sent: answers(**sent)[name], autograph=False)
        return serve.get_concrete_function(**specs)

    return {name: signature(name) for name in names}


def save(
    export_dir_base: str,
    model: Servable,
    *,
    assets_extra: Mapping[str, str] | None = None,
) -> str:
    """Writes a SavedModel into a new directory, named by the time in seconds.

    It is written beside that and renamed, so that a server finds it whole or not at
    all.

    Args:
      export_dir_base: directory in which the new one is made.
      model: the traced signatures with their variables.
      assets_extra: path of the file to copy, by the path of its copy below
        `assets.extra`.

    Returns:
      The directory.
    """
    target = _new_directory(export_dir_base)
    temporary = os.path.join(export_dir_base, f"temp-{os.path.basename(target)}")
    tf.saved_model.save(model.root, temporary, signatures=dict(model.signatures))
    for path, source in (assets_extra or {}).items():
        copy = os.path.join(temporary, "assets.extra", path)
        tf.io.gfile.makedirs(os.path.dirname(copy))
        tf.io.gfile.copy(paths.normal(source), copy, overwrite=True)
    tf.io.gfile.rename(temporary, target)
    return target


def existing_exports(export_dir_base: str) -> list[str]:
    """Returns the SavedModels in a directory, oldest first."""
    if not tf.io.gfile.isdir(export_dir_base):
        return []
    # Other names are of exports under way, or of the user's own files.
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(export_dir_base)]
    numbers = sorted(int(name) for name in names if name.isdigit())
    return [os.path.join(export_dir_base, str(number)) for number in numbers]


def _root(modules: Modules, signatures: Mapping[str, Any]) -> tf.Module:
    """Makes the object that holds variables and tables by name.

    Models' variables are all in it. Optimizers' and the driver's are in it only where a
    signature uses them, except for the global step.

    Raises:
      SpecError: a signature uses a variable or table that is in no module.
    """
    captured = {
        id(tensor): tensor
        for function in signatures.values()
        for tensor in function.captured_inputs
        if tensor.dtype == tf.resource
    }
    # In a dict, for the names hold slashes, which no attribute may.
    root = tf.Module()
    root.state, known = {}, set()
    for name, value in modules.named_values().items():
        handles = {id(handle) for handle in _handles(value, modules.strategy)}
        module = modules.by_name.get(name.partition("/")[0])
        # An optimizer's slots would multiply the size, and no server reads them.
        is_model = not isinstance(module, (keras.optimizers.Optimizer, type(None)))
        if is_model or name == _GLOBAL_STEP or handles & captured.keys():
            root.state[name] = value
        known |= handles
    root.tables = [
        table
        for module in modules.by_name.values()
        for table in variables.tables(module)
    ]
    known |= {id(table.resource_handle) for table in root.tables}
    unknown = [tensor for key, tensor in captured.items() if key not in known]
    # On a TPU the one trace of all replicas may hold variables by handles of its own.
    if unknown and not has_one_trace(modules.strategy):
        raise SpecError(
            f"PREDICT uses {len(unknown)} variables or tables that are in no module, "
            f"the first on {unknown[0].device}, so that they cannot be exported (and "
            "are in no checkpoint): make them in a factory, modules={'table': "
            "make_table}, as an attribute of a keras.Layer or tf.Module."
        )
    return root


def _handles(value: Any, strategy: tf.distribute.Strategy) -> list[tf.Tensor]:
    """Returns the handles that functions capture: a variable's on each replica."""
    if not variables.is_variable(value):
        return [value.resource_handle]
    copies = [
        copy
        for shard in shards_of(value)
        for copy in strategy.experimental_local_results(shard)
    ]
    return [copy.handle for copy in copies]


def _check_needs_no_python(name: str, function: Any) -> None:
    """Checks that no operation calls back into the process that traced it."""
    if graph_defs.calls_python(function.graph.as_graph_def()):
        raise SpecError(
            f"the signature {name!r} calls Python (tf.py_function, tf.numpy_function), "
            "which a server cannot: write that part in TensorFlow."
        )


def _export_outputs(spec: EstimatorSpec) -> dict[str, dict[str, tf.Tensor]]:
    """Returns the outputs of each signature, with the default one among them."""
    if spec.export_outputs is None:
        outputs = {DEFAULT_SIGNATURE: _named_outputs(spec.predictions)}
    else:
        outputs = {name: dict(value) for name, value in spec.export_outputs.items()}
    # As in tf.estimator, an only signature is also the default.
    if DEFAULT_SIGNATURE not in outputs and len(outputs) == 1:
        (only,) = outputs.values()
        outputs[DEFAULT_SIGNATURE] = only
    if DEFAULT_SIGNATURE not in outputs:
        raise SpecError(
            f"export_outputs has the signatures {sorted(outputs)} and none of them is "
            f"{DEFAULT_SIGNATURE!r}, which servers ask for by default: name one so."
        )
    return outputs


def _named_outputs(predictions: Any) -> dict[str, tf.Tensor]:
    """Returns predictions as a flat dict of tensors, the output of a signature."""
    if tf.is_tensor(predictions):
        return {OUTPUT_NAME: predictions}
    if isinstance(predictions, Mapping) and all(
        tf.is_tensor(value) for value in predictions.values()
    ):
        return dict(predictions)
    raise SpecError(
        f"predictions of structure {tf.nest.map_structure(lambda _: '.', predictions)} "
        "make no signature, which is a flat dict of tensors: give "
        "export_outputs={'serving_default': {'name': tensor}}."
    )


def _named(spec: tf.TypeSpec, name: str) -> tf.TypeSpec:
    if isinstance(spec, tf.TensorSpec):
        return tf.TensorSpec(spec.shape, spec.dtype, name)
    return spec


def _new_directory(export_dir_base: str) -> str:
    """Returns a path named by the time, which no export has taken yet.

    Two exports in one second get two names, and the later name is the greater one.
    """
    try:
        tf.io.gfile.makedirs(export_dir_base)
    except UnicodeEncodeError as error:
        raise RefusedValueError(
            f"export_dir_base {export_dir_base!r} cannot be made: {error}. Write one "
            "of plain letters."
        ) from error
    if paths.is_pattern(export_dir_base):
        logging.warning(
            "export | TensorFlow takes '[a]' and a backslash in the path %s for a "
            "pattern, and cannot load from there: copy the export to another folder.",
            export_dir_base,
        )
    taken = existing_exports(export_dir_base)
    newest = int(os.path.basename(taken[-1])) if taken else 0
    return os.path.join(export_dir_base, str(max(int(time.time()), newest + 1)))
