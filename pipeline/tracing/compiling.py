"""Compiles functions for one object, so that TensorFlow counts their traces apart."""

import contextvars
import functools
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
