"""The factorization machine with a deep network on the same vectors."""

from collections.abc import Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from .deep import FieldVectors, check_dim
from .network import Features, TableNetwork, added, encoder_of, logits_layer
from .tower import Activation, Tower
from .wide import WidePart


class PairProducts(keras.layers.Layer):
    """Sums the products of all pairs of vectors, in time linear in their number.

    With vectors v_1 to v_n of an example it is

        sum_{i<j} <v_i, v_j> = sum_k ((sum_i v_ik)^2 - sum_i v_ik^2) / 2

    Several outputs weigh the k dimensions by vectors of their own, which begin at 1: as
    h in Neural Factorization Machines (He & Chua 2017, arXiv:1708.05027).
    """

    def __init__(self, num_outputs: int, name: str = "pairs") -> None:
        """Describes the layer.

        Args:
          num_outputs: sums of each example.
          name: name of the layer.
        """
        super().__init__(name=name, dtype="float32")
        self._num_outputs = num_outputs

    def build(self, input_shape: Any) -> None:
        """Makes the weights of several outputs; one has none.

        Args:
          input_shape: `[None, fields, dim]`.
        """
        if self._num_outputs > 1:
            shape = (input_shape[-1], self._num_outputs)
            self.kernel = self.add_weight(
                name="kernel", shape=shape, initializer="ones"
            )

    def call(self, vectors: tf.Tensor) -> tf.Tensor:
        """Returns the sums, float32 `[batch, num_outputs]`.

        Args:
          vectors: `[batch, fields, dim]`.
        """
        squares = tf.reduce_sum(tf.square(vectors), axis=1)
        products = (tf.square(tf.reduce_sum(vectors, axis=1)) - squares) / 2
        if self._num_outputs > 1:
            return tf.matmul(products, self.kernel)
        return tf.reduce_sum(products, axis=1, keepdims=True)


class DeepFm(TableNetwork):
    """The wide part, products of pairs and a tower, see `models.deep_fm`."""

    def __init__(
        self, encoder: Any, num_outputs: int | None, dim: int, tower: Tower
    ) -> None:
        """Describes the network.

        Args:
          encoder: see `TableNetwork`.
          num_outputs: see `TableNetwork`.
          dim: size of the vectors.
          tower: the hidden layers.
        """
        super().__init__(encoder, num_outputs, "deep_fm")
        self._dim = dim
        self.tower = tower

    def make(self, fields: Sequence[Any], num_outputs: int) -> None:
        """See `TableNetwork`."""
        self.wide = WidePart(fields, num_outputs)
        self.wide.build()
        self.deep = FieldVectors(fields, self._dim)
        self.deep.build()
        count = self.deep.count
        self.pairs = PairProducts(num_outputs)
        self.pairs.build([None, count, self._dim])
        shape = [None, count * self._dim]
        self.tower.build(shape)
        width = self.tower.compute_output_shape(shape)[-1]
        self.logits = logits_layer(num_outputs, width)

    def call(self, features: Features, training: bool | None = None) -> tf.Tensor:
        """Returns logits, float32 `[batch, num_outputs]`.

        Args:
          features: encoded features by name.
          training: whether units are dropped, and batches normalised by themselves.
        """
        vectors = self.deep(features)
        flat = tf.reshape(vectors, [-1, vectors.shape[1] * vectors.shape[2]])
        deep = self.logits(self.tower(flat, training=training))
        return added([self.wide(features), self.pairs(vectors), deep])


@gin.configurable(denylist=["config"])
def deep_fm(
    schema: Any,
    config: Any = ...,
    num_outputs: int | None = None,
    *,
    embedding_dim: int = 16,
    hidden: Sequence[int] = (128, 64),
    activation: Activation = "relu",
    dropout: float = 0.0,
) -> keras.Model:
    """Makes a factorization machine and dense layers on the same vectors.

    DeepFM (Guo et al. 2017, arXiv:1703.04247). Each field i has a vector v_i: a row of
    its table, a bag's combined rows, a number times a vector of its own. Then

        logits = (x w + b) + sum_{i<j} <v_i, v_j> + dnn([v_1, ..., v_n])

    Args:
      schema: an `inputs.Schema`; the input_fn has the same. All numbers have a vector,
        and all others but those with `embedding=None`; x are those with `wide=True`.
      config: see `dnn`.
      num_outputs: see `dnn`. Several weigh the vectors' dimensions each by numbers of
        its own in the products, which begin at 1.
      embedding_dim: size of all vectors, whatever sizes the schema says.
      hidden: units of each hidden layer of the dnn.
      activation: activation of the hidden layers.
      dropout: part of each hidden layer's units that training drops.
    """
    encoder = encoder_of(schema, config, "deep_fm")
    check_dim("deep_fm", embedding_dim)
    return DeepFm(
        encoder, num_outputs, embedding_dim, Tower(hidden, activation, dropout)
    )
