"""A step that also tells what each of its operations computes.

It is traced once, forward and backward, into a graph that returns with the losses how
many numbers of each tensor are NaN or Inf, and the range of the others. The graph knows
the rest: what an operation's inputs are, the user's line, the layer, and of a gradient
the operation that it is the gradient of.

`tf.debugging.enable_check_numerics` tells less. It ends with the first Inf there is, be
it a mask's that reaches nothing. It names no layer, and of a gradient's operation not
which one it belongs to. And it holds for the whole process.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contract.model_fn import BoundModelFn
from pipeline.contract.spec import EstimatorSpec
from pipeline.feed.batch import pair_of, rows_in
from pipeline.loop import losses
from pipeline.mistakes.checks import components
from pipeline.mistakes.user_errors import lines_in
from pipeline.rescue import bad_batches
from pipeline.rescue.findings import Cause, Operation, Values
from pipeline.rescue.step_graph import GRADIENT, StepGraph
from pipeline.strategy import variables
from pipeline.strategy.modules import Modules

_NAN, _INF = 0, 1  # Columns of `Seen.stats`.
# The number of train ops is known after a trace alone.
_SCALES = tf.TensorSpec([None], tf.float32)


class TracedStep:
    """One element's forward pass and gradients, with a look at each operation."""

    def __init__(self, model_fn: BoundModelFn, modules: Modules, element: Any) -> None:
        """Traces model_fn for elements of one structure and shape.

        Args:
          model_fn: takes features, labels and step, and returns the spec of TRAIN.
          modules: modules of its layers, which are built.
          element: features, or features and labels.
        """
        self._model_fn = model_fn
        self._modules = modules
        self._variables = modules.named_variables()
        # What a forward pass may change: moving statistics, random streams.
        slots = (*variables.optimizer_prefixes(modules.by_name), "driver/")
        self._moving = [
            v
            for name, v in self._variables.items()
            if not v.trainable and not name.startswith(slots)
        ]
        # Set by the trace.
        self._graph: StepGraph | None = None
        self._places: dict[str, str] = {}
        self._trained: list[list[str]] = []
        self._targets: dict[str, list[str]] = {}
        self._losses: dict[str, list[str]] = {}
        trace = tf.function(self._trace, autograph=False)
        self._run = trace.get_concrete_function(
            pair_of(element), tf.identity(modules.global_step), _SCALES
        )

    def __call__(self, element: Any, scales: Sequence[float]) -> "Seen":
        """Computes an element; the modules are as they were.

        Args:
          element: features, or features and labels, of the structure and shape that
            were traced.
          scales: loss scale of each train op.
        """
        before = [tf.identity(variable) for variable in self._moving]
        step = tf.identity(self._modules.global_step)
        found = self._run(pair_of(element), step, tf.constant(scales, tf.float32))
        for variable, value in zip(self._moving, before, strict=True):
            variable.assign(value)
        return Seen(element, **tf.nest.map_structure(np.asarray, found))

    def cause(self, seen: "Seen") -> Cause | None:
        """Returns where what is not finite comes from; None where all is finite.

        Args:
          seen: what a call returned.
        """
        stats = seen.stats
        where = self._not_finite(stats)
        if not where:
            return None
        targets = [tensor for name in where for tensor in where[name]]
        names = tuple(where)
        bad = stats[:, _NAN] + stats[:, _INF] > 0
        roots = self._graph.roots(bad, targets)
        held = [name for op in roots for name in self._held_by(op, seen.element)]
        if held:
            return Cause(names, tuple(dict.fromkeys(held)), None, None)
        computed = [op for op in roots if op.type not in ("Const", "Placeholder")]
        nans = self._graph.roots(stats[:, _NAN] > 0, targets)
        # Constants such as a mask's -Inf are meant: what made NaN of one is not.
        first = computed[0] if computed else (nans or roots)[0]
        nan = nans[0] if nans and nans[0] is not first else None
        return Cause(
            names,
            (),
            self._operation(first, stats),
            None if nan is None else self._operation(nan, stats),
        )

    def is_finite(self, seen: "Seen") -> bool:
        """Returns whether losses and gradients of a call are all finite."""
        return not self._not_finite(seen.stats)

    def norms(self, seen: "Seen", scales: Sequence[float]) -> dict[str, float]:
        """Returns the norm of each variable's gradient, without the loss scale.

        Args:
          seen: what a call returned.
          scales: loss scales of that call.
        """
        found: dict[str, float] = {}
        for names, norms, scale in zip(self._trained, seen.norms, scales, strict=True):
            for name, norm in zip(names, norms.tolist(), strict=True):
                found[name] = max(found.get(name, 0.0), norm / scale)
        return found

    def _trace(self, element: Any, step: tf.Tensor, scales: tf.Tensor) -> Any:
        features, labels = element
        graph = step.graph
        places = {
            tensor.name: place
            for place, leaf in components((features, labels))
            for tensor in tf.nest.flatten(leaf, expand_composites=True)
        }
        # A read of its own tells the name in the graph of each variable's handle.
        reads = {n: tf.convert_to_tensor(v) for n, v in self._variables.items()}
        places |= {read.op.inputs[0].name: name for name, read in reads.items()}
        aside = {read.op.name for read in reads.values()}
        with _inlined():
            spec = self._model_fn(features, labels, step)
        rows = rows_in(features)
        loss, _ = losses.objective(spec, rows)
        objectives = [
            loss if op.loss is None else losses.mean(op.loss, None, rows)[0]
            for op in spec.train_op
        ]
        self._losses = {"loss": [loss.name]}
        for i, op in enumerate(spec.train_op):
            if op.loss is not None:
                self._losses[f"loss of train_op[{i}]"] = [objectives[i].name]
        norms = self._gradients(spec, objectives, scales)
        ops = [op for op in graph.get_operations() if op.name not in aside]
        self._places, self._graph = places, StepGraph(ops, self._modules)
        return {
            "stats": tf.stack([_measured(tensor) for tensor in self._graph.tensors]),
            "loss": loss,
            "norms": norms,
            "each": _each_loss(spec, rows),
        }

    def _gradients(
        self, spec: EstimatorSpec, objectives: Sequence[tf.Tensor], scales: tf.Tensor
    ) -> list[tf.Tensor]:
        """Returns the norms of each train op's gradients; notes whose they are."""
        names = {id(v): name for name, v in self._variables.items()}
        self._trained, self._targets, norms = [], {}, []
        for i, op in enumerate(spec.train_op):
            raw = [variables.raw(v) for v in op.variables]
            # Unlike a tape, it names each operation by the one whose gradient it is.
            found = tf.gradients(objectives[i] * scales[i], raw, name=f"{GRADIENT}_{i}")
            pairs = [(v, g) for v, g in zip(raw, found, strict=True) if g is not None]
            trained = [names.get(id(v), v.name) for v, _ in pairs]
            for name, (_, gradient) in zip(trained, pairs, strict=True):
                is_slices = isinstance(gradient, tf.IndexedSlices)
                tensor = gradient.values if is_slices else gradient
                self._targets.setdefault(f"gradient of {name}", []).append(tensor.name)
            self._trained.append(trained)
            norms.append(tf.stack([_norm(gradient) for _, gradient in pairs]))
        return norms

    def _not_finite(self, stats: np.ndarray) -> dict[str, list[str]]:
        """Returns what is not finite: the loss, else variables' gradients, by name."""

        def broken(tensors: Sequence[str]) -> list[str]:
            rows = [self._graph.rows[tensor] for tensor in tensors]
            return [
                tensor
                for tensor, row in zip(tensors, rows, strict=True)
                if stats[row, _NAN] + stats[row, _INF] > 0
            ]

        # A loss that is not finite leaves its gradients no chance.
        for group in (self._losses, self._targets):
            found = {name: broken(tensors) for name, tensors in group.items()}
            if any(found.values()):
                return {name: tensors for name, tensors in found.items() if tensors}
        return {}

    def _held_by(self, op: tf.Operation, element: Any) -> list[str]:
        """Returns what of the batch and the weights an operation took NaN or Inf from.

        A part of the batch comes with its examples.
        """
        if op.type == "Placeholder" and op.outputs[0].name in self._places:
            place = self._places[op.outputs[0].name]
            bad = bad_batches.not_finite(pair_of(element))
            return [f for f in bad if f == place or f.startswith(f"{place}, ")]
        read = [self._places.get(t.name) for t in op.inputs if t.dtype == tf.resource]
        return [
            name
            for name in filter(None, read)
            if self._variables[name].dtype.is_floating
            and not bool(tf.reduce_all(tf.math.is_finite(self._variables[name])))
        ]

    def _operation(self, op: tf.Operation, stats: np.ndarray) -> Operation:
        """Returns an operation with what went in and out."""
        forward = self._graph.forward_of(op.name)
        maker = op if forward is None else op.graph.get_operation_by_name(forward)
        return Operation(
            op.type,
            op.name,
            self._graph.layer_of(maker.name),
            tuple(lines_in(maker.traceback)),
            None if forward is None else maker.type,
            tuple(self._values(op.inputs, stats)),
            tuple(self._values(op.outputs, stats)),
        )

    def _values(
        self, tensors: Sequence[tf.Tensor], stats: np.ndarray
    ) -> Iterator[Values]:
        for tensor in tensors:
            if tensor.name in self._graph.rows:
                nan, inf, lowest, highest = stats[
                    self._graph.rows[tensor.name]
                ].tolist()
                shape = "" if tensor.shape.rank is None else str(tensor.shape.as_list())
                name, kind = self._name_of(tensor), tensor.dtype.name
                yield Values(name, kind, shape, lowest, highest, int(nan), int(inf))

    def _name_of(self, tensor: tf.Tensor) -> str:
        """Returns the part of the batch, or the variable, that a tensor is; or ""."""
        reads = tensor.op.type == "ReadVariableOp"
        source = tensor.op.inputs[0] if reads else tensor
        return self._places.get(source.name, "")


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one run of a `TracedStep` has computed.

    Attributes:
      element: element that it was run on.
      stats: number of NaN, number of Inf, lowest and highest finite number of each
        tensor, float64 `[tensors, 4]`.
      loss: mean loss of the element.
      norms: norms of the variables' gradients, by train op.
      each: loss of each example; empty where model_fn returned a scalar.
    """

    element: Any
    stats: np.ndarray
    loss: np.ndarray
    norms: Sequence[np.ndarray]
    each: np.ndarray


def specs_of(element: Any) -> Any:
    """Returns the type specs `(features, labels)` of an element."""
    features, labels = pair_of(element)
    of = tf.type_spec_from_value
    specs = tf.nest.map_structure(of, features)
    return specs, None if labels is None else tf.nest.map_structure(of, labels)


@contextlib.contextmanager
def _inlined() -> Iterator[None]:
    """Has functions that are called in the block be a part of the graph around them.

    Else one that the user has decorated, `@tf.function`, would be a single operation.
    """
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _measured(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a row of `Seen.stats`."""
    exact = tensor if tensor.dtype == tf.float64 else tf.cast(tensor, tf.float32)
    finite, limit = tf.math.is_finite(exact), tf.constant(np.inf, exact.dtype)
    numbers = [
        tf.math.count_nonzero(tf.math.is_nan(exact)),
        tf.math.count_nonzero(tf.math.is_inf(exact)),
        tf.reduce_min(tf.where(finite, exact, limit)),
        tf.reduce_max(tf.where(finite, exact, -limit)),
    ]
    return tf.stack([tf.cast(number, tf.float64) for number in numbers])


def _norm(gradient: Any) -> tf.Tensor:
    # Of slices it adds up those of the same row.
    dense = tf.cast(tf.convert_to_tensor(gradient), tf.float64)
    return tf.sqrt(tf.reduce_sum(tf.square(dense)))


def _each_loss(spec: EstimatorSpec, rows: Any) -> tf.Tensor:
    """Returns each example's loss by its weights; empty where the loss is a scalar."""
    loss = tf.cast(spec.loss, tf.float32)
    if not loss.shape.rank:
        return tf.zeros([0])
    if spec.loss_weights is not None:
        loss *= tf.cast(spec.loss_weights, tf.float32)
    return tf.reduce_mean(tf.reshape(loss, [rows, -1]), 1)
