"""Small files that are there as a whole or not at all, on any file system."""

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf
from absl import logging

DAMAGED = ".damaged"

T = TypeVar("T")

# What reading and parsing damaged JSON raises; text that is no UTF-8 is a ValueError.
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
# Those that could not be set aside, and are warned of once.
_named: set[str] = set()


def write(path: str, text: str) -> None:
    """Replaces a file: who reads it meanwhile gets all of the old or of the new.

    Args:
      path: written by one process at a time; its directory is made.
      text: what it is to hold.
    """
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.gfile.GFile(f"{path}.tmp", "w") as file:
        file.write(text)
    tf.io.gfile.rename(f"{path}.tmp", path, overwrite=True)


def read(path: str) -> str | None:
    """What a file holds; None where there is none."""
    try:
        with tf.io.gfile.GFile(path) as file:
            return file.read()
    except tf.errors.NotFoundError:
        return None


def read_json(path: str, parse: Callable[[Any], T], *, instead: str) -> T | None:
    """What a small file of JSON holds; None where there is none.

    A damaged one is named in a warning and set aside, `<path>.damaged`, so that it is
    neither read again nor lost.

    Args:
      path: of the file.
      parse: of what the JSON says, what is returned; raises where it is no such thing.
      instead: what follows, for the warning: "the next evaluation is the best so far".

    Returns:
      What `parse` returned, or None.
    """
    try:
        text = read(path)
        return None if text is None else parse(json.loads(text))
    except _DAMAGED as error:
        aside = f"{path}{DAMAGED}"
        try:
            tf.io.gfile.rename(path, aside, overwrite=True)
        except tf.errors.OpError:  # As on a disk that is read-only.
            aside = path
        if path not in _named:
            logging.warning(
                "%s is damaged (%s: %s): %s. What is left of it is at %s.",
                path,
                type(error).__name__,
                error,
                instead,
                aside,
            )
        if aside == path:
            _named.add(path)
        return None


def remove(path: str) -> None:
    """Deletes a file, if it is there."""
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(path)
