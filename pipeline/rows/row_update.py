"""Some rows of a variable, in the variable's place.

An optimizer computes with them as it does with the variable. What it assigns is written
to these rows, and no other row is read or written.
"""

from typing import Any

import keras
import tensorflow as tf


class Rows:
    """Some rows of a variable, which are read when they are first needed.

    Attributes:
      dtype: dtype of the variable.
      shape: `[None, *row]`.
    """

    def __init__(
        self, variable: tf.Variable, indices: tf.Tensor, *, shared: bool
    ) -> None:
        """Takes the place of rows.

        Args:
          variable: variable of this device.
          indices: numbers of the rows, int `[rows]`, none of them twice.
          shared: whether others write to the variable meanwhile.
        """
        self._shared = shared
        self._handle = variable.handle
        self._indices = indices
        self._value: tf.Tensor | None = None
        self.dtype = variable.dtype
        self.shape = tf.TensorShape([None, *variable.shape[1:]])

    def read(self) -> tf.Tensor:
        """Returns the values of the rows, as they are now."""
        # Not `tf.gather`: of some kinds of variables it reads all before it gathers.
        if self._value is None:
            value = tf.raw_ops.ResourceGather(
                resource=self._handle, indices=self._indices, dtype=self.dtype
            )
            self._value = tf.ensure_shape(value, self.shape)
        return self._value

    def assign(self, value: Any) -> None:
        """Sets the rows to `value`."""
        self._value = self._as_tensor(value)
        self._write(tf.raw_ops.ResourceScatterUpdate, self._value)

    def assign_add(self, delta: Any) -> None:
        """Adds `delta` to the rows; what others add to shared ones is not lost."""
        delta = self._as_tensor(delta)
        if not self._shared:  # 20 times as fast as to add in place.
            self.assign(self.read() + delta)
            return
        self._write(tf.raw_ops.ResourceScatterAdd, delta)
        self._value = None if self._value is None else self._value + delta

    def assign_sub(self, delta: Any) -> None:
        """Subtracts `delta` from the rows, see `assign_add`."""
        self.assign_add(-self._as_tensor(delta))

    def _as_tensor(self, value: Any) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(value), self.dtype)

    def _write(self, scatter: Any, value: tf.Tensor) -> None:
        scatter(resource=self._handle, indices=self._indices, updates=value)

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


def update(
    optimizer: keras.optimizers.Optimizer,
    gradient: tf.IndexedSlices,
    variable: tf.Variable,
    learning_rate: Any,
    *,
    shared: bool,
) -> None:
    """Runs an optimizer's own formula on the rows of a gradient alone.

    Args:
      optimizer: optimizer whose formula computes each row by itself.
      gradient: gradient of some rows, none of them twice.
      variable: variable of this device.
      learning_rate: floating scalar.
      shared: whether others write to the variable meanwhile.
    """
    kind = type(optimizer)
    number = optimizer._get_variable_index(variable)
    # The optimizer itself, but for its slots, and for how it writes.
    twin = object.__new__(kind)
    own = vars(twin)
    own.update(vars(optimizer))
    for name, slots in vars(optimizer).items():
        if _are_slots(slots, number, variable):
            own[name] = {
                number: Rows(slots[number].value, gradient.indices, shared=shared)
            }
    own["_get_variable_index"] = lambda rows: number
    for write in ("assign", "assign_add", "assign_sub"):
        own[write] = lambda rows, value, write=write: getattr(rows, write)(value)
    rows = Rows(variable, gradient.indices, shared=shared)
    kind.update_step(twin, gradient.values, rows, learning_rate)


def _are_slots(value: Any, number: int, variable: tf.Variable) -> bool:
    """Whether an optimizer's attribute holds a slot of its variable of a number."""
    if not isinstance(value, list) or len(value) <= number:
        return False
    slot = value[number]
    is_slot = isinstance(slot, keras.Variable) and not slot.trainable
    return is_slot and slot.shape == variable.shape
