"""What the graph of a step knows of its operations: whence, which layer, of which."""

import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from pipeline.strategy import variables
from pipeline.strategy.modules import Modules

# Begins the names of a gradient's operations, see `tf.gradients`.
GRADIENT = "replayed_gradient"
# Operations that read from a list of tensors, as loops return them.
_READ_A_LIST = ("TensorListStack", "TensorListGetItem", "TensorListPopBack", "Identity")


class StepGraph:
    """The operations of one trace, forward and backward, in the order of their making.

    Attributes:
      tensors: the floating tensors that they compute.
      rows: number of each of these among them, by name.
    """

    def __init__(self, ops: Sequence[tf.Operation], modules: Modules) -> None:
        """Takes the operations.

        Args:
          ops: operations of the graph; those of gradients are named by `GRADIENT`.
          modules: modules whose layers have made them.
        """
        self._ops = list(ops)
        outputs = [tensor for op in self._ops for tensor in op.outputs]
        self.tensors = [tensor for tensor in outputs if tensor.dtype.is_floating]
        self.rows = {tensor.name: row for row, tensor in enumerate(self.tensors)}
        self._names = {op.name for op in self._ops}
        self._layers = _layer_names(modules)

    def roots(self, bad: Sequence[bool], targets: Sequence[str]) -> list[tf.Operation]:
        """Returns the operations from which what is bad comes to the targets, in order.

        An operation is one of them where its output is bad, and no input of it.

        Args:
          bad: whether a tensor is bad, by row.
          targets: names of tensors.
        """
        origins: dict[str, frozenset[int]] = {}
        numbers = {op.name: number for number, op in enumerate(self._ops)}
        for op in self._ops:
            inputs = frozenset().union(*(origins.get(t.name, ()) for t in op.inputs))
            for tensor in op.outputs:
                if tensor.dtype.is_floating:
                    if bad[self.rows[tensor.name]]:
                        made = frozenset([numbers[_maker_of(op).name]])
                        origins[tensor.name] = inputs or made
                elif tensor.dtype == tf.variant:
                    origins[tensor.name] = inputs  # A list of tensors, as loops have.
        reached = frozenset().union(*(origins.get(name, ()) for name in targets))
        return [self._ops[number] for number in sorted(reached)]

    def forward_of(self, name: str) -> str | None:
        """Returns the operation whose gradient another one computes, by their names."""
        if not name.startswith(f"{GRADIENT}_"):
            return None
        parts = name.split("/")[1:]
        for end, part in enumerate(parts, 1):
            forward = "/".join([*parts[: end - 1], part.removesuffix("_grad")])
            if part.endswith("_grad") and forward in self._names:
                return forward
        return None

    def layer_of(self, name: str) -> str | None:
        """Returns the innermost layer in whose scope an operation was made."""
        found: list[str] = []
        for scope in name.split("/")[:-1]:
            # Keras enters a layer to build it, too: the next scope has a number.
            layers = self._layers.get(re.sub(r"_\d+$", "", scope))
            layers = layers or self._layers.get(scope, [])
            inner = [n for n in layers if any(n.startswith(f"{o}/") for o in found)]
            found = inner or layers or found
        return " or ".join(found) or None


def _maker_of(op: tf.Operation) -> tf.Operation:
    """Returns the operation that computed what another one only reads from a list."""
    while op.type in _READ_A_LIST:
        lists = [tensor.op for tensor in op.inputs if tensor.dtype == tf.variant]
        if not lists:
            break
        op = lists[0]
    return op


def _layer_names(modules: Modules) -> dict[str, list[str]]:
    """Returns full names of layers, by the names that open their scopes."""
    found: dict[str, list[str]] = {}
    for module, value in modules.by_name.items():
        for prefix, layer in variables.parts(value):
            if isinstance(layer, keras.Layer):
                full = f"{module}/{prefix}".rstrip("/")
                found.setdefault(layer.name, []).append(full)
    return found
