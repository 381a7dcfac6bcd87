"""Whether a scalar is a sum over the batch, by the operations that made it.

The walk goes back from the scalar through what keeps a sum a sum: additions, casts,
factors that are the same for every batch, nested `tf.function`s.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# Operations that make no mean of a sum, and which of their inputs it may come by.
_LINEAR: dict[str, slice] = {
    **dict.fromkeys(("Add", "AddV2", "AddN", "Sub", "Neg"), slice(None)),
    **dict.fromkeys(("Identity", "StopGradient", "PreventGradient"), slice(None)),
    **dict.fromkeys(("EnsureShape", "CheckNumerics", "Cast", "Snapshot"), slice(None)),
    **dict.fromkeys(("Reshape", "Squeeze", "ExpandDims"), slice(1)),
    "SelectV2": slice(1, None),
}
_PRODUCTS = ("Mul", "MulNoNan")
_QUOTIENTS = ("RealDiv", "Div", "DivNoNan", "Xdivy")
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "EuclideanNorm", "L2Loss")
_SIZES = ("Shape", "ShapeN", "Size", "Rank")


def summed_by(scalar: Any, rows: int | None) -> str | None:
    """The operation by which a scalar is summed over the batch, or None.

    A quotient by what depends on the batch is taken for a mean, as is one by the
    number of examples. One by another constant or a variable is not.

    Args:
      scalar: symbolic tensor; of all others the answer is None.
      rows: examples in the batch; None where the shapes do not tell.
    """
    if not tf.is_symbolic_tensor(scalar) or scalar.shape.rank != 0:
        return None
    left: list[tuple[_Value, tuple[float, ...]]] = [(_Value(scalar), ())]
    seen = set()
    while left:
        value, divisors = left.pop()
        value = value.made()
        if (value.key, divisors) in seen or not value.tensor.dtype.is_floating:
            continue
        seen.add((value.key, divisors))
        if value.tensor.op.type not in ("Sum", "Mean", "L2Loss"):
            left += [(term, divisors + by) for term, by in _terms(value)]
            continue
        values, axes = value.inputs()[0].made(), _axes(value)
        if values.tensor.op.type == "Pack":  # `tf.reduce_sum([first, second])`.
            left += [(each, divisors) for each in values.inputs()]
        elif axes is None:
            continue
        elif 0 not in axes or not _is_by_example(values, rows):
            left.append((values, divisors))
        elif value.tensor.op.type != "Mean" and not _counts(divisors, values, rows):
            return value.tensor.op.name
    return None


@dataclasses.dataclass(frozen=True, eq=False)
class _Value:
    """A tensor of a trace, or of a function that the trace calls.

    Attributes:
      tensor: there.
      call: what calls the function; None outside of all.
    """

    tensor: tf.Tensor
    call: "_Value | None" = None

    @property
    def key(self) -> tuple[str, ...]:
        """Tells it from all others of a trace."""
        return (self.tensor.name, *(self.call.key if self.call else ()))

    def made(self) -> "_Value":
        """The same where it is computed: in a function, or before that is called."""
        value = self
        while True:
            op, index = value.tensor.op, value.tensor.value_index
            if op.type in _CALLS and (body := _body(op)) is not None:
                value = _Value(body.outputs[index], value)
            elif op.type == "IdentityN":
                value = value.inputs()[index]
            elif op.type == "Placeholder" and value.call is not None:
                names = [each.op.name for each in op.graph.inputs]
                value = value.call.inputs()[names.index(op.name)]
            else:
                return value

    def inputs(self) -> list["_Value"]:
        """What the operation that computes it takes."""
        return [_Value(each, self.call) for each in self.tensor.op.inputs]

    def is_input(self) -> bool:
        """Whether it is an argument of the trace, unlike a weight or a constant."""
        op = self.tensor.op
        captured = [inside.op.name for _, inside in getattr(op.graph, "captures", ())]
        return op.type == "Placeholder" and op.name not in captured


def _body(call: tf.Operation) -> Any:
    """The graph of a nested `tf.function`, or None; no public way leads there."""
    function = call.graph._get_function(call.get_attr("f").name)
    return getattr(function, "graph", None)


def _terms(value: _Value) -> Iterator[tuple[_Value, tuple[float, ...]]]:
    """What `value` is a sum of, or a multiple, and the constant that it is divided by.

    Nothing where it is neither, or a multiple by what depends on the batch.
    """
    kind, inputs = value.tensor.op.type, value.inputs()
    if kind in _LINEAR:
        yield from ((each, ()) for each in inputs[_LINEAR[kind]])
    elif kind in _QUOTIENTS and _is_the_same(inputs[1]):
        yield inputs[0], _constant(inputs[1])
    elif kind in _PRODUCTS:
        for term, factor in (inputs, inputs[::-1]):
            if _is_the_same(factor):
                yield term, tuple(1 / each for each in _constant(factor) if each)
                return


def _is_the_same(factor: _Value) -> bool:
    """Whether it is so for every batch: a constant that is known, or a variable.

    Another constant may have been computed from the shapes of the batch.
    """
    if _constant(factor):
        return True
    reads = _reaches(factor, lambda each: each.tensor.op.type == "ReadVariableOp")
    return reads and not _reaches(factor, _Value.is_input)


def _constant(value: _Value) -> tuple[float, ...]:
    """The number that `value` always is, or nothing where a trace cannot tell."""
    number = tf.get_static_value(value.made().tensor)
    return () if number is None or np.ndim(number) else (float(number),)


def _counts(divisors: tuple[float, ...], values: _Value, rows: int | None) -> bool:
    """Whether a constant is the number of examples, or of what is in them."""
    if rows is None:
        return False
    sizes = [size for size in values.tensor.shape[1:] if size]
    some = (itertools.combinations(sizes, n) for n in range(len(sizes) + 1))
    counts = {rows * math.prod(each) for each in itertools.chain(*some)}
    # Those of a batch that was flattened.
    counts.add(values.tensor.shape[0])
    return any(math.isclose(d, c, rel_tol=1e-3) for d in divisors for c in counts if c)


def _axes(reduction: _Value) -> set[int] | None:
    """The dimensions that it reduces; None where a trace cannot tell."""
    values = reduction.tensor.op.inputs[0]
    if values.shape.rank is None:
        return None
    if reduction.tensor.op.type == "L2Loss":
        return set(range(values.shape.rank))
    axes = tf.get_static_value(reduction.inputs()[1].made().tensor)
    if axes is None:
        return None
    return {int(axis) % max(values.shape.rank, 1) for axis in np.ravel(axes)}


def _is_by_example(value: _Value, rows: int | None) -> bool:
    """Whether the first dimension is that of the batch."""
    shape = value.tensor.shape
    if not shape.rank or not (shape[0] is None or (rows and shape[0] % rows == 0)):
        return False
    return _reaches(value, _Value.is_input, _by_first_dimension)


def _by_first_dimension(value: _Value) -> list[_Value]:
    """Those inputs of an operation of which the first dimension may be the result's."""
    op, inputs = value.tensor.op, value.inputs()
    if op.type in _SIZES:
        return []
    if op.type in _REDUCTIONS:
        axes = _axes(value)
        return inputs[:1] if axes is not None and 0 not in axes else []
    if op.type == "Transpose":
        order = tf.get_static_value(inputs[1].made().tensor)
        return inputs[:1] if order is not None and order[:1] == [0] else []
    if op.type == "MatMul":
        return [] if op.get_attr("transpose_a") else inputs[:1]
    if op.type == "Einsum":
        taken, _, result = op.get_attr("equation").decode().partition("->")
        letters = [each[:1] for each in taken.split(",")]
        same = zip(letters, inputs, strict=True)
        return [each for letter, each in same if letter == result[:1]]
    return inputs


def _reaches(
    value: _Value,
    is_wanted: Callable[[_Value], bool],
    inputs_of: Callable[[_Value], list[_Value]] = _Value.inputs,
) -> bool:
    """Whether something that is wanted is reached from `value`."""
    left, seen = [value], set()
    while left:
        each = left.pop().made()
        if each.key in seen:
            continue
        seen.add(each.key)
        if is_wanted(each):
            return True
        left += inputs_of(each)
    return False
