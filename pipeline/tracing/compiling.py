"""Compiles functions for one object, so that TensorFlow counts their traces apart."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


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
