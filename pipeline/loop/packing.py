"""Packs the tensors that a loop carries into few vectors, one for each dtype.

Each tensor that a loop carries costs about as much as an operation in each step.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.loop.losses import Totals


class TotalsPacking:
    """Totals as one vector of sums a dtype, and a matrix of the last step's scalars."""

    def __init__(self, example: Totals) -> None:
        """Takes the nest, dtypes and shapes of the totals.

        Args:
          example: totals of zeros, with which the loop begins.
        """
        self._example = example
        self._sums = tf.nest.flatten(_sums_of(example))
        self._dtypes = sorted({x.dtype.name for x in self._sums})

    def zeros(self) -> dict[str, tf.Tensor]:
        """Returns what the loop carries before the first step."""
        return self._packed(self._example)

    def plus(self, carried: dict[str, Any], totals: Totals) -> dict[str, tf.Tensor]:
        """Returns what the loop carries after another step.

        Args:
          carried: vectors that the loop carried before the step.
          totals: totals of the step. Sums are added; scalars take the others' place.
        """
        packed = self._packed(totals)
        sums = {name: carried[name] + packed[name] for name in self._dtypes}
        return {**packed, **sums}

    def unpack(self, carried: dict[str, Any]) -> Totals:
        """Returns the totals that the loop has carried."""
        flat: list[Any] = [None] * len(self._sums)
        for name in self._dtypes:
            places = self._places(name)
            sizes = [self._sums[i].shape.num_elements() for i in places]
            for i, part in zip(places, tf.split(carried[name], sizes), strict=True):
                flat[i] = tf.reshape(part, self._sums[i].shape)
        tree = tf.nest.pack_sequence_as(_sums_of(self._example), flat)
        scalars = dict(self._example.scalars)
        if scalars:
            scalars = dict(zip(scalars, tf.unstack(carried["scalars"]), strict=True))
        return Totals(*tree, scalars)

    def _packed(self, totals: Totals) -> dict[str, tf.Tensor]:
        flat = tf.nest.flatten(_sums_of(totals))
        packed = {n: _joined([flat[i] for i in self._places(n)]) for n in self._dtypes}
        if self._example.scalars:
            values = [totals.scalars[name] for name in self._example.scalars]
            packed["scalars"] = tf.stack(values)
        return packed

    def _places(self, dtype: str) -> list[int]:
        """Returns where the sums of a dtype stand among all sums."""
        return [i for i, x in enumerate(self._sums) if x.dtype.name == dtype]


def packed(tree: Any) -> dict[str, tf.Tensor]:
    """Returns all tensors of a nest, joined into one vector for each dtype."""
    flat = tf.nest.flatten(tree)
    names = sorted({tensor.dtype.name for tensor in flat})
    return {name: _joined([t for t in flat if t.dtype.name == name]) for name in names}


def unpacked(vectors: dict[str, np.ndarray], spec: Any) -> Any:
    """Returns the nest of arrays that `packed` has joined.

    Args:
      vectors: one vector for each dtype, by its name.
      spec: the nest, of type specs with static shapes.
    """
    taken = dict.fromkeys(vectors, 0)
    flat = []
    for leaf in tf.nest.flatten(spec):
        name, size = leaf.dtype.name, leaf.shape.num_elements()
        part = vectors[name][taken[name] : taken[name] + size]
        flat.append(part.reshape(leaf.shape.as_list()))
        taken[name] += size
    return tf.nest.pack_sequence_as(spec, flat)


def _sums_of(totals: Totals) -> Any:
    """Returns the totals without scalars, which are the last step's and no sums."""
    return totals.as_tree()[:-1]


def _joined(tensors: list[tf.Tensor]) -> tf.Tensor:
    # One operation, in place of one for each tensor and another one.
    if all(tensor.shape.rank == 0 for tensor in tensors):
        return tf.stack(tensors)
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
