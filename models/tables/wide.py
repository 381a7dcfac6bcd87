"""The wide part of a model: a weight for each number and for each row of a category."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline import SpecError

from .columns import Joined, numbers, table


class WidePart(keras.layers.Layer):
    """Computes x w + b of all fields that are wide, as tf.estimator's LinearClassifier.

    Of a category x is one-hot, of a bag it says how often an item is in it. So the
    product is the sum of the rows that a batch uses, of one table with all fields'
    rows, in one gather. All weights begin at 0 and are float32, in mixed precision too.
    """

    def __init__(
        self, fields: Sequence[Any], num_outputs: int, name: str = "wide"
    ) -> None:
        """Describes the weights, which `build()` makes.

        Args:
          fields: fields of the schema; those that are not wide are left out.
          num_outputs: size of the logits' last dimension.
          name: name of the layer.

        Raises:
          SpecError: no field is wide.
        """
        super().__init__(name=name, dtype="float32", autocast=False)
        names, fields = [f.name for f in fields], [f for f in fields if f.wide]
        if not fields:
            raise SpecError(
                f"no feature of {names} is wide: write wide=True for one of them."
            )
        self._numbers = [field for field in fields if field.kind == "number"]
        self._joined = Joined([field for field in fields if field.kind != "number"])
        self.num_outputs = num_outputs
        if self._joined.fields:
            self.table = table(
                self._joined.num_rows,
                num_outputs,
                "zeros",
                combiner="sum",
                name="rows",
                dtype="float32",
            )

    def build(self, input_shape: Any = None) -> None:
        """Makes the weights.

        Args:
          input_shape: not looked at: the fields say it all.
        """
        if self._joined.fields:
            self.table.build()
        if self._numbers:
            shape = (len(self._numbers), self.num_outputs)
            self.kernel = self.add_weight(
                name="kernel", shape=shape, initializer="zeros"
            )
        self.bias = self.add_weight(
            name="bias", shape=(self.num_outputs,), initializer="zeros"
        )

    def call(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Returns logits, float32 `[batch, num_outputs]`.

        Args:
          features: encoded features by name.
        """
        terms = [self.bias]
        if self._joined.fields:
            # A list of inputs is one gather.
            terms += self.table(self._joined.rows(features))
        if self._numbers:
            terms.append(tf.matmul(numbers(features, self._numbers), self.kernel))
        return sum(terms[1:], terms[0])
