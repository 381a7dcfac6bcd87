"""The deep learning recommendation model."""

from collections.abc import Sequence
from typing import Any

import gin
import keras
import numpy as np
import tensorflow as tf

from pipeline import SpecError

from .columns import numbers
from .deep import Vectors, check_dim
from .network import Features, TableNetwork, encoder_of, logits_layer
from .tower import Tower


class Dlrm(TableNetwork):
    """Products of all pairs of vectors between two towers, see `models.dlrm`."""

    def __init__(
        self,
        encoder: Any,
        num_outputs: int | None,
        dim: int,
        bottom: Tower,
        top: Tower,
    ) -> None:
        """Describes the network.

        Args:
          encoder: see `TableNetwork`.
          num_outputs: see `TableNetwork`.
          dim: size of the vectors, and of what the bottom gives.
          bottom: the layers on the numbers.
          top: the layers on the products.
        """
        super().__init__(encoder, num_outputs, "dlrm")
        self._dim = dim
        self._numbers = [field for field in self.fields if field.kind == "number"]
        self.bottom = bottom if self._numbers else None
        self.top = top

    def make(self, fields: Sequence[Any], num_outputs: int) -> None:
        """See `TableNetwork`.

        Raises:
          SpecError: there is no pair of vectors.
        """
        self.vectors = Vectors(fields, self._dim)
        self.vectors.build()
        count = len(self.vectors.fields) + bool(self._numbers)
        if count < 2:
            raise SpecError(
                "dlrm multiplies vectors of features with each other, and the schema "
                f"has {[field.name for field in fields]}: declare another category, or "
                "take dnn."
            )
        # Of the table of all products, row by row, what lies below the diagonal.
        first, second = np.tril_indices(count, -1)
        self._pairs = (first * count + second).tolist()
        width = len(self._pairs)
        if self._numbers:
            self.bottom.build([None, len(self._numbers)])
            width += self._dim
        self.top.build([None, width])
        width = self.top.compute_output_shape([None, width])[-1]
        self.logits = logits_layer(num_outputs, width)

    def call(self, features: Features, training: bool | None = None) -> tf.Tensor:
        """Returns logits, `[batch, num_outputs]`.

        Args:
          features: encoded features by name.
          training: whether units are dropped.
        """
        vectors, beside = self.vectors(features), []
        if self._numbers:
            given = numbers(features, self._numbers)
            beside = [self.bottom(given, training=training)]
        stacked = tf.stack([*beside, *vectors], axis=1)
        products = tf.matmul(stacked, stacked, transpose_b=True)
        flat = tf.reshape(products, [-1, stacked.shape[1] ** 2])
        below = tf.gather(flat, self._pairs, axis=1)
        hidden = self.top(tf.concat([*beside, below], axis=1), training=training)
        return self.logits(hidden)


@gin.configurable(denylist=["config"])
def dlrm(
    schema: Any,
    config: Any = ...,
    num_outputs: int | None = None,
    *,
    embedding_dim: int = 16,
    bottom_hidden: Sequence[int] = (64,),
    hidden: Sequence[int] = (128, 64),
    dropout: float = 0.0,
) -> keras.Model:
    """Makes products of vectors between dense layers below and above them.

    Deep Learning Recommendation Model (Naumov et al. 2019, arXiv:1906.00091). With the
    vectors v_1 to v_n of categories and bags, and the numbers x side by side:

        v_0 = bottom(x), logits = top([v_0, <v_i, v_j> for all i > j])

    Both are dense layers with relu, top's last one without. Without numbers there is no
    v_0.

    Args:
      schema: an `inputs.Schema`; the input_fn has the same. All categories and bags
        have a vector, but those with `embedding=None`.
      config: see `dnn`.
      num_outputs: see `dnn`.
      embedding_dim: size of all vectors, whatever sizes the schema says.
      bottom_hidden: units of the layers on the numbers, before the last, which has
        `embedding_dim`.
      hidden: units of each hidden layer of the top.
      dropout: part of each of these layers' units that training drops.
    """
    encoder = encoder_of(schema, config, "dlrm")
    check_dim("dlrm", embedding_dim)
    bottom = Tower([*bottom_hidden, embedding_dim], name="bottom")
    top = Tower(hidden, dropout=dropout, name="top")
    return Dlrm(encoder, num_outputs, embedding_dim, bottom, top)
