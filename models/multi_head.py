# SPDX-License-Identifier: Apache-2.0
"""Several heads on one network."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from gin_estimator import errors

from .heads import Head, Scored, Tensors


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiHead(Head):
    """Several heads, whose weighted losses are added up.

    Labels are a dict by the heads' names. So are logits, or they are one tensor, which is cut into
    the heads' sizes in their order. The loss of an example is the sum of head weight * example
    weight * loss over the heads. Metrics are called `accuracy/NAME`, predictions `NAME/logits`,
    signatures `NAME` and `NAME/predict`; `serving_default` is that of the first head.

    Attributes:
      heads: heads, each with another `name`. Their `loss_reduction` is not used.
      head_weights: factors of the heads' losses; None for 1.
    """

    heads: Sequence[Head] = dataclasses.field(kw_only=False)
    head_weights: Sequence[float] | None = dataclasses.field(default=None, kw_only=False)

    def __post_init__(self) -> None:
        names = [getattr(head, "name", None) for head in self.heads]
        if not names or None in names or len(set(names)) < len(names):
            raise errors.SpecError(
                f"MultiHead.heads have the names {names}: expected heads with different names. Set "
                "heads=[BinaryClassHead(name='click'), RegressionHead(name='price')]."
            )

    @property
    def logits_dimension(self) -> int:
        """The sum of the heads' sizes."""
        return sum(head.logits_dimension for head in self.heads)

    def checked_logits(self, logits: Any) -> Tensors:
        """Returns logits by the heads' names; see `Head`."""
        if tf.is_tensor(logits):
            size = self.logits_dimension
            if logits.shape.rank != 2 or logits.shape[-1] != size:
                raise errors.SpecError(
                    f"logits have shape {logits.shape}: MultiHead expects [batch, {size}], or a "
                    "dict by the heads' names."
                )
            parts = tf.split(logits, [head.logits_dimension for head in self.heads], axis=-1)
            logits = {head.name: part for head, part in zip(self.heads, parts, strict=True)}
        by_name = self._by_name("logits", logits)
        return {head.name: head.checked_logits(by_name[head.name]) for head in self.heads}

    def scored(self, features: Any, mode: str, logits: Any, labels: Any) -> Scored:
        """See `Head`."""
        labels = self._by_name("labels", labels)
        sum_or_mean = tf.reduce_sum if self.loss_reduction == "sum" else tf.reduce_mean
        factors = self.head_weights or [1.0] * len(self.heads)
        total, metrics = 0.0, {}
        for head, factor in zip(self.heads, factors, strict=True):
            scored = head.scored(features, mode, logits[head.name], labels[head.name])
            loss = scored.loss if scored.weights is None else scored.loss * scored.weights
            axes = list(range(1, loss.shape.rank))
            total += factor * (sum_or_mean(loss, axes) if axes else loss)
            metrics |= {f"{key}/{head.name}": each for key, each in scored.metrics.items()}
        return Scored(total, None, metrics)

    def predictions(self, logits: Any) -> Tensors:
        """See `Head`."""
        return {
            f"{head.name}/{key}": value
            for head in self.heads
            for key, value in head.predictions(logits[head.name]).items()
        }

    def export_outputs(self, predictions: Mapping[str, tf.Tensor]) -> dict[str, Tensors]:
        """See `Head`."""
        outputs: dict[str, Tensors] = {}
        for head in self.heads:
            prefix = f"{head.name}/"
            of_head = {
                key.removeprefix(prefix): value
                for key, value in predictions.items()
                if key.startswith(prefix)
            }
            for signature, tensors in head.export_outputs(of_head).items():
                is_default = signature == "serving_default"
                outputs[head.name if is_default else prefix + signature] = tensors
        return {"serving_default": outputs[self.heads[0].name], **outputs}

    def _by_name(self, field: str, values: Any) -> Mapping[str, Any]:
        names = [head.name for head in self.heads]
        if not isinstance(values, Mapping) or not set(names) <= values.keys():
            found = sorted(values) if isinstance(values, Mapping) else type(values).__name__
            raise errors.SpecError(
                f"{field} are {found}: expected a dict with the entries {names}."
            )
        return values
