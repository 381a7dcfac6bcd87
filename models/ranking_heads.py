"""Heads of orders: an example is a list of items, a label says how good each is."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from pipeline import SpecError

from . import checks
from .heads import Head, mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RankingHead(Head):
    """Lists of items `[batch, list]`; a label below 0 marks a place without an item.

    Reports `mrr`, the mean over lists of 1 / the place of the first item whose label is
    above 0, and `ndcg_K` for each K of `top_k` with gains 2^label - 1 and discounts
    1 / log2(place + 1). A list without such a label does not count in either.

    Attributes:
      top_k: numbers of first places that `ndcg_K` looks at.
    """

    top_k: Sequence[int] = (5, 10)

    def __post_init__(self) -> None:
        for k in self.top_k:
            if not isinstance(k, int) or k < 1:
                raise SpecError(
                    f"{type(self).__name__}.top_k has {k!r}: write numbers of places, "
                    "such as top_k=(5, 10)."
                )

    @property
    def logits_dimension(self) -> None:
        """See `Head`: any length of list."""
        return None

    def targets(self, labels: Any) -> tf.Tensor:
        """Returns float32 `[batch, list]`, see `Head`."""
        if isinstance(labels, tf.RaggedTensor):
            labels = labels.to_tensor(default_value=tf.constant(-1, labels.dtype))
        labels = checks.labels_of(labels, "train or eval")
        if labels.shape.rank != 2:
            raise SpecError(
                f"{type(self).__name__} got labels of shape {labels.shape} and needs "
                "[batch, list]: how good each item of a list is, below 0 for none."
            )
        return tf.cast(labels, tf.float32)

    def predictions(self, logits: tf.Tensor) -> dict[str, tf.Tensor]:
        """See `Head`: the items' scores, and their order from the best one."""
        order = tf.argsort(logits, axis=-1, direction="DESCENDING", stable=True)
        return {"scores": logits, "order": order}

    def metrics(
        self,
        features: Any,
        targets: tf.Tensor,
        logits: tf.Tensor,
        weights: tf.Tensor | None,
    ) -> dict[str, Any]:
        """See `Head`."""
        last = tf.fill(tf.shape(logits), logits.dtype.min)
        scores = tf.where(targets >= 0, logits, last)
        order = tf.argsort(scores, axis=-1, direction="DESCENDING", stable=True)
        ranked = tf.gather(targets, order, batch_dims=1)
        counts = tf.cast(tf.reduce_any(targets > 0, -1), tf.float32)
        weights = counts if weights is None else counts * weights
        place = tf.cast(tf.range(1, tf.shape(logits)[1] + 1), tf.float32)
        first = tf.reduce_max(tf.where(ranked > 0, 1 / place, 0.0), -1)
        reported = {"mrr": mean(first, weights)}
        best = tf.sort(targets, axis=-1, direction="DESCENDING")
        for k in self.top_k:
            gained = tf.math.divide_no_nan(
                _gain(ranked, place, k), _gain(best, place, k)
            )
            reported[f"ndcg_{k}"] = mean(gained, weights)
        return reported

    def export_outputs(
        self, predictions: Mapping[str, tf.Tensor]
    ) -> dict[str, dict[str, tf.Tensor]]:
        """See `Head`."""
        return {"serving_default": dict(predictions)}


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class PairwiseRankingHead(_RankingHead):
    """Lists in order by pairs: RankNet's loss (Burges et al., 2005).

    A list's loss is the mean of log(1 + exp(low - high)) over its pairs of an item and
    one with a lower label; 0 for a list without such a pair.
    """

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        higher = targets[:, :, None] > targets[:, None, :]
        pairs = tf.cast(higher & (targets[:, None, :] >= 0), tf.float32)
        loss = tf.math.softplus(logits[:, None, :] - logits[:, :, None])
        total = tf.reduce_sum(pairs * loss, [1, 2])
        return tf.math.divide_no_nan(total, tf.reduce_sum(pairs, [1, 2]))


@gin.configurable
@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftmaxRankingHead(_RankingHead):
    """Lists in order as a whole: ListNet's loss of the first place (Cao et al., 2007).

    A list's loss is the cross-entropy of the softmax of its scores against its labels,
    divided by their sum; 0 for a list without a label above 0.
    """

    def losses(self, targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """See `Head`."""
        last = tf.fill(tf.shape(logits), tf.constant(-1e30, logits.dtype))
        log_p = tf.nn.log_softmax(tf.where(targets >= 0, logits, last))
        shares = tf.maximum(targets, 0)
        # A place without an item would be 0 times -1e30.
        each = tf.where(targets > 0, shares * log_p, tf.zeros_like(log_p))
        total = -tf.reduce_sum(each, -1)
        return tf.math.divide_no_nan(total, tf.reduce_sum(shares, -1))


def _gain(ranked: tf.Tensor, place: tf.Tensor, k: int) -> tf.Tensor:
    """Returns the discounted gain of the first `k` places, `[batch]`."""
    gains = tf.pow(2.0, tf.maximum(ranked, 0)) - 1
    discounts = tf.math.log(2.0) / tf.math.log(place + 1)
    counts = tf.cast(place <= k, tf.float32)
    return tf.reduce_sum(gains * discounts * counts, -1)
