"""Finds a loss that is a sum over the batch, whose gradient grows with the batch."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..contract import calling
from ..contract.spec import ModeKeys
from ..data.batch import as_pair
from ..data.source import InputContext, Source
from ..estimator.estimator import Estimator

# The loss of a doubled batch, divided by that of the batch: 2 for a sum, 1 for a mean. Dropout
# changes both.
_LEAST, _MOST = 1.5, 2.5


def summed_loss(estimator: Estimator, input_fn: Callable[..., Any]) -> str | None:
    """Returns a warning if the loss of a training batch doubles with the batch; or None.

    Nothing is compared on several replicas, or if model_fn takes one batch size only. The
    Estimator has built its modules, whose values may change.
    """
    state, params = estimator.state, estimator.params
    if state.replicas.total > 1:
        return None
    source = Source(input_fn, ModeKeys.TRAIN, estimator.config, params)
    batch = as_pair(next(iter(source.dataset(InputContext()).take(1))))
    model_fn = estimator.model.in_mode(ModeKeys.TRAIN)
    try:
        results = [
            model_fn(*tf.nest.map_structure(change, batch), tf.zeros([], tf.int64)).loss
            for change in (lambda leaf: leaf, _twice)
        ]
    except Exception:  # It takes one batch size only, or sparse tensors.
        return None
    if tf.convert_to_tensor(results[0]).shape.rank:
        return None
    loss, doubled = map(float, results)
    if not _LEAST < doubled / (loss or 1.0) < _MOST:
        return None
    return (
        f"model_fn {calling.name_of(estimator.model_fn)} returns a loss of {loss:.4g} for a "
        f"batch, and {doubled:.4g} for twice that batch: expected a mean over the batch, or "
        "a loss for each example. Use tf.reduce_mean, or reduction=None in a Keras loss."
    )


def _twice(leaf: Any) -> Any:
    return leaf if leaf is None or leaf.shape.rank == 0 else tf.concat([leaf, leaf], axis=0)
