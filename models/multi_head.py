"""Several heads over one network: several labels, each with a loss of its own."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from pipeline import SpecError
from pipeline.mistakes.checks import kind_of

from .heads import Head


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiHead(Head):
    """Several heads with names: their losses' weighted sum is minimised.

    Logits and labels are dicts by the heads' names; or logits are one tensor, which is
    cut into the heads' parts in their order. An example's loss is the sum of `head
    weight * example weight * loss` over the heads, and the mean over examples is
    minimised, as tf.estimator's. Metrics are named `accuracy/NAME`, predictions
    `NAME/logits`, signatures `NAME` and `NAME/predict`; `serving_default` is the first
    head's.

    Attributes:
      heads: heads, each with a `name`.
      head_weights: factor of each head's loss; None for 1.
    """

    heads: Sequence[Head] = dataclasses.field(kw_only=False)
    head_weights: Sequence[float] | None = dataclasses.field(
        default=None, kw_only=False
    )

    def __post_init__(self) -> None:
        if not self.heads or not all(isinstance(h, Head) for h in self.heads):
            raise SpecError(
                f"MultiHead.heads is {self.heads!r}: write a list of heads, "
                "heads=[BinaryClassHead(name='click'), RegressionHead(name='price')]."
            )
        names = [head.name for head in self.heads]
        if None in names or len(set(names)) < len(names):
            raise SpecError(
                f"MultiHead.heads have the names {names}: give each one of its own, "
                "BinaryClassHead(name='click')."
            )
        if self.head_weights is not None and len(self.head_weights) != len(names):
            raise SpecError(
                f"MultiHead.head_weights has {len(self.head_weights)} numbers for "
                f"{len(names)} heads: write one for each."
            )
        if self.weight_column is not None:
            raise SpecError(
                f"MultiHead.weight_column is {self.weight_column!r}: give it to the "
                "heads whose examples it weighs."
            )

    @property
    def logits_dimension(self) -> int:
        """The sum of the heads' dimensions."""
        sizes = [head.logits_dimension for head in self.heads]
        if None in sizes:
            raise SpecError(
                "MultiHead got one tensor of logits for heads of lists, whose length "
                "is not known: give a dict of logits by the heads' names."
            )
        return sum(sizes)

    def checked_logits(self, logits: Any) -> dict[str, tf.Tensor]:
        """Returns each head's logits by its name, see `Head`."""
        if tf.is_tensor(logits):
            logits = super().checked_logits(logits)
            sizes = [head.logits_dimension for head in self.heads]
            parts = tf.split(logits, sizes, axis=-1)
            logits = {h.name: p for h, p in zip(self.heads, parts, strict=True)}
        mine = self._by_name("logits", logits)
        return {head.name: head.checked_logits(mine[head.name]) for head in self.heads}

    def targets(self, labels: Any) -> dict[str, Any]:
        """Returns each head's targets by its name, see `Head`."""
        mine = self._by_name("labels", labels)
        return {head.name: head.targets(mine[head.name]) for head in self.heads}

    def losses_of(
        self, features: Any, mode: str, logits: Any, labels: Any
    ) -> tuple[Any, tf.Tensor, None]:
        """Returns parts by head, and the weighted sum of the losses; see `Head`."""
        labels = None if labels is None else self._by_name("labels", labels)
        factors = self.head_weights or [1.0] * len(self.heads)
        parts, total = {}, 0.0
        for head, factor in zip(self.heads, factors, strict=True):
            given = logits[head.name], None if labels is None else labels[head.name]
            targets, loss, weights = head.losses_of(features, mode, *given)
            parts[head.name] = targets, loss, weights
            if loss.shape.rank > 1:
                loss = tf.reduce_mean(loss, tuple(range(1, loss.shape.rank)))
            total += factor * (loss if weights is None else loss * weights)
        return parts, total, None

    def losses(self, targets: Any, logits: Any) -> tf.Tensor:
        """Not called: see `losses_of`."""
        raise NotImplementedError

    def all_metrics(
        self, features: Any, targets: Any, logits: Any, loss: Any, weights: Any
    ) -> dict[str, Any]:
        """Returns all heads' metrics, see `Head`.

        Args:
          features: what model_fn was given.
          targets: what `losses_of` returned first.
          logits: the heads' logits by name.
          loss: not used: each head's own is in `targets`.
          weights: not used, as `loss`.
        """
        reported = {}
        for head in self.heads:
            own, own_loss, own_weights = targets[head.name]
            given = features, own, logits[head.name], own_loss, own_weights
            for name, each in head.all_metrics(*given).items():
                reported[f"{name}/{head.name}"] = each
        return reported

    def metrics(
        self, features: Any, targets: Any, logits: Any, weights: Any
    ) -> dict[str, Any]:
        """Not called: see `all_metrics`."""
        raise NotImplementedError

    def predictions(self, logits: Any) -> dict[str, tf.Tensor]:
        """See `Head`."""
        return {
            f"{head.name}/{key}": value
            for head in self.heads
            for key, value in head.predictions(logits[head.name]).items()
        }

    def export_outputs(
        self, predictions: Mapping[str, tf.Tensor]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """See `Head`."""
        outputs = {}
        for head in self.heads:
            start = f"{head.name}/"
            own = {
                name.removeprefix(start): value
                for name, value in predictions.items()
                if name.startswith(start)
            }
            for name, values in head.export_outputs(own).items():
                if name == "serving_default":
                    outputs.setdefault(name, values)
                    outputs[head.name] = values
                else:
                    outputs[start + name] = values
        return outputs

    def _by_name(self, field: str, values: Any) -> Mapping[str, Any]:
        names = [head.name for head in self.heads]
        if not isinstance(values, Mapping) or not set(names) <= set(values):
            held = sorted(values) if isinstance(values, Mapping) else kind_of(values)
            raise SpecError(
                f"MultiHead has the heads {names} and {field} hold {held}: give a dict "
                f"of {field} by the heads' names."
            )
        return values
