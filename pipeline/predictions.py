"""Predictions: one step at a time, as they are asked for, then example by example."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline import user_errors
from pipeline.hooks import Hook, Run
from pipeline.input_fn import Feed, opened
from pipeline.spec import ModeKeys


class OnOwnWeights:
    """The prediction step on the weights that a prediction began with.

    It computes with modules that others may load or train meanwhile. Who is about to
    tells it, and it keeps a copy, which goes into modules of its own once it is asked
    for more; of a prediction that was dropped nobody asks, and nothing is kept.
    """

    def __init__(
        self,
        compiled: Callable[[Any], Any],
        copied: Callable[[], Any],
        elsewhere: Callable[[Any], Callable[[Any], Any]],
    ) -> None:
        """
        Args:
          compiled: the step, on modules that it shares with others.
          copied: makes a copy of their values.
          elsewhere: the step, on modules of its own, of a copy.
        """
        self._compiled = compiled
        self._copied = copied
        self._elsewhere = elsewhere
        self._kept: Any = None
        # Who predicts and who is about to change the modules may be two threads.
        self._lock = threading.Lock()

    def __call__(self, features: Any) -> Any:
        """Predictions by local replica, of features by local replica."""
        with self._lock:
            if self._kept is not None:
                self._compiled = self._elsewhere(self._kept)
                self._kept = None
            return self._compiled(features)

    def keep(self) -> None:
        """Copies the weights, which are about to change."""
        with self._lock:
            self._kept = self._copied()


def predict(compiled: Callable[[Any], Any], feed: Feed) -> Iterator[Any]:
    """Runs the prediction step over the input, batch by batch, as they are asked for.

    Args:
      compiled: predictions by local replica, of features by local replica.
      feed: the input.

    Yields:
      One replica's batch of predictions, a nest of arrays, in the input's order.
    """
    with opened(feed) as box:
        while True:
            with user_errors.running(lambda: f"mode {ModeKeys.PREDICT!r}"):
                more, take = feed.plan.try_take(box[0])
                if not bool(more):
                    return
                features, shares = feed.plan.to_predict(take())
                outputs = compiled(features)
            for share, output in zip(shares, outputs, strict=True):
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
    """What a caller of `predict` gets, between the `begin` and `end` of its hooks.

    Args:
      batches: of predictions.
      run: for the hooks.
      hooks: watch the predictions.
      keys: of the predictions that are wanted; None for all.
      one_by_one: yields examples, else batches.

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
    """The predictions of these keys.

    Args:
      batch: nest of arrays; a dict where there are keys.
      keys: None for all.

    Raises:
      ValueError: keys that there are not.
    """
    if keys is None:
        return batch
    if not isinstance(keys, (str, list, tuple, set)):
        raise ValueError(f"predict_keys is {keys!r}: write predict_keys=['logits'].")
    keys = [keys] if isinstance(keys, str) else list(keys)
    if not isinstance(batch, Mapping):
        raise ValueError(f"predict_keys {keys} given, but predictions are no dict.")
    absent = [key for key in keys if key not in batch]
    if absent:
        raise ValueError(
            f"predict_keys {absent} are not among the predictions {sorted(batch)}."
        )
    return {key: batch[key] for key in keys}


def examples(batch: Any) -> Iterator[Any]:
    """One nest an example, of a nest of arrays that share their first dimension.

    Raises:
      ValueError: they do not.
    """
    lengths = {np.shape(a)[0] if np.ndim(a) else None for a in tf.nest.flatten(batch)}
    if len(lengths) != 1 or None in lengths:
        shapes = tf.nest.map_structure(np.shape, batch)
        raise ValueError(
            f"predictions of shapes {shapes} do not share a batch dimension: give them "
            "one, or call predict(..., yield_single_examples=False)."
        )
    (length,) = lengths
    for index in range(length):
        yield tf.nest.map_structure(lambda array, i=index: array[i], batch)
