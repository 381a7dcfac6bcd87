"""Tells whether a scalar is a sum over the batch, by the operations that made it.

A scalar loss counts as the mean over a replica's batch. A sum over the batch would be
half of what its author means on two replicas, without a word. The walk goes back from
the scalar through operations that keep a sum a sum: additions, casts, factors that are
the same for every batch, nested `tf.function`s. It ends at a reduction of values that
have one row for each example.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# Operations that make no mean of a sum, and the inputs by which the sum may come.
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
    """Returns the operation by which a scalar is summed over the batch.

    A quotient by a number that depends on the batch is taken for a mean, and so is a
    quotient by the number of examples. A quotient by another constant or by a variable
    is not.

    Args:
      scalar: symbolic tensor of shape []; any other value gives None.
      rows: examples in the batch; None where the shapes do not tell.

    Returns:
      The operation's name; None where the scalar is no sum over the batch.
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


def rows_of(features_spec: Any) -> int | None:
    """Returns the number of examples in a batch; None where no shape tells.

    Args:
      features_spec: nest of type specs of the features.
    """
    shapes = [getattr(s, "shape", None) for s in tf.nest.flatten(features_spec)]
    return next((s[0] for s in shapes if s is not None and s.rank), None)


def is_by_example(tensor: Any, rows: int | None) -> bool:
    """Returns whether the first dimension of a tensor is taken for the batch.

    It is where nobody knows its size; else where it is the batch's, and the values are
    made of the examples, or drawn, rather than of weights alone.

    Args:
      tensor: symbolic tensor of a known rank.
      rows: examples in the batch; None where the shapes do not tell.
    """
    if not tensor.shape.rank or tensor.shape[0] is None:
        return bool(tensor.shape.rank)
    return _is_by_example(_Value(tensor), rows, or_drawn=True)


# Without `eq`: tensors of a trace compare element by element. `key` tells them apart.
@dataclasses.dataclass(frozen=True, eq=False)
class _Value:
    """A tensor of a trace, or of a function that the trace calls.

    Attributes:
      tensor: tensor in the graph of the trace, or of the function.
      call: value of the operation that calls the function; None in the trace itself.
    """

    tensor: tf.Tensor
    call: "_Value | None" = None

    @property
    def key(self) -> tuple[str, ...]:
        """A name that no other value of the trace has."""
        return (self.tensor.name, *(self.call.key if self.call else ()))

    def made(self) -> "_Value":
        """Returns this value where it is computed.

        A function's result is computed inside of the function, and a function's
        argument where the function is called.
        """
        value = self
        while True:
            op, index = value.tensor.op, value.tensor.value_index
            if op.type in _CALLS and (body := _body(op)) is not None:
                value = _Value(body.outputs[index], value)
            elif op.type == "IdentityN":  # Each result is one of the inputs.
                value = value.inputs()[index]
            elif op.type == "Placeholder" and value.call is not None:
                names = [each.op.name for each in op.graph.inputs]
                value = value.call.inputs()[names.index(op.name)]
            else:
                return value

    def inputs(self) -> list["_Value"]:
        """Returns the inputs of the operation that computes the value."""
        return [_Value(each, self.call) for each in self.tensor.op.inputs]

    def is_input(self) -> bool:
        """Returns whether it is an argument of the trace: no weight, no constant."""
        op = self.tensor.op
        captured = [inside.op.name for _, inside in getattr(op.graph, "captures", ())]
        return op.type == "Placeholder" and op.name not in captured


def _body(call: tf.Operation) -> Any:
    """Returns the graph of a nested `tf.function`, or None; there is no public way."""
    function = call.graph._get_function(call.get_attr("f").name)
    return getattr(function, "graph", None)


def _terms(value: _Value) -> Iterator[tuple[_Value, tuple[float, ...]]]:
    """Yields the terms of a sum or a multiple, with the constants that divide them.

    Yields nothing where `value` is neither, or where its factor depends on the batch.
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
    """Returns whether a factor is the same for every batch: a number or a variable.

    A value that comes from no input but is not known as a number may still depend on
    the batch: it may have been computed from the shapes.
    """
    if _constant(factor):
        return True
    reads = _reaches(factor, lambda each: each.tensor.op.type == "ReadVariableOp")
    return reads and not _reaches(factor, _Value.is_input)


def _constant(value: _Value) -> tuple[float, ...]:
    """Returns the number that `value` always is, or () where a trace cannot tell."""
    number = tf.get_static_value(value.made().tensor)
    return () if number is None or np.ndim(number) else (float(number),)


def _counts(divisors: tuple[float, ...], values: _Value, rows: int | None) -> bool:
    """Returns whether a constant is the number of examples, or of their values."""
    if rows is None:
        return False
    sizes = [size for size in values.tensor.shape[1:] if size]
    some = (itertools.combinations(sizes, n) for n in range(len(sizes) + 1))
    # A mean over tokens divides by rows * tokens, over pixels by rows * height * width.
    counts = {rows * math.prod(each) for each in itertools.chain(*some)}
    # The values of a batch that was flattened.
    counts.add(values.tensor.shape[0])
    # A constant of float16 is rounded to three digits.
    return any(math.isclose(d, c, rel_tol=1e-3) for d in divisors for c in counts if c)


def _axes(reduction: _Value) -> set[int] | None:
    """Returns the dimensions that are reduced; None where a trace cannot tell."""
    values = reduction.tensor.op.inputs[0]
    if values.shape.rank is None:
        return None
    if reduction.tensor.op.type == "L2Loss":
        return set(range(values.shape.rank))
    axes = tf.get_static_value(reduction.inputs()[1].made().tensor)
    if axes is None:
        return None
    return {int(axis) % max(values.shape.rank, 1) for axis in np.ravel(axes)}


def _is_by_example(value: _Value, rows: int | None, *, or_drawn: bool = False) -> bool:
    """Returns whether the first dimension of a value is the batch.

    Args:
      value: value of a trace.
      rows: examples in the batch; None where the shapes do not tell.
      or_drawn: whether random numbers count as examples.
    """
    shape = value.tensor.shape
    # A multiple of the rows is a batch that was flattened with another dimension.
    if not shape.rank or not (shape[0] is None or (rows and shape[0] % rows == 0)):
        return False

    def is_wanted(each: _Value) -> bool:
        return each.is_input() or (or_drawn and "Random" in each.tensor.op.type)

    return _reaches(value, is_wanted, _by_first_dimension)


def _by_first_dimension(value: _Value) -> list[_Value]:
    """Returns the inputs whose first dimension may be the first of the result."""
    op, inputs = value.tensor.op, value.inputs()
    if op.type in _SIZES:  # A shape tells of the batch, and of no example.
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
    """Returns whether a walk back from `value` comes to a value that is wanted."""
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
