# SPDX-License-Identifier: Apache-2.0
"""Clips gradients: on several replicas the gradient of all of them, in the update of the step.

A program clips in its model_fn, where each replica has its own gradient. There the clip is made
and recorded; the step repeats it on the common gradient.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from . import trace as traces


def _repeated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of a gradient that is repeated on the gradient of all replicas."""

    @functools.wraps(function)
    def clip(t: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(t, *args, **kwargs)
        if not any(tf.is_tensor(each) for each in (*args, *kwargs.values())):
            _record([t], [result], lambda gradients: [function(gradients[0], *args, **kwargs)])
        return result

    return clip


clip_by_norm = _repeated(tf1.clip_by_norm)
clip_by_value = _repeated(tf1.clip_by_value)


def clip_by_global_norm(
    t_list: Any, clip_norm: Any, use_norm: Any = None, name: Any = None
) -> tuple[Any, Any]:
    """Replaces `tf.clip_by_global_norm`."""
    gradients = list(t_list)
    clipped, norm = tf1.clip_by_global_norm(gradients, clip_norm, use_norm, name)
    if not tf.is_tensor(clip_norm):
        _record(gradients, clipped, lambda values: tf1.clip_by_global_norm(values, clip_norm)[0])
    return clipped, norm


def _record(before: Sequence[Any], after: Sequence[Any], function: Callable[..., Any]) -> None:
    """Records that `function` made the gradients `after` of those before, on several replicas."""
    trace = traces.current()
    context = tf.distribute.get_replica_context()
    if trace is None or context is None or context.num_replicas_in_sync == 1:
        return
    present = [(b, a) for b, a in zip(before, after, strict=True) if b is not None]
    clip = traces.Clip([b for b, _ in present], function)
    for place, (_, each) in enumerate(present):
        trace.clips[id(each)] = (clip, place)
        trace.kept.append(each)
