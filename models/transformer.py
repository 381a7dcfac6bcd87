"""A transformer that continues text, a token after the other."""

from typing import Any

import gin
import keras
import tensorflow as tf

from pipeline import RefusedValueError


class Block(keras.layers.Layer):
    """Attention to what came before, and two dense layers, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float, name: str) -> None:
        """Makes the layers, which are built on the first call.

        Args:
          width: size of a token's vector.
          heads: attention heads, which share the width.
          dropout: part of what each half adds that training drops.
          name: name of the layer.
        """
        super().__init__(name=name)
        layers = keras.layers
        self.before_attention = layers.LayerNormalization(name="before_attention")
        self.attention = layers.MultiHeadAttention(
            heads, width // heads, name="attention"
        )
        self.before_dense = layers.LayerNormalization(name="before_dense")
        self.wide = layers.Dense(4 * width, "gelu", name="wide")
        self.narrow = layers.Dense(width, name="narrow")
        self.dropout = layers.Dropout(dropout)

    def call(self, x: Any, training: bool | None = None) -> Any:
        """Returns vectors `[batch, length, width]`, of as many.

        Args:
          x: vectors of the tokens.
          training: whether parts are dropped.
        """
        given = self.before_attention(x)
        added = self.attention(given, given, use_causal_mask=True, training=training)
        x = x + self.dropout(added, training=training)
        added = self.narrow(self.wide(self.before_dense(x)))
        return x + self.dropout(added, training=training)


class TransformerLm(keras.Model):
    """Gives logits of the token that follows each token, by all that come before.

    Attributes:
      context: tokens that it can look back on.
    """

    def __init__(
        self,
        vocab_size: int,
        context: int,
        width: int,
        depth: int,
        heads: int,
        dropout: float,
    ) -> None:
        """Makes the layers; see `transformer_lm`."""
        super().__init__(name="transformer_lm")
        self.context = context
        self.tokens = keras.layers.Embedding(vocab_size, width, name="tokens")
        self.positions = keras.layers.Embedding(context, width, name="positions")
        self.blocks = [
            Block(width, heads, dropout, name=f"block_{i}") for i in range(depth)
        ]
        self.last = keras.layers.LayerNormalization(name="last")
        self.logits = keras.layers.Dense(vocab_size, name="logits")

    def call(self, tokens: Any, training: bool | None = None) -> tf.Tensor:
        """Returns logits, float32 `[batch, length, vocab_size]`.

        Args:
          tokens: integers `[batch, length]`, of `context` at the most.
          training: whether parts are dropped.

        Raises:
          ValueError: there are more tokens than the context holds.
        """
        length = tokens.shape[1]
        if length is not None and length > self.context:
            raise RefusedValueError(
                f"tokens have shape {tokens.shape}, and transformer_lm.context is "
                f"{self.context}: write transformer_lm.context = {length}, or shorter "
                "windows."
            )
        places = tf.range(tf.shape(tokens)[1] if length is None else length)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x, training=training)
        return tf.cast(self.logits(self.last(x)), tf.float32)


@gin.configurable
def transformer_lm(
    vocab_size: int = 256,
    context: int = 128,
    width: int = 128,
    depth: int = 2,
    heads: int = 4,
    dropout: float = 0.0,
) -> keras.Model:
    """Makes a transformer that looks back: normalised before each part.

    Attention Is All You Need (Vaswani et al. 2017, arXiv:1706.03762), its decoder
    alone; layers are normalised first, as GPT-2's. Positions are learned.

    Args:
      vocab_size: number of tokens; bytes are 256.
      context: tokens that it can look back on, and the longest input.
      width: size of a token's vector.
      depth: number of blocks.
      heads: attention heads, by which the width can be divided.
      dropout: part of what each block adds that training drops.

    Raises:
      ValueError: the width cannot be divided by the heads.
    """
    if width % heads:
        raise RefusedValueError(
            f"transformer_lm.width is {width}, which {heads} heads cannot divide: "
            f"write width = {heads * -(-width // heads)}."
        )
    return TransformerLm(vocab_size, context, width, depth, heads, dropout)
