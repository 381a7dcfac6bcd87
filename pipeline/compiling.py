"""Functions that TensorFlow compiles for one object."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def compiled(fn: Callable[..., Any], **options: Any) -> Any:
    """`tf.function(fn)`, of which TensorFlow counts the traces by itself.

    It counts them by the code of a function, and so those of a method of all objects
    together: ten objects, each traced once, would look like one that is traced again
    and again, with a warning. A partial has no code.

    Args:
      fn: a bound method or a closure.
      **options: of `tf.function`; without Autograph.
    """
    return tf.function(functools.partial(fn), autograph=False, **options)
