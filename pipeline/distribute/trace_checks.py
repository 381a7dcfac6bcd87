# SPDX-License-Identifier: Apache-2.0
"""Finds mistakes in the first trace of a model_fn that would be silent later."""

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from .. import private
from ..contract.spec import EstimatorSpec
from ..errors import SpecError
from ..run import tracebacks
from .names import batch_normalizations_of, layers_of, parts_of, variable_of, variables_of

# Keras reads a table of this size in a step in about the time of a small network.
_LARGE_TABLE = 10_000_000
# The first integer above which a dtype does not have every integer.
_EXACT = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24}
# Without a writer tf.summary leaves one constant; nothing writes the summaries of TensorFlow 1.
_SUMMARY = re.compile(r"(?:(.*)/)?write_summary(?:_\d+)?/Const")
_OF_VARIABLES = re.compile("ReadVariableOp|ResourceGather.*|Assign.*VariableOp|Resource.*Apply.*")
# A sum over the batch stays one after these operations.
_LINEAR = {"Identity", "Cast", "Neg", "AddV2", "AddN", "Add", "Sub", "Reshape", "Squeeze"}
_CURVED = {"Sqrt", "Rsqrt", "Square", "Pow", "Log", "Log1p", "Exp", "Expm1"}
_DRAWS = re.compile("Stateless(Random(Uniform|Normal|Gamma).*|TruncatedNormal.*|Multinomial)")
# In the name of an operation that adds the number of the replica to a seed.
OF_REPLICA = "of_replica"
_OLD_SUMMARIES = {"ScalarSummary", "HistogramSummary", "ImageSummary", "TensorSummaryV2"}


def check_draws(graph: Any, created: Sequence[Any], strategy: tf.distribute.Strategy) -> None:
    """Refuses draws of `keras.random` without a seed, by a generator that is in no module.

    `created` are the variables that the trace created: a first draw creates the generator.

    Raises:
      SpecError: the trace uses or has created the generator.
    """
    generator = private.generator_of_process()
    if generator is None:
        return
    state = variable_of(generator.state)
    handles = {id(v.handle) for v in strategy.experimental_local_results(state)}
    uses = [op for outer, i in graph.captures if id(outer) in handles for op in i.consumers()]
    if uses or any(state is each for each in created):
        raise SpecError(
            "keras.random draws random numbers without a seed, by its generator of the process: "
            "expected a generator of the layer or model, since checkpoints would miss its state. "
            "Write self.seeds = keras.random.SeedGenerator(1) in __init__, and seed=self.seeds "
            f"where it draws.{_line_of(uses[0]) if uses else ''}"
        )


def check_graph(graph: Any, modules: Mapping[str, Any], strategy: tf.distribute.Strategy) -> None:
    """Checks which variables a model_fn reads and writes.

    Args:
      graph: graph into which model_fn was traced.
      modules: modules by name.
      strategy: strategy of the modules.

    Raises:
      SpecError: it uses a variable that is in no module, or applies an optimizer.
    """
    if isinstance(strategy, (tf.distribute.ParameterServerStrategy, tf.distribute.TPUStrategy)):
        return  # They capture other handles than the variables have.
    owned = set()
    for variable in variables_of(modules).values():
        for each in parts_of(variable):
            owned |= {id(v.handle) for v in strategy.experimental_local_results(each)}
    for outer, inner in graph.captures:
        if outer.dtype == tf.resource and id(outer) not in owned:
            for operation in inner.consumers():
                if _OF_VARIABLES.fullmatch(operation.type):
                    _check_metric(outer, modules, strategy)
                    raise SpecError(
                        f"model_fn uses a variable that is in no module, by {operation.name}: "
                        "expected modules for all variables, since checkpoints would miss it. "
                        "Create the layer in a factory, Estimator(modules={'network': "
                        f"make_network}}), and a metric by metric(...).{_line_of(operation)}"
                    )
    for name, module in modules.items():
        if isinstance(module, keras.optimizers.Optimizer):
            count = variable_of(module.iterations)
            handles = [each.handle for each in strategy.experimental_local_results(count)]
            inner = [i for outer, i in graph.captures if any(outer is h for h in handles)]
            if any(op.type.startswith("Assign") for each in inner for op in each.consumers()):
                raise SpecError(
                    f"model_fn applies gradients by {name!r}: expected none of its own updates, "
                    "since the driver updates on all replicas. Set train_op=TrainOp("
                    f"{name}, network.trainable_variables)."
                )


def _line_of(operation: Any) -> str:
    """Returns the user's line that made an operation, for the end of a message."""
    found = [(f.filename, f.lineno, f.name) for f in operation.traceback]
    own = [frame for frame in found if tracebacks.is_users(frame[0])]
    return "".join(f"\n{line}" for line in tracebacks.lines(own[-1:]))


def _check_metric(handle: Any, modules: Mapping[str, Any], strategy: Any) -> None:
    """Refuses a layer that updates a metric, if the handle belongs to a variable of the metric."""
    found = None
    for _, layer in (each for module in modules.values() for each in layers_of(module)):
        for metric in layer.metrics:
            copies = [strategy.experimental_local_results(variable_of(v)) for v in metric.variables]
            if any(copy.handle is handle for each in copies for copy in each):
                found = layer, metric  # The last layer has it itself.
    if found is not None:
        layer, metric = found
        kind = type(metric).__name__
        raise SpecError(
            f"layer {layer.name!r} updates its metric {metric.name!r} in call: expected metrics of "
            "labels and outputs, which add up over replicas. Return the value as an output and "
            "set model.compile(metrics=...), or write a model_fn with metrics="
            f"{{{metric.name!r}: metric(keras.metrics.{kind}, value)}}."
        )


def log_remarks(
    graph: Any,
    modules: Mapping[str, Any],
    spec: EstimatorSpec,
    strategy: tf.distribute.Strategy,
    element_spec: Any,
) -> None:
    """Warns of what has no effect, costs much, or depends on the size of the batch or on replicas.

    Args:
      graph: graph into which model_fn was traced.
      modules: modules by name, built.
      spec: spec that model_fn returned.
      strategy: strategy of the modules.
      element_spec: type specs of one replica's features and labels.

    Raises:
      SpecError: a model rounds ids before it looks them up.
    """
    tags = _summaries(graph)
    if tags and spec.mode == "train":
        logging.warning(
            "tf.summary of %s in model_fn has no effect: write EstimatorSpec(..., "
            "scalars={%r: value}), metrics, or summaries.",
            ", ".join(tags),
            tags[0],
        )
    if spec.mode == "train":
        _log_forgotten(graph, modules, spec)
        _log_sums(spec, strategy.num_replicas_in_sync)
    if (number := strategy.num_replicas_in_sync) > 1:
        if spec.mode != "infer":
            _log_curved(spec)
        if spec.mode == "train":
            shapes = [getattr(each, "shape", None) for each in tf.nest.flatten(element_spec)]
            rows = {shape[0] for shape in shapes if shape is not None and shape.rank != 0}
            _log_statistics(graph, modules, spec, number, is_ragged=None in rows)
            _log_draws(graph, number, rows)
    for name, module in modules.items():
        for prefix, layer in layers_of(module):
            path = f"{name}/{prefix}".rstrip("/")
            if isinstance(layer, keras.Sequential) and layer.built:
                _check_keeps_ids(path, layer)
            if isinstance(layer, keras.layers.Embedding) and layer.built and spec.mode == "train":
                size = layer.input_dim * layer.output_dim * tf.as_dtype(layer.variable_dtype).size
                if size >= _LARGE_TABLE:
                    logging.warning(
                        "%s is a keras.layers.Embedding of %d MB, of which each step reads and "
                        "updates every row: use gin_estimator.models.Embedding.",
                        path,
                        size // 10**6,
                    )


def _log_forgotten(graph: Any, modules: Mapping[str, Any], spec: EstimatorSpec) -> None:
    """Warns of networks that are trained as in inference, or without their regularizers."""
    uses = {id(outer): [op.type for op in i.consumers()] for outer, i in graph.captures}
    trained = {id(variable_of(v)) for op in spec.train_op for v in op.variables}
    for name, module in modules.items():
        layers = [layer for _, layer in layers_of(module)]
        weights = [v for layer in layers for v in layer.weights if id(variable_of(v)) in trained]
        if not any(_uses(v, uses) for v in weights):
            continue  # It is not called, or belongs to another task.
        states = [v for each in layers if _has_two_modes(each) for v in _state(each)]
        if states and all(set(_uses(v, uses)) <= {"ReadVariableOp"} for v in states):
            logging.warning(
                "%s is trained with its Dropout and BatchNormalization in inference: write "
                "%s(features, training=mode == ModeKeys.TRAIN).",
                name,
                name,
            )
        # The layer reads the variable once, and its regularizer again.
        if not spec.regularization_losses and any(
            v.regularizer is not None and len(_uses(v, uses)) == 1 for v in weights
        ):
            logging.warning(
                "%s has regularizers whose losses have no effect: write EstimatorSpec(..., "
                "regularization_losses=%s.losses).",
                name,
                name,
            )


def _log_sums(spec: EstimatorSpec, num_replicas: int) -> None:
    """Warns of scalars that are sums over the batch, where means are expected."""
    loss = tf.convert_to_tensor(spec.loss)
    if spec.loss_reduction == "mean" and loss.shape.rank == 0 and _sums_batch(loss):
        logging.warning(
            "the loss is a sum over the batch, so that its gradient grows with the batch: write "
            "tf.reduce_mean, or return the losses by example, [batch]."
        )
    terms = [tf.convert_to_tensor(term) for term in spec.regularization_losses]
    if num_replicas > 1 and any(_sums_batch(term) for term in terms):
        logging.warning(
            "an add_loss or a regularization loss is a sum over the batch, which counts 1/%d on "
            "%d replicas: write a mean over the batch, such as add_loss(ops.mean(x)).",
            num_replicas,
            num_replicas,
        )


def _log_statistics(
    graph: Any, modules: Mapping[str, Any], spec: EstimatorSpec, number: int, *, is_ragged: bool
) -> None:
    """Warns of statistics that are not those of the whole batch, or whose gradient is not.

    A replica without examples counts the first one of the batch, which is exact if it is the only
    one. Gradients that the driver does not take are weighted after they crossed the replicas.
    """
    uses = {id(outer): [op.type for op in i.consumers()] for outer, i in graph.captures}
    found = [each for each in batch_normalizations_of(modules) if each.built and each.trainable]
    found = [v for v in found if set(_uses(v.moving_mean, uses)) != {"ReadVariableOp"}]
    parts = [each.name for each in found if not each.synchronized]
    is_own = hasattr(spec, "train_step") or any(op.gradients is not None for op in spec.train_op)
    if parts:
        logging.warning(
            "%s, of %d layers, takes the mean and variance of each of the %d replicas' part of the "
            "batch, so that weights depend on them. Set synchronized=True.",
            parts[0],
            len(parts),
            number,
        )
    elif found and is_ragged and (is_own or number > 2):
        logging.warning(
            "%s is exact where the %d replicas get %s, but the last batch may be smaller. Write "
            "dataset.batch(size, drop_remainder=True).",
            found[0].name,
            number,
            "equally many examples" if is_own else "an example each",
        )


def _log_draws(graph: Any, number: int, rows: Container[int | None]) -> None:
    """Warns of random numbers, one or more for each example, by a seed that all replicas have."""
    for each in graph.get_operations():
        if _DRAWS.fullmatch(each.type) and each.outputs[0].shape.rank:
            seed = each.inputs[2 if each.type == "StatelessMultinomial" else 1]
            if each.outputs[0].shape[0] in rows and _is_fixed(seed.op):
                logging.warning(
                    "%s draws the same random numbers on each of the %d replicas, unless its seed "
                    "has the number of the replica. Draw by keras.random with seed=self.seeds, a "
                    "keras.random.SeedGenerator of the layer or model.%s",
                    each.name,
                    number,
                    _line_of(each),
                )
                return


def _is_fixed(operation: Any) -> bool:
    """Returns whether the result depends on no variable, no example and no random number."""
    is_source = not operation.inputs and operation.type != "Const"
    if is_source or operation.type.startswith("Random") or OF_REPLICA in operation.name:
        return False
    return all(_is_fixed(each.op) for each in operation.inputs)


def _log_curved(spec: EstimatorSpec) -> None:
    """Warns of scalars such as the root of a mean: each replica has its own."""
    values = {"the loss": spec.loss, **{f"scalar {k!r}": v for k, v in spec.scalars.items()}}
    for name, each in spec.metrics.items():
        if getattr(each, "factory", None) is keras.metrics.Mean:
            values[f"metric {name!r}"] = each.args[0]
    for name, value in values.items():
        if getattr(value, "shape", None) == () and _is_curved(value):
            logging.warning(
                "%s is a function of a mean over the batch, of which the mean over replicas is "
                "taken: expected a mean over examples. Write a value for each example, or "
                "metric(keras.metrics.RootMeanSquaredError, labels, outputs) and the like.",
                name,
            )


def _is_curved(value: Any, *, below: bool = False) -> bool:
    """Returns whether a scalar is a curved function of a mean or sum over the batch.

    `below` asks for the mean or sum itself.
    """
    operation = getattr(value, "op", None)
    if operation is None:
        return False
    if below and operation.type in ("Mean", "Sum"):
        shape = operation.inputs[0].shape
        return shape.rank is not None and None in shape.as_list()
    if operation.type in _CURVED:
        return any(_is_curved(each, below=True) for each in operation.inputs)
    is_passed = operation.type in _LINEAR or operation.type in ("Mul", "RealDiv")
    return is_passed and any(_is_curved(each, below=below) for each in operation.inputs)


def _sums_batch(value: Any) -> bool:
    """Returns whether a tensor in a graph is a sum over a dimension of unknown size."""
    operation = getattr(value, "op", None)
    if operation is None:  # A constant outside of the graph.
        return False
    if operation.type == "Sum":
        summed, axes = operation.inputs
        axes = tf.get_static_value(axes)
        rank = summed.shape.rank
        if rank is None or axes is None:
            return False
        return any(summed.shape[int(axis)] is None for axis in axes.flat) or _sums_batch(summed)
    if operation.type in _LINEAR:
        return any(_sums_batch(each) for each in operation.inputs)
    if operation.type == "Mul":  # By a number that may depend on the batch it may be a mean.
        factors = [tf.get_static_value(each) for each in operation.inputs]
        known = [factor is not None for factor in factors]
        return any(known) and any(_sums_batch(each) for each in operation.inputs)
    return False


def _uses(variable: Any, uses: Mapping[int, list[str]]) -> list[str]:
    """Returns the types of the operations that use a variable in a graph."""
    return uses.get(id(variable_of(variable).handle), [])


def _has_two_modes(layer: Any) -> bool:
    kinds = keras.layers.Dropout | keras.layers.BatchNormalization
    return isinstance(layer, kinds) and layer.trainable


def _state(layer: Any) -> list[Any]:
    """Returns what only training changes: moving statistics, or the state of random numbers."""
    return layer.non_trainable_variables


def _check_keeps_ids(path: str, model: keras.Sequential) -> None:
    """Refuses a Sequential that casts ids to a dtype that cannot hold them.

    Without keras.Input it casts its input to the compute dtype of its first layer.
    """
    first = model.layers[0] if model.layers else None
    if not isinstance(first, keras.layers.Embedding):
        return
    for each in getattr(model, "inputs", None) or ():
        most = _EXACT.get(keras.backend.standardize_dtype(each.dtype))
        if most is not None and first.input_dim > most:
            raise SpecError(
                f"{path} is a keras.Sequential that casts ids to {each.dtype}, which has all "
                f"integers up to {most}, before a table of {first.input_dim} rows: expected "
                "integers. Begin it with keras.Input([...], dtype='int64')."
            )


def _summaries(graph: Any) -> list[str]:
    tags = []
    for operation in graph.get_operations():
        if found := _SUMMARY.fullmatch(operation.name):
            tags.append(found[1] or "a tensor")
        elif operation.type in _OLD_SUMMARIES:
            tags.append(operation.name)
    return tags
