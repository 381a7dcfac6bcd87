"""Looks at Keras' embeddings for what costs much, or goes wrong, without a word."""

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from pipeline.contract.train_op import SpecError

# Bytes of a table from which on reading all of it costs more than a small step.
_LARGE = 10_000_000
# The number from which on a dtype knows not every whole number.
_EXACT = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**24}


def remarks(parts: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yields a warning about each large table that a step reads as a whole.

    Args:
      parts: layers, each with its name prefix, and other parts of modules.

    Raises:
      SpecError: a model casts ids to floats that do not tell them apart.
    """
    for prefix, layer in parts:
        name = prefix.rstrip("/")
        if isinstance(layer, keras.Sequential) and layer.built and layer.layers:
            _check_keeps_ids(name, layer)
        if not isinstance(layer, keras.layers.Embedding) or not layer.built:
            continue
        rows, dims = layer.input_dim, layer.output_dim
        size = rows * dims * tf.as_dtype(layer.variable_dtype).size
        if size >= _LARGE:
            yield (
                f"{name} is a keras.layers.Embedding of {rows:,} x {dims}, which reads "
                f"its whole table, {size // 10**6:,} MB, at each step: write "
                f"models.Embedding({rows}, {dims}), which reads the batch's rows "
                "alone, and goes on from the same checkpoints."
            )


def _check_keeps_ids(name: str, model: keras.Sequential) -> None:
    """Checks that ids come to a Keras embedding as they were.

    A Sequential without `keras.Input` casts what it is given to the compute dtype of
    its first layer, to float16 for one.
    """
    first = model.layers[0]
    if not isinstance(first, keras.layers.Embedding):
        return
    for given in getattr(model, "inputs", None) or ():
        most = _EXACT.get(keras.backend.standardize_dtype(given.dtype))
        if most is not None and first.input_dim > most:
            raise SpecError(
                f"{name} is a keras.Sequential that casts ids to {given.dtype}, which "
                f"knows whole numbers to {most:,} alone, and its first layer is a "
                f"keras.layers.Embedding of {first.input_dim:,}: ids would become "
                "others. Begin it with keras.Input([...], dtype='int64')."
            )
