"""The deep and cross network, version 2."""

from collections.abc import Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline import RefusedValueError

from .deep import DeepInput
from .network import Features, TableNetwork, encoder_of, logits_layer
from .tower import Tower

STRUCTURES = ("parallel", "stacked")


class Cross(keras.layers.Layer):
    """Computes x0 * (W x + b) + x, elementwise but for W x.

    With a rank r, W = U V with V `[width, r]` and U `[r, width]`.
    """

    def __init__(self, rank: int | None, name: str | None = None) -> None:
        """Describes the layer.

        Args:
          rank: rank of W; None for a full matrix.
          name: name of the layer.
        """
        super().__init__(name=name)
        self._rank = rank

    def build(self, input_shape: Any) -> None:
        """Makes the weights.

        Args:
          input_shape: `[None, width]`.
        """
        width = input_shape[-1]
        if self._rank is not None:
            self.down = keras.layers.Dense(self._rank, use_bias=False, name="down")
            self.down.build([None, width])
        self.up = keras.layers.Dense(width, name="up")
        self.up.build([None, self._rank or width])

    def call(self, x0: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """Returns the next x, `[batch, width]`.

        Args:
          x0: what the network was given, `[batch, width]`.
          x: what the layer before gave, `[batch, width]`.
        """
        lower = x if self._rank is None else self.down(x)
        return x0 * self.up(lower) + x


class DcnV2(TableNetwork):
    """Cross layers before or beside a tower, see `models.dcn_v2`."""

    def __init__(
        self,
        encoder: Any,
        num_outputs: int | None,
        crosses: Sequence[Cross],
        tower: Tower,
        structure: str,
    ) -> None:
        """Describes the network.

        Args:
          encoder: see `TableNetwork`.
          num_outputs: see `TableNetwork`.
          crosses: the cross layers.
          tower: the hidden layers.
          structure: one of `STRUCTURES`.
        """
        super().__init__(encoder, num_outputs, "dcn_v2")
        self.crosses = list(crosses)
        self.tower = tower
        self._is_parallel = structure == "parallel"

    def make(self, fields: Sequence[Any], num_outputs: int) -> None:
        """See `TableNetwork`."""
        self.deep = DeepInput(fields)
        self.deep.build()
        shape = [None, self.deep.width]
        for cross in self.crosses:
            cross.build(shape)
        self.tower.build(shape)
        width = self.tower.compute_output_shape(shape)[-1]
        beside = self.deep.width if self._is_parallel else 0
        self.logits = logits_layer(num_outputs, width + beside)

    def call(self, features: Features, training: bool | None = None) -> tf.Tensor:
        """Returns logits, `[batch, num_outputs]`.

        Args:
          features: encoded features by name.
          training: whether units are dropped, and batches normalised by themselves.
        """
        x0 = x = self.deep(features)
        for cross in self.crosses:
            x = cross(x0, x)
        if not self._is_parallel:
            return self.logits(self.tower(x, training=training))
        hidden = self.tower(x0, training=training)
        return self.logits(tf.concat([x, hidden], axis=1))


@gin.configurable(denylist=["config"])
def dcn_v2(
    schema: Any,
    config: Any = ...,
    num_outputs: int | None = None,
    *,
    cross_layers: int = 3,
    rank: int | None = None,
    hidden: Sequence[int] = (128, 64),
    structure: str = "parallel",
    dropout: float = 0.0,
) -> keras.Model:
    """Makes layers that multiply features with each other, and dense layers.

    DCN V2: Improved Deep & Cross Network (Wang et al. 2020, arXiv:2008.13535). With x0
    the embeddings, one-hot categories and numbers side by side, a cross layer is

        x[l+1] = x0 * (W x[l] + b) + x[l]

    and W = U V where a rank is given. In parallel, logits = [x[L], dnn(x0)] W + b;
    stacked, logits = dnn(x[L]) W + b.

    Args:
      schema: an `inputs.Schema`; the input_fn has the same.
      config: see `dnn`.
      num_outputs: see `dnn`.
      cross_layers: number L of cross layers.
      rank: rank of their matrices, a quarter of x0's width at most to be worth it;
        None for full ones.
      hidden: units of each hidden layer of the dnn, which has relu.
      structure: 'parallel' or 'stacked'.
      dropout: part of each hidden layer's units that training drops.

    Raises:
      ValueError: there is no such structure, or no cross layer.
    """
    if structure not in STRUCTURES:
        raise RefusedValueError(
            f"dcn_v2.structure is {structure!r}: write 'parallel' or 'stacked'."
        )
    if cross_layers < 1:
        raise RefusedValueError(
            f"dcn_v2.cross_layers is {cross_layers!r}: write 1 or more, or take dnn."
        )
    encoder = encoder_of(schema, config, "dcn_v2")
    crosses = [Cross(rank, name=f"cross_{i}") for i in range(cross_layers)]
    tower = Tower(hidden, dropout=dropout)
    return DcnV2(encoder, num_outputs, crosses, tower, structure)
