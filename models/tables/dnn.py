"""A deep network of a schema, alone and beside a wide one."""

from collections.abc import Sequence
from typing import Any

import gin
import keras
import tensorflow as tf

from .deep import DeepInput
from .network import Features, TableNetwork, added, encoder_of, logits_layer
from .tower import Activation, Tower
from .wide import WidePart


class Dnn(TableNetwork):
    """A tower on the deep input, and where wanted a wide part beside it."""

    def __init__(
        self,
        encoder: Any,
        num_outputs: int | None,
        tower: Tower,
        name: str,
        *,
        has_wide: bool = False,
    ) -> None:
        """Describes the network.

        Args:
          encoder: see `TableNetwork`.
          num_outputs: see `TableNetwork`.
          tower: the hidden layers.
          name: name of the network.
          has_wide: whether a wide part stands beside the tower.
        """
        super().__init__(encoder, num_outputs, name)
        self._has_wide = has_wide
        self.tower = tower

    def make(self, fields: Sequence[Any], num_outputs: int) -> None:
        """See `TableNetwork`."""
        if self._has_wide:
            self.wide = WidePart(fields, num_outputs)
            self.wide.build()
        self.deep = DeepInput(fields)
        self.deep.build()
        shape = [None, self.deep.width]
        self.tower.build(shape)
        width = self.tower.compute_output_shape(shape)[-1]
        self.logits = logits_layer(num_outputs, width)

    def call(self, features: Features, training: bool | None = None) -> tf.Tensor:
        """Returns logits, float32 `[batch, num_outputs]`.

        Args:
          features: encoded features by name.
          training: whether units are dropped, and batches normalised by themselves.
        """
        hidden = self.tower(self.deep(features), training=training)
        logits = [self.logits(hidden)]
        if self.wide is not None:
            logits.append(self.wide(features))
        return added(logits)


@gin.configurable(denylist=["config"])
def dnn(
    schema: Any,
    config: Any = ...,
    num_outputs: int | None = None,
    *,
    hidden: Sequence[int] = (128, 64),
    activation: Activation = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> keras.Model:
    """Makes dense layers on the vectors and numbers of a schema.

    With x0 the embeddings, one-hot categories and numbers side by side:

        x1 = activation(x0 W1 + b1), ..., logits = xn W + b

    as tf.estimator's DNNClassifier and DNNRegressor, which train by Adagrad at a rate
    of 0.05. The wide part's settings are not looked at.

    Args:
      schema: an `inputs.Schema`; the input_fn has the same.
      config: the RunConfig, which the driver gives; None: what is counted for the
        schema stays in this process.
      num_outputs: size of the logits' last dimension; None: `table_model` asks its
        head.
      hidden: units of each hidden layer.
      activation: activation of the hidden layers.
      dropout: part of each hidden layer's units that training drops.
      batch_norm: whether each hidden layer's output is normalised.
    """
    encoder = encoder_of(schema, config, "dnn")
    tower = Tower(hidden, activation, dropout, batch_norm)
    return Dnn(encoder, num_outputs, tower, "dnn")


@gin.configurable(denylist=["config"])
def wide_and_deep(
    schema: Any,
    config: Any = ...,
    num_outputs: int | None = None,
    *,
    hidden: Sequence[int] = (128, 64),
    activation: Activation = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
) -> keras.Model:
    """Makes a linear model and a deep one, whose logits are added.

        logits = (x w + b) + dnn(x0)

    Wide & Deep Learning for Recommender Systems (Cheng et al. 2016, arXiv:1606.07792),
    as tf.estimator's DNNLinearCombinedClassifier. x are the features with `wide=True`:
    numbers, one-hot categories, counts of a bag's items (`sparse_combiner='sum'`).
    tf.estimator trains w by FTRL at min(0.005, 1 / sqrt(features)) and the rest by
    Adagrad at 0.001: `table_model` has a `wide_optimizer` for the first.

    Args:
      schema: an `inputs.Schema`; the input_fn has the same.
      config: see `dnn`.
      num_outputs: see `dnn`.
      hidden: units of each hidden layer.
      activation: activation of the hidden layers.
      dropout: part of each hidden layer's units that training drops.
      batch_norm: whether each hidden layer's output is normalised.
    """
    encoder = encoder_of(schema, config, "wide_and_deep")
    tower = Tower(hidden, activation, dropout, batch_norm)
    return Dnn(encoder, num_outputs, tower, "wide_and_deep", has_wide=True)
