"""Yields predictions as they are asked for: batch by batch, or example by example.

A caller may stop asking at any time, and may train in between: a prediction goes on
with the weights that it began with.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contract.hooks import Hook, Run
from pipeline.contract.spec import ModeKeys
from pipeline.feed.feed import ReadableFeed
from pipeline.mistakes import user_errors
from pipeline.process.refusals import RefusedValueError


class OnOwnWeights:
    """The prediction step on the weights that a prediction began with.

    It computes with modules that others may load or train meanwhile. They call `keep`
    before they do, which copies the weights. The next batch puts the copy into modules
    of the prediction's own; no modules are made for a prediction that was dropped.
    """

    def __init__(
        self,
        compiled: Callable[[Any], Any],
        copied: Callable[[], Any],
        elsewhere: Callable[[Any], Callable[[Any], Any]],
    ) -> None:
        """Takes the step, and the ways to copy weights and to compute on the copy.

        Args:
          compiled: the step, on modules that it shares with others.
          copied: returns a copy of the modules' values.
          elsewhere: takes such a copy, and returns the step on modules of its own.
        """
        self._compiled = compiled
        self._copied = copied
        self._elsewhere = elsewhere
        self._kept: Any = None
        # One thread may predict while another is about to change the modules.
        self._lock = threading.Lock()

    def __call__(self, features: Any) -> Any:
        """Predicts.

        Args:
          features: nests of tensors, by local replica.

        Returns:
          Nests of predictions, by local replica.
        """
        with self._lock:
            # Once: from then on nobody else changes the modules of this prediction.
            if self._kept is not None:
                self._compiled = self._elsewhere(self._kept)
                self._kept = None
            return self._compiled(features)

    def keep(self) -> None:
        """Copies the weights; called before they change."""
        with self._lock:
            self._kept = self._copied()


def predict(compiled: Callable[[Any], Any], feed: ReadableFeed) -> Iterator[Any]:
    """Runs the prediction step over the input, batch by batch, as they are asked for.

    Args:
      compiled: takes features by local replica, and returns predictions by local
        replica.
      feed: the input.

    Yields:
      One replica's batch of predictions, a nest of arrays, in the input's order.
    """
    iterator = feed.iterator()
    while True:
        with user_errors.running(lambda: f"mode {ModeKeys.PREDICT!r}"):
            more, take = feed.plan.try_take(iterator)
            if not bool(more):
                return
            features, shares = feed.plan.to_predict(take())
            outputs = compiled(features)
        for share, output in zip(shares, outputs, strict=True):
            # A replica that was left without a batch has predicted a copy.
            if share is None or float(share):
                yield tf.nest.map_structure(np.asarray, output)


def watched(
    batches: Iterable[Any],
    *,
    run: Run,
    hooks: Sequence[Hook],
    keys: Sequence[str] | str | None,
    one_by_one: bool,
) -> Iterator[Any]:
    """Yields predictions to the caller of `predict`, between its hooks' begin and end.

    Args:
      batches: batches of predictions.
      run: the run that hooks are given.
      hooks: hooks that watch the prediction.
      keys: names of the predictions that are wanted; None for all.
      one_by_one: whether to yield examples rather than batches.

    Yields:
      Nests of arrays.
    """
    for hook in hooks:
        user_errors.call_method("hook", hook, "begin", run)
    for batch in batches:
        chosen = choose(batch, keys)
        yield from examples(chosen) if one_by_one else [chosen]
    for hook in hooks:
        user_errors.call_method("hook", hook, "end", run)


def choose(batch: Any, keys: Sequence[str] | str | None) -> Any:
    """Returns the predictions of some keys.

    Args:
      batch: nest of arrays; a dict where there are keys.
      keys: names of predictions; None for all.

    Raises:
      ValueError: the keys are no names, or no predictions have them.
    """
    if keys is None:
        return batch
    if not isinstance(keys, (str, list, tuple, set)):
        raise RefusedValueError(
            f"predict_keys is {keys!r}: write predict_keys=['logits']."
        )
    keys = [keys] if isinstance(keys, str) else list(keys)
    if not isinstance(batch, Mapping):
        raise RefusedValueError(
            f"predict_keys is {keys}, and predictions are no dict: leave predict_keys "
            "out, or return predictions={'name': tensor} from model_fn."
        )
    absent = [key for key in keys if key not in batch]
    if absent:
        raise RefusedValueError(
            f"predict_keys {absent} are not among the predictions: write some of "
            f"{sorted(batch)}."
        )
    return {key: batch[key] for key in keys}


def examples(batch: Any) -> Iterator[Any]:
    """Yields one nest for each example.

    Args:
      batch: nest of arrays that share their first dimension.

    Raises:
      ValueError: the arrays do not share their first dimension.
    """
    lengths = {np.shape(a)[0] if np.ndim(a) else None for a in tf.nest.flatten(batch)}
    if len(lengths) != 1 or None in lengths:
        shapes = tf.nest.map_structure(np.shape, batch)
        raise RefusedValueError(
            f"predictions of shapes {shapes} do not share a batch dimension: give them "
            "one, or call predict(..., yield_single_examples=False)."
        )
    (length,) = lengths
    for index in range(length):
        yield tf.nest.map_structure(lambda array, i=index: array[i], batch)
