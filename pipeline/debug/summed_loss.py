# SPDX-License-Identifier: Apache-2.0
"""Finds a loss that is a sum over the batch, whose gradient grows with the batch."""

from collections.abc import Callable
from typing import Any

from ..contract import signatures
from ..contract.spec import ModeKeys
from ..data.batch import as_pair
from ..data.source import InputContext, Source
from ..estimator.estimator import Estimator
from ..train import doubled_batch


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
    losses = doubled_batch.losses_of(estimator.model.in_mode(ModeKeys.TRAIN), batch)
    if losses is None or not doubled_batch.is_sum(losses):
        return None
    return (
        f"model_fn {signatures.name_of(estimator.model_fn)} returns a loss of {losses[0]:.4g} for "
        f"a batch, and {losses[1]:.4g} for twice that batch: expected a mean over the batch, or "
        "a loss for each example. Use tf.reduce_mean, or reduction=None in a Keras loss."
    )
