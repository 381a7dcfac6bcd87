"""The model_fn of the networks of tables."""

from typing import Any

import gin
import keras

from pipeline import EstimatorSpec, ModeKeys, SpecError, TrainOp

from ..heads import Head
from .network import TableNetwork


@gin.configurable
def table_model(
    features: Any,
    labels: Any,
    mode: str,
    network: keras.Model,
    optimizer: keras.optimizers.Optimizer | None = None,
    wide_optimizer: keras.optimizers.Optimizer | None = None,
    *,
    head: Head,
    clip_norm: float | None = None,
    lazy: bool = False,
) -> EstimatorSpec:
    """Trains a network of tables for a head: a model_fn.

    A classifier, a regressor, a ranker or several at once, as the head says: its loss,
    weights, metrics, predictions and signatures.

    Args:
      features: encoded features by name; a head's columns may be among them.
      labels: what the head takes.
      mode: one of `ModeKeys`.
      network: `linear`, `dnn` or another; it gets as many logits as the head needs.
      optimizer: updates the network's trainable variables; may be None outside TRAIN.
      wide_optimizer: updates those of the network's wide part, and `optimizer` the
        others; None for one optimizer.
      head: one of the heads of `models`.
      clip_norm: global norm to which each optimizer's gradient is clipped; None clips
        nothing.
      lazy: whether `optimizer` moves the rows of a batch alone where its formula would
        move whole tables, see `TrainOp`.

    Raises:
      SpecError: features, labels and the network do not fit each other, or there is
        nothing for an optimizer to update.
    """
    if isinstance(network, TableNetwork):
        network.size_by(head)
    logits = network(features, training=mode == ModeKeys.TRAIN)
    train_op = None
    if mode == ModeKeys.TRAIN:
        if optimizer is None:
            raise SpecError(
                "table_model trains and has no optimizer: write modules="
                "{'network': ..., 'optimizer': ...}."
            )
        trained = _by_optimizer(network, optimizer, wide_optimizer)
        train_op = [
            TrainOp(
                each, variables, clip_norm=clip_norm, lazy=lazy and each is optimizer
            )
            for each, variables in trained
        ]
    return head.create_estimator_spec(
        features,
        mode,
        logits,
        labels,
        train_op=train_op,
        regularization_losses=network.losses,
    )


def _by_optimizer(
    network: keras.Model, optimizer: Any, wide_optimizer: Any
) -> list[tuple[Any, list[Any]]]:
    """Returns each optimizer with its variables."""
    if wide_optimizer is None:
        return [(optimizer, network.trainable_variables)]
    wide = getattr(network, "wide_variables", [])
    deep = getattr(network, "deep_variables", [])
    if not wide or not deep:
        part, which = ("wide", "wide_optimizer") if not wide else ("deep", "optimizer")
        raise SpecError(
            f"{network.name} has no {part} part for the module {which!r}: write "
            "modules={'network': ..., 'optimizer': ...}, without a wide_optimizer."
        )
    return [(optimizer, deep), (wide_optimizer, wide)]
