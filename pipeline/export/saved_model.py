"""Writes the PREDICT of a model_fn as a SavedModel, for a server.

A serving_input_receiver_fn describes the tensors that a server is sent, and turns them
into features. model_fn is traced on these; each of its export outputs becomes a
signature. Variables and tables go along, Python does not: a signature that needs it is
refused.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from pipeline.contract.model_fn import BoundModelFn
from pipeline.contract.spec import EstimatorSpec
from pipeline.contract.train_op import SpecError
from pipeline.mistakes import user_errors
from pipeline.mistakes.checks import kind_of
from pipeline.model_dir import paths
from pipeline.process.refusals import RefusedTypeError, RefusedValueError
from pipeline.strategy import variables
from pipeline.strategy.modules import Modules
from pipeline.strategy.replicas import has_one_trace
from pipeline.strategy.sharding import shards_of
from pipeline.tracing import graph_defs

DEFAULT_SIGNATURE = "serving_default"
# Names of a bare tensor, where a signature needs names.
FEATURES_NAME = "features"
OUTPUT_NAME = "output"
_GLOBAL_STEP = "driver/global_step"


@dataclasses.dataclass(frozen=True)
class ServingInputReceiver:
    """The tensors that a server is sent, and the way to turn them into features.

    Attributes:
      receiver_specs: type spec of each tensor that is sent, by name.
      to_features: takes these tensors by name, and returns model_fn's features.
    """

    receiver_specs: Mapping[str, tf.TypeSpec]
    to_features: Callable[[Mapping[str, tf.Tensor]], Any]


ServingFn = Callable[[], ServingInputReceiver]


def build_raw_serving_input_receiver_fn(features: Any) -> ServingFn:
    """Describes a server that is sent features as they are: a tensor, or a dict.

    Args:
      features: type spec of one tensor, or dict of specs. The first dimension, the
        batch, becomes any size. A bare tensor is sent under the name `features`.

    Returns:
      A serving_input_receiver_fn.

    Raises:
      ValueError: features are None, as those of an Estimator that has seen no input.
    """
    if features is None:
        raise RefusedValueError(
            "what a server sends is not known, as no input was seen yet: give "
            "serving_input_receiver_fn="
            "build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 28, 28]))."
        )
    bare = not isinstance(features, Mapping)
    named = {FEATURES_NAME: features} if bare else dict(features)
    specs = {name: _any_batch(name, spec) for name, spec in named.items()}

    def serving_input_receiver_fn() -> ServingInputReceiver:
        def to_features(received: Mapping[str, tf.Tensor]) -> Any:
            return received[FEATURES_NAME] if bare else dict(received)

        return ServingInputReceiver(specs, to_features)

    return serving_input_receiver_fn


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], *, bare: bool = False
) -> ServingFn:
    """Describes a server that is sent serialized `tf.train.Example`s, as `examples`.

    Args:
      feature_spec: how to parse each feature, `{name: tf.io.FixedLenFeature(...)}`.
      bare: whether model_fn gets the only feature as a tensor, rather than in a dict.

    Returns:
      A serving_input_receiver_fn.

    Raises:
      ValueError: `bare` is given with several features.
    """
    if bare and len(feature_spec) != 1:
        raise RefusedValueError(
            f"bare=True takes one feature, not {sorted(feature_spec)}: leave it out."
        )
    specs = {"examples": tf.TensorSpec([None], tf.string, "examples")}

    def serving_input_receiver_fn() -> ServingInputReceiver:
        def to_features(received: Mapping[str, tf.Tensor]) -> Any:
            parsed = tf.io.parse_example(received["examples"], dict(feature_spec))
            return next(iter(parsed.values())) if bare else parsed

        return ServingInputReceiver(specs, to_features)

    return serving_input_receiver_fn


def receiver_of(
    serving_fn: ServingFn | None, features_spec: Any
) -> ServingInputReceiver:
    """Calls a serving_input_receiver_fn.

    Args:
      serving_fn: the function; None for features as they are.
      features_spec: type specs of the features; None where no input was seen.

    Raises:
      TypeError: it is no function, or returns no `ServingInputReceiver`.
      ValueError: both arguments are None.
    """
    if serving_fn is None:
        serving_fn = build_raw_serving_input_receiver_fn(features_spec)
    receiver = serving_fn
    if callable(serving_fn):
        receiver = user_errors.call(lambda: "the serving_input_receiver_fn", serving_fn)
    if not callable(serving_fn) or not isinstance(receiver, ServingInputReceiver):
        raise RefusedTypeError(
            f"serving_input_receiver_fn is {kind_of(serving_fn)} and gives "
            f"{kind_of(receiver)}, not a ServingInputReceiver: write "
            "build_raw_serving_input_receiver_fn(tf.TensorSpec([None, 28, 28]))."
        )
    return receiver


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
      model_fn: the function that `served` returned.
      modules: the modules that it computes with; they are built.
      receiver: the tensors that a server is sent.
      outline: the spec that `model_fn` returned when it was built.

    Raises:
      SpecError: the predictions make no signature, or no server can run one.
    """
    names = list(_export_outputs(outline))
    specs = {name: _named(s, name) for name, s in receiver.receiver_specs.items()}

    def signature(name: str) -> Any:
        @tf.function(autograph=False)
        def serve(**received: tf.Tensor) -> dict[str, tf.Tensor]:
            # A server has no labels and no global step.
            spec = model_fn(received, None, tf.zeros([], tf.int64))
            return _export_outputs(spec)[name]

        return serve.get_concrete_function(**specs)

    signatures = {name: signature(name) for name in names}
    for name, function in signatures.items():
        _check_needs_no_python(name, function)
    return Servable(_root(modules, signatures), signatures)


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


def _any_batch(name: str, spec: Any) -> tf.TypeSpec:
    """Returns the named spec of any number of examples."""
    if not isinstance(spec, tf.TensorSpec):
        if isinstance(spec, tf.TypeSpec):
            return spec
        spec = tf.TensorSpec.from_tensor(tf.convert_to_tensor(spec))
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype, name)


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
    taken = existing_exports(export_dir_base)
    newest = int(os.path.basename(taken[-1])) if taken else 0
    return os.path.join(export_dir_base, str(max(int(time.time()), newest + 1)))
