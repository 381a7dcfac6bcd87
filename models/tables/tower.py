"""Dense layers, one on the other."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

Activation = str | Callable[[Any], Any]


class Tower(keras.layers.Layer):
    """Hidden layers; each one's dropout and batch normalization follow its activation.

    So they do in tf.estimator's DNNClassifier, whose momentum of 0.999 the batch
    normalization has.

    Attributes:
      parts: the layers, in order.
    """

    def __init__(
        self,
        hidden: Sequence[int],
        activation: Activation = "relu",
        dropout: float = 0.0,
        batch_norm: bool = False,
        name: str = "tower",
    ) -> None:
        """Describes the layers, which `build()` makes.

        Args:
          hidden: units of each layer; none give the input.
          activation: activation of each layer.
          dropout: part of each layer's units that training drops.
          batch_norm: whether each layer's output is normalised.
          name: name of the layer.
        """
        super().__init__(name=name)
        self._hidden = tuple(hidden)
        self.parts = []
        for units in hidden:
            self.parts.append(keras.layers.Dense(units, activation=activation))
            if dropout:
                self.parts.append(keras.layers.Dropout(dropout))
            if batch_norm:
                self.parts.append(keras.layers.BatchNormalization(momentum=0.999))

    def build(self, input_shape: Any) -> None:
        """Makes the layers.

        Args:
          input_shape: `[None, width]`.
        """
        for part in self.parts:
            part.build(input_shape)
            input_shape = part.compute_output_shape(input_shape)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """Returns `[None, width]` of the last layer.

        Args:
          input_shape: `[None, width]` of the input.
        """
        width = self._hidden[-1] if self._hidden else input_shape[-1]
        return (input_shape[0], width)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns the last layer's output, `[batch, width]`.

        Args:
          inputs: `[batch, width]`.
          training: whether units are dropped, and batches normalised by themselves.
        """
        for part in self.parts:
            if isinstance(part, keras.layers.Dense):
                inputs = part(inputs)
            else:
                inputs = part(inputs, training=training)
        return inputs
