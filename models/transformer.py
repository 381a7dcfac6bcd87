# SPDX-License-Identifier: Apache-2.0
"""A transformer that predicts the next token."""

from typing import Any

import gin
import keras
import tensorflow as tf

from gin_estimator import errors


@gin.configurable
def transformer_lm(
    vocab_size: int = 256,
    context: int = 128,
    width: int = 128,
    depth: int = 2,
    heads: int = 4,
    dropout: float = 0.0,
) -> keras.Model:
    """Returns a transformer decoder with learned positions, normalized before each part.

    Vaswani et al. 2017, arXiv:1706.03762. It takes tokens `[batch, length]` and returns logits
    `[batch, length, vocab_size]`, each from this token and those before it.

    Args:
      vocab_size: number of tokens; 256 for bytes.
      context: number of tokens of the longest input.
      width: size of a token's vector, a multiple of `heads`.
      depth: number of blocks.
      heads: number of attention heads.
      dropout: part of each block's outputs that is dropped in training.

    Raises:
      UserValueError: `width` is not a multiple of `heads`.
    """
    if width % heads:
        raise errors.UserValueError(
            f"transformer_lm.width is {width}: expected a multiple of heads, {heads}. Set width="
            f"{heads * -(-width // heads)}."
        )
    return TransformerLm(vocab_size, context, width, depth, heads, dropout)


class TransformerLm(keras.Model):
    """See `transformer_lm`.

    Attributes:
      context: number of tokens of the longest input.
    """

    def __init__(
        self, vocab_size: int, context: int, width: int, depth: int, heads: int, dropout: float
    ) -> None:
        super().__init__(name="transformer_lm")
        self.context = context
        self.tokens = keras.layers.Embedding(vocab_size, width, name="tokens")
        self.positions = keras.layers.Embedding(context, width, name="positions")
        self.blocks = [Block(width, heads, dropout, name=f"block_{i}") for i in range(depth)]
        self.last = keras.layers.LayerNormalization(name="last")
        self.logits = keras.layers.Dense(vocab_size, name="logits")

    def call(self, tokens: Any, training: bool | None = None) -> tf.Tensor:
        """Returns logits, float32 `[batch, length, vocab_size]`.

        Args:
          tokens: integers `[batch, length]`.
          training: whether to drop outputs.

        Raises:
          UserValueError: there are more than `context` tokens.
        """
        length = tokens.shape[1]
        if length is not None and length > self.context:
            raise errors.UserValueError(
                f"transformer_lm.context is {self.context} and tokens have shape {tokens.shape}: "
                f"expected a context of {length} or more. Set transformer_lm.context={length}."
            )
        places = tf.range(tf.shape(tokens)[1] if length is None else length)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x, training=training)
        return tf.cast(self.logits(self.last(x)), tf.float32)


class Block(keras.layers.Layer):
    """Causal self-attention and two dense layers, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float, name: str) -> None:
        super().__init__(name=name)
        layers = keras.layers
        self.before_attention = layers.LayerNormalization(name="before_attention")
        self.attention = layers.MultiHeadAttention(heads, width // heads, name="attention")
        self.before_dense = layers.LayerNormalization(name="before_dense")
        self.wide = layers.Dense(4 * width, "gelu", name="wide")
        self.narrow = layers.Dense(width, name="narrow")
        self.dropout = layers.Dropout(dropout, name="dropout")

    def call(self, x: Any, training: bool | None = None) -> Any:
        """Returns `x`, `[batch, length, width]`, with both parts added."""
        normal = self.before_attention(x)
        added = self.attention(normal, normal, use_causal_mask=True, training=training)
        x += self.dropout(added, training=training)
        added = self.narrow(self.wide(self.before_dense(x)))
        return x + self.dropout(added, training=training)
