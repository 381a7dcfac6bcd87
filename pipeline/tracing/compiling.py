"""Compiles functions for one object, so that TensorFlow counts their traces apart.

It has the clock that compiled functions read, too.
"""

import contextlib
import contextvars
import functools
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_for_xla = contextvars.ContextVar("for_xla", default=False)


def compiled(fn: Callable[..., Any], **options: Any) -> Any:
    """Returns `tf.function(fn)` whose traces are counted for this object alone.

    TensorFlow counts traces by a function's code, and so it counts a method's traces of
    all objects together: ten objects, each traced once, look like one that is traced
    again and again, and TensorFlow warns. A partial has no code.

    Args:
      fn: bound method or closure.
      **options: options of `tf.function`; Autograph is always off.
    """
    return tf.function(functools.partial(fn), autograph=False, **options)


def traced_once(fn: Callable[..., Any], *specs: Any) -> tuple[Any, tf.Graph]:
    """Returns what `fn` returns in a trace, symbolic, and the graph of the trace.

    A `tf.function` whose first trace makes variables is traced again at once, to be
    run without making them. Who only looks at the trace leaves before that.

    Args:
      fn: function of tensors.
      *specs: type specs of its arguments.
    """
    found: list[tuple[Any, tf.Graph]] = []

    def trace(*tensors: Any) -> None:
        found.append((fn(*tensors), tf.compat.v1.get_default_graph()))
        raise _SeenError

    with contextlib.suppress(_SeenError):
        compiled(trace).get_concrete_function(*specs)
    return found[0]


class _SeenError(Exception):
    """Ends a trace of which everything was seen."""


def told_of_xla(fn: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function in whose trace `is_for_xla` is true.

    Args:
      fn: function that XLA is to compile.
    """

    def told() -> Any:
        token = _for_xla.set(True)
        try:
            return fn()
        finally:
            _for_xla.reset(token)

    return told


def is_for_xla() -> bool:
    """Whether a step is traced for XLA, which drops assertions without a word."""
    return _for_xla.get()


def seconds_now() -> tf.Tensor:
    """Returns the time, a float64 scalar that is read when its operation runs.

    `enable_op_determinism` forbids TensorFlow's own clock; Python's is slower.
    """
    if not _is_deterministic():
        return tf.timestamp()
    seconds = tf.numpy_function(time.time, [], tf.float64)
    seconds.set_shape([])
    return seconds


def _is_deterministic() -> bool:
    # No public function tells.
    with tf.init_scope():
        try:
            tf.timestamp()
        except tf.errors.FailedPreconditionError:
            return True
    return False
