# SPDX-License-Identifier: Apache-2.0
"""Moves the rows of an embedding to another vocabulary, word by word."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..contract.checks import Check, check_fields, integer, is_int
from ..contract.paths import normal
from ..errors import UserValueError

_PATH = Check(lambda v: bool(v) and isinstance(v, str), "the path of a file", "'words.txt'")
_CHECKS = {
    "new_vocab": _PATH,
    "old_vocab": _PATH,
    "new_vocab_size": integer(1, example=1000),
    "num_oov_buckets": integer(0, example=0),
    "old_vocab_size": Check(lambda v: is_int(v) and (v == -1 or v > 0), "an int > 0 or -1", "-1"),
    "backup_initializer": Check(
        lambda v: callable(keras.initializers.get(v)),
        "a Keras initializer, its name or a function of shape and dtype",
        "'zeros'",
        optional=True,
    ),
    "axis": Check(lambda v: is_int(v) and v in (0, 1), "0 (rows) or 1 (columns)", "0"),
}


@dataclasses.dataclass(frozen=True)
class VocabInfo:
    """Vocabularies of a variable in this model and in the checkpoint, as in tf.estimator.

    A vocabulary is a text file with one word a line; the first line is row 0. Words of both
    files keep their values. Optimizer slots move in the same way; those of new words begin at
    the optimizer's initial value.

    Attributes:
      new_vocab: path of this model's vocabulary.
      new_vocab_size: number of words of it that the model uses, from the first on.
      num_oov_buckets: number of rows after the words, for unknown words.
      old_vocab: path of the checkpoint's vocabulary.
      old_vocab_size: number of words of it that the checkpoint used; -1 for all.
      backup_initializer: initial values of new words and of rows for unknown words: a Keras
        initializer, its name, or a function of shape and dtype. Without a seed it draws by the
        variable's name, so that all processes get the same values. None for zeros.
      axis: axis of the words: 0 for an embedding, 1 for the kernel of an output layer.

    Raises:
      UserError: a field has a wrong value.
    """

    new_vocab: str
    new_vocab_size: int
    num_oov_buckets: int
    old_vocab: str
    old_vocab_size: int = -1
    backup_initializer: Any = None
    axis: int = 0

    def __post_init__(self) -> None:
        check_fields(self, _CHECKS)
        for name in ("new_vocab", "old_vocab"):
            object.__setattr__(self, name, normal(getattr(self, name), name))

    def rows(self, name: str, old_shape: list[int], new_shape: list[int]) -> list[int]:
        """Returns the checkpoint's row of each row of the variable; -1 for new rows.

        Args:
          name: name of the variable, for errors.
          old_shape: its shape in the checkpoint.
          new_shape: its shape in this model.

        Raises:
          UserValueError: a file cannot be read, has a word twice or too few words; a shape does
            not fit; or the vocabularies have no word in common.
        """
        new = _words(self.new_vocab, self.new_vocab_size, "new_vocab_size")
        size = None if self.old_vocab_size == -1 else self.old_vocab_size
        old = {w: i for i, w in enumerate(_words(self.old_vocab, size, "old_vocab_size"))}
        axis, num_new = self.axis, len(new) + self.num_oov_buckets
        rest_fits = (
            old_shape[:axis] + old_shape[axis + 1 :] == new_shape[:axis] + new_shape[axis + 1 :]
        )
        if not rest_fits or old_shape[axis] < len(old) or new_shape[axis] != num_new:
            raise UserValueError(
                f"VocabInfo of {name}: the model has shape {new_shape} and the checkpoint "
                f"{old_shape}: expected on axis {axis} the {num_new} of new_vocab_size + "
                f"num_oov_buckets, and at least the {len(old)} words of {self.old_vocab}, and "
                "equal other axes. Set the vocabularies of both models, or their sizes."
            )
        rows = [old.get(word, -1) for word in new] + [-1] * self.num_oov_buckets
        if max(rows) < 0:
            raise UserValueError(
                f"VocabInfo of {name}: {self.new_vocab} and {self.old_vocab} have no word in "
                "common: expected the vocabularies of both models."
            )
        return rows

    def moved(self, value: np.ndarray, rows: Sequence[int], backup: np.ndarray) -> np.ndarray:
        """Returns the value in this model.

        Args:
          value: value in the checkpoint.
          rows: result of `rows`.
          backup: values of new rows, of this model's shape.
        """
        result = np.array(np.moveaxis(backup, self.axis, 0))
        known = np.array(rows) >= 0
        result[known] = np.moveaxis(value, self.axis, 0)[np.array(rows)[known]]
        return np.ascontiguousarray(np.moveaxis(result, 0, self.axis))

    def backup(self, name: str, shape: Sequence[int], dtype: tf.DType) -> np.ndarray:
        """Returns initial values of the whole variable; its name is the seed.

        Raises:
          UserValueError: the initializer returned another shape.
        """
        initializer = _seeded(keras.initializers.get(self.backup_initializer or "zeros"), name)
        values = np.asarray(initializer(tuple(shape), dtype=dtype.name), dtype.as_numpy_dtype)
        if list(values.shape) != list(shape):
            raise UserValueError(
                f"VocabInfo.backup_initializer returned {list(values.shape)} for {name}: expected "
                f"its shape {list(shape)}."
            )
        return values


def _seeded(initializer: Any, name: str) -> Callable[..., Any]:
    config = getattr(initializer, "get_config", dict)()
    if "seed" in config and config["seed"] is None:
        seed = zlib.crc32(name.encode()) & 0x7FFFFFFF
        return type(initializer).from_config({**config, "seed": seed})
    return initializer


def _words(path: str, size: int | None, field: str) -> list[bytes]:
    """Returns the first words of a file."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            words = file.read().replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n")
    except tf.errors.OpError as error:
        raise UserValueError(
            f"VocabInfo: {path} cannot be read ({error.message}): expected a file with one word a "
            "line."
        ) from error
    if size is not None and len(words) < size:
        raise UserValueError(
            f"VocabInfo.{field} is {size}, and {path} has {len(words)} words: expected at most "
            f"that. Set {field}={len(words)}."
        )
    line_of: dict[bytes, int] = {}
    for line, word in enumerate(words[:size], 1):
        if line_of.setdefault(word, line) != line:
            raise UserValueError(
                f"VocabInfo: {path} has {word.decode(errors='replace')!r} on lines "
                f"{line_of[word]} and {line}: expected each word once."
            )
    return list(line_of)
