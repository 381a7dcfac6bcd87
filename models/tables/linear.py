"""The linear model of a schema."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .network import Features, TableNetwork
from .wide import WidePart


class Linear(TableNetwork):
    """The wide part alone, see `models.linear`."""

    has_deep = False

    def make(self, fields: Sequence[Any], num_outputs: int) -> None:
        """See `TableNetwork`."""
        self.wide = WidePart(fields, num_outputs)
        self.wide.build()

    def call(self, features: Features, training: bool | None = None) -> tf.Tensor:
        """Returns logits, float32 `[batch, num_outputs]`.

        Args:
          features: encoded features by name.
          training: not looked at.
        """
        return self.wide(features)
