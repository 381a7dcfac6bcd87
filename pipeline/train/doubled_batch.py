# SPDX-License-Identifier: Apache-2.0
"""Tells a loss that is a sum over the batch from a mean: by twice the batch.

Dropout and random numbers change both losses, so the comparison is rough.
"""

from typing import Any

import tensorflow as tf

from .step import BoundModelFn

# The loss of a doubled batch, divided by that of the batch: 2 for a sum, 1 for a mean.
_LEAST, _MOST = 1.5, 2.5


def losses_of(model_fn: BoundModelFn, batch: tuple[Any, Any]) -> tuple[float, float] | None:
    """Returns the scalar loss of a batch, and that of twice the batch.

    Args:
      model_fn: a model_fn whose variables exist; their values may change.
      batch: features and labels.

    Returns:
      None if the loss is not a scalar, or model_fn takes one batch size only.
    """

    def loss(features: Any, labels: Any) -> tf.Tensor:
        return tf.convert_to_tensor(model_fn(features, labels, tf.zeros([], tf.int64)).loss)

    try:
        once = tf.function(loss, autograph=False)(*batch)
        twice = tf.function(loss, autograph=False)(*tf.nest.map_structure(_twice, batch))
    except Exception:  # Of any kind: model_fn is the user's.
        return None
    return (float(once), float(twice)) if once.shape.rank == 0 else None


def is_sum(losses: tuple[float, float]) -> bool:
    """Returns whether the loss doubles with the batch."""
    loss, doubled = losses
    return _LEAST < doubled / (loss or 1.0) < _MOST


def _twice(leaf: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.concat(0, [leaf, leaf])
    return leaf if leaf is None or leaf.shape.rank == 0 else tf.concat([leaf, leaf], axis=0)
