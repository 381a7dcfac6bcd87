"""Some rows of a variable, or all of them, in the variable's place.

An optimizer computes with them as it does with the variable. What it assigns is written
to these rows, and no other row is read or written.

Beside others who update the same variable, a formula like Adam's must not meet with
another one's momentum without its velocity: where the velocity is 0 yet, the step would
be the momentum divided by epsilon. So momenta are read first and written last, each
slot is read once, and what others write to it meanwhile is not written over.
"""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

# The slots that others, or a gradient, are divided by.
_DIVISORS = ("_velocities", "_velocity_hats", "_u")


class Rows:
    """Some rows of a variable, which are read when they are first needed.

    Attributes:
      dtype: dtype of the variable.
      shape: `[None, *row]`.
    """

    def __init__(
        self, variable: tf.Variable, indices: tf.Tensor | None, *, shared: bool
    ) -> None:
        """Takes the place of rows.

        Args:
          variable: variable of this device.
          indices: numbers of the rows, int `[rows]`, none of them twice; None for all.
          shared: whether others write to the variable meanwhile.
        """
        self._shared = shared
        self._handle = variable.handle
        self._indices = indices
        self._value: tf.Tensor | None = None
        self.dtype = variable.dtype
        some = tf.TensorShape([None, *variable.shape[1:]])
        self.shape = variable.shape if indices is None else some

    def read(self) -> tf.Tensor:
        """Returns the values of the rows, as they are now."""
        # Not `tf.gather`: of some kinds of variables it reads all before it gathers.
        if self._value is None:
            given = {"resource": self._handle, "dtype": self.dtype}
            if self._indices is None:
                value = tf.raw_ops.ReadVariableOp(**given)
            else:
                value = tf.raw_ops.ResourceGather(indices=self._indices, **given)
            self._value = tf.ensure_shape(value, self.shape)
        return self._value

    def assign(self, value: Any) -> None:
        """Sets the rows to `value`."""
        self._value = self._as_tensor(value)
        if self._indices is None:
            tf.raw_ops.AssignVariableOp(resource=self._handle, value=self._value)
        else:
            tf.raw_ops.ResourceScatterUpdate(
                resource=self._handle, indices=self._indices, updates=self._value
            )

    def assign_add(self, delta: Any) -> None:
        """Adds `delta` to the rows; what others add to shared ones is not lost."""
        delta = self._as_tensor(delta)
        if not self._shared:  # 20 times as fast as to add in place.
            self.assign(self.read() + delta)
            return
        self._add(delta)
        self._value = None if self._value is None else self._value + delta

    def assign_sub(self, delta: Any) -> None:
        """Subtracts `delta` from the rows, see `assign_add`."""
        self.assign_add(-self._as_tensor(delta))

    def _as_tensor(self, value: Any) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(value), self.dtype)

    def _add(self, delta: tf.Tensor) -> Any:
        if self._indices is None:
            add = tf.raw_ops.AssignAddVariableOp
            return add(resource=self._handle, value=delta)
        # ResourceScatterAdd would lose what others add to a row at the same time.
        return tf.raw_ops.ResourceScatterNdAdd(
            ref=self._handle,
            indices=self._indices[:, tf.newaxis],
            updates=delta,
            use_locking=True,
        )

    # What formulas do with variables.

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.read(), dtype=dtype, name=name)

    def __mul__(self, other: Any) -> tf.Tensor:
        return self.read() * other

    __rmul__ = __mul__

    def __add__(self, other: Any) -> tf.Tensor:
        return self.read() + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> tf.Tensor:
        return self.read() - other


class _Held(Rows):
    """Rows of a slot that are written when all is computed, by what they changed."""

    _delta: Any = 0

    def assign(self, value: Any) -> None:
        """Has the rows become `value`, and keeps what others add meanwhile."""
        self.assign_add(value - self.read())

    def assign_add(self, delta: Any) -> None:
        """Has `delta` added to the rows."""
        delta = self._as_tensor(delta)
        self._value = self.read() + delta
        self._delta = self._delta + delta

    def write(self) -> Any:
        """Writes what has changed; returns the operation, in a graph."""
        return self._add(self._delta)


def update(
    optimizer: keras.optimizers.Optimizer,
    gradient: tf.IndexedSlices | tf.Tensor,
    variable: tf.Variable,
    learning_rate: Any,
    *,
    shared: bool,
    held: bool = False,
) -> None:
    """Runs an optimizer's own formula on the rows of a gradient alone.

    Args:
      optimizer: optimizer whose formula computes each row by itself.
      gradient: gradient of some rows, none of them twice; a tensor for all rows.
      variable: variable of this device.
      learning_rate: floating scalar.
      shared: whether others write to the variable meanwhile.
      held: whether slots are read in turn, and written in turn at the end, where
        others write to them.
    """
    indices = gradient.indices if isinstance(gradient, tf.IndexedSlices) else None
    values = gradient if indices is None else gradient.values
    kind = type(optimizer)
    number = optimizer._get_variable_index(variable)
    slot = _Held if shared and held else Rows
    slots = {
        name: slot(known[number].value, indices, shared=shared)
        for name, known in vars(optimizer).items()
        if _are_slots(known, number, variable)
    }
    # The optimizer itself, but for its slots, and for how it writes.
    twin = object.__new__(kind)
    own = vars(twin)
    own.update(vars(optimizer))
    own.update({name: {number: rows} for name, rows in slots.items()})
    own["_get_variable_index"] = lambda rows: number
    for write in ("assign", "assign_add", "assign_sub"):
        own[write] = lambda rows, value, write=write: getattr(rows, write)(value)
    rows = Rows(variable, indices, shared=shared)
    last = [name for name in slots if name in _DIVISORS]
    first = [name for name in slots if name not in last]
    if slot is _Held:
        _in_turn(slots[name].read for name in [*first, *last])
    kind.update_step(twin, values, rows, learning_rate)
    if slot is _Held:
        _in_turn(slots[name].write for name in [*last, *first])


def _in_turn(calls: Iterable[Any]) -> None:
    """Makes operations, each of which begins when the one before has ended."""
    before: list[Any] = []
    for call in calls:
        with tf.control_dependencies(before):
            made = call()
        before = [] if made is None else [made]


def _are_slots(value: Any, number: int, variable: tf.Variable) -> bool:
    """Whether an optimizer's attribute holds a slot of its variable of a number."""
    if not isinstance(value, list) or len(value) <= number:
        return False
    slot = value[number]
    is_slot = isinstance(slot, keras.Variable) and not slot.trainable
    return is_slot and slot.shape == variable.shape
