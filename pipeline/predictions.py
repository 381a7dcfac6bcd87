"""Predictions: one step at a time, as they are asked for, then example by example."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline import user_errors
from pipeline.hooks import Hook, Run
from pipeline.input_fn import Feed, opened
from pipeline.model_fn import ModeKeys


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
