"""An optimizer's counter and learning rate, read once in an update of many variables.

Keras' formulas read them anew for each variable, and compute from them what is the same
for all: of Adam the powers and the step's size, ten operations a variable. TensorFlow
does not merge what begins with a read. From one read on it does.
"""

from typing import Any

import keras
import tensorflow as tf


class SharedNumbers:
    """The numbers of one update, as they are on each device."""

    def __init__(self) -> None:
        """Has read nothing."""
        self._read: dict[str, list[tuple[keras.Variable, tf.Tensor]]] = {}

    def forget(self) -> None:
        """Ends an update: the next one reads anew."""
        self._read.clear()

    def in_place_of(
        self, optimizer: keras.optimizers.Optimizer, learning_rate: Any, device: str
    ) -> keras.StatelessScope:
        """Returns a scope in which Keras takes what was read for the variables.

        What a formula writes by the optimizer's own `assign` is written there as ever;
        `keras.Variable.assign` would write nothing.

        Args:
          optimizer: optimizer that updates variables.
          learning_rate: rate that Keras hands to the formula.
          device: device of the variable to update, on which the numbers are read.
        """
        if device not in self._read:
            numbers = optimizer.iterations, learning_rate
            self._read[device] = [
                (number, tf.convert_to_tensor(number.value))
                for number in numbers
                if isinstance(number, keras.Variable)
            ]
        return keras.StatelessScope(self._read[device], initialize_variables=False)
