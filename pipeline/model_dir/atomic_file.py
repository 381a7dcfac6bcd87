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
# Damaged files that could not be set aside. They are read again and again: one warning
# for each is enough.
_named: set[str] = set()


def write(path: str, text: str, *, writer: str = "") -> None:
    """Replaces a file: its readers get all of the old text or all of the new.

    One process at a time writes it. Where several may, each gives a name of its own as
    `writer`, and the one that comes last counts.
    """
    temporary = f"{path}{writer and '.'}{writer}.tmp"
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.gfile.GFile(temporary, "w") as file:
        file.write(text)
    tf.io.gfile.rename(temporary, path, overwrite=True)


def read(path: str) -> str | None:
    """Returns the text of a file; None where there is no file."""
    try:
        with tf.io.gfile.GFile(path) as file:
            return file.read()
    except tf.errors.NotFoundError:
        return None


def read_json(path: str, parse: Callable[[Any], T], *, instead: str) -> T | None:
    """Reads a small file of JSON; None where there is no file, or a damaged one.

    A damaged file is named in a warning and moved to `<path>.damaged`, so that it is
    neither read again nor lost.

    Args:
      path: of the file.
      parse: makes the value to return out of the decoded JSON; raises one of the
        errors of bad data (ValueError, TypeError, KeyError, ...) where it cannot.
      instead: consequence of the damage, as the warning says it: "the next evaluation
        is the best so far".

    Returns:
      The value that `parse` made, or None.
    """
    try:
        text = read(path)
        return None if text is None else parse(json.loads(text))
    except _DAMAGED as error:
        aside = f"{path}{DAMAGED}"
        try:
            tf.io.gfile.rename(path, aside, overwrite=True)
        except tf.errors.OpError:  # The disk is read-only, say.
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
    """Deletes a file, where it is there."""
    with contextlib.suppress(tf.errors.NotFoundError):
        tf.io.gfile.remove(path)
