"""Moves the rows of a table to a new vocabulary, word by word."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.mistakes.checks import is_int, kind_of
from pipeline.model_dir import paths
from pipeline.process.refusals import RefusedValueError

# Returns the values of rows without a word there, of a shape and dtype.
Backup = Callable[[Sequence[int], str], Any]


@dataclasses.dataclass(frozen=True)
class VocabInfo:
    """The vocabularies of a table, here and in the checkpoint, as in tf.estimator.

    A vocabulary is a text file of one word a line; line 1 is row 0 of the table.

    Attributes:
      new_vocab: path of the vocabulary that this model uses.
      new_vocab_size: words of it that the model uses, the first ones.
      num_oov_buckets: rows after them, for words of no vocabulary. They begin as new
        words do.
      old_vocab: path of the vocabulary of the checkpoint.
      old_vocab_size: words of it that the checkpoint used; -1 for all.
      backup_initializer: values of new words: a Keras initializer or its name, or a
        function of shape and dtype. None begins them at 0. Without a seed of its own, a
        Keras initializer draws by the variable's name, equal in all processes.
      axis: axis of the variable that goes by words: 0 for an embedding, 1 for the
        kernel of an output layer.

    Raises:
      ValueError: a field has a wrong value.
    """

    new_vocab: str
    new_vocab_size: int
    num_oov_buckets: int
    old_vocab: str
    old_vocab_size: int = -1
    backup_initializer: Any = None
    axis: int = 0

    def __post_init__(self) -> None:
        for name in ("new_vocab", "old_vocab"):
            if not getattr(self, name):
                raise RefusedValueError(
                    f"VocabInfo.{name} is {getattr(self, name)!r}: write the path of a "
                    f"file with a word a line, {name}='words.txt'."
                )
            object.__setattr__(self, name, paths.normal(getattr(self, name)))
        least = {"new_vocab_size": 1, "num_oov_buckets": 0, "old_vocab_size": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if name == "old_vocab_size" and value == -1:
                continue
            if not is_int(value) or value < low:
                raise RefusedValueError(
                    f"VocabInfo.{name} is {value!r}: write an int of {low} or more."
                )
        if not is_int(self.axis) or self.axis not in (0, 1):
            raise RefusedValueError(
                f"VocabInfo.axis is {self.axis!r}: write 0 for a row a word, or 1 for "
                "a column a word."
            )

    @property
    def words(self) -> int:
        """Rows that the variable has here."""
        return self.new_vocab_size + self.num_oov_buckets

    def moved(
        self, there: Sequence[int], here: Sequence[int], name: str
    ) -> "tuple[list[int], str]":
        """Returns the row there of each row here, -1 for none, and words for the log.

        Args:
          there: shape of the variable in the checkpoint.
          here: shape of it in this model.
          name: name in this model, for messages.

        Raises:
          ValueError: a vocabulary cannot be read, has a word twice, or has not the size
            that a table or a field says.
        """
        new = _words(self.new_vocab, self.new_vocab_size, "new_vocab_size")
        size = None if self.old_vocab_size == -1 else self.old_vocab_size
        old = _words(self.old_vocab, size, "old_vocab_size")
        self._check_shapes(list(there), list(here), name, len(old))
        place = {word: row for row, word in enumerate(old)}
        rows = [place.get(word, -1) for word in new] + [-1] * self.num_oov_buckets
        known = sum(row >= 0 for row in rows)
        if not known:
            raise RefusedValueError(
                f"VocabInfo of {name}: none of {len(new)} words of {self.new_vocab} is "
                f"among the {len(old)} of {self.old_vocab}: write the files that the "
                "rows go by, or leave the table out by vars_to_warm_start."
            )
        # Rows before the words', as Keras' StringLookup has one, shift them all.
        wordless = there[self.axis] - len(old)
        more = f", rows there without one: {wordless}" if wordless else ""
        return rows, f"{known} of {len(new)} words{more}"

    def _check_shapes(
        self, there: list[int], here: list[int], name: str, num_old: int
    ) -> None:
        axis, others = self.axis, lambda s: s[: self.axis] + s[self.axis + 1 :]
        if len(here) <= axis or here[axis] != self.words:
            raise RefusedValueError(
                f"VocabInfo of {name}: new_vocab_size {self.new_vocab_size} and "
                f"num_oov_buckets {self.num_oov_buckets} make {self.words} words, and "
                f"the variable is {here}, with words on axis {axis}: write sizes that "
                "add up."
            )
        if len(there) != len(here) or others(there) != others(here):
            raise RefusedValueError(
                f"VocabInfo of {name}: {there} in the checkpoint and {here} here "
                f"differ beyond axis {axis}: build it of the checkpoint's width."
            )
        if there[axis] < num_old:
            raise RefusedValueError(
                f"VocabInfo of {name}: {self.old_vocab} has {num_old} words, and the "
                f"checkpoint {there[axis]} on axis {axis}: write the vocabulary that "
                "it was trained with, or old_vocab_size=."
            )

    def remapped(
        self, value: np.ndarray, rows: Sequence[int], backup: np.ndarray
    ) -> np.ndarray:
        """Returns the variable's value here.

        Args:
          value: the checkpoint's value.
          rows: for each row here the one there, or -1.
          backup: values of the shape here, for rows that are new.
        """
        made = np.array(np.moveaxis(backup, self.axis, 0))
        known = [here for here, there in enumerate(rows) if there >= 0]
        taken = np.moveaxis(value, self.axis, 0)
        made[known] = taken[[rows[here] for here in known]].astype(made.dtype)
        return np.ascontiguousarray(np.moveaxis(made, 0, self.axis))

    def backup(self, name: str, shape: Sequence[int], dtype: tf.DType) -> np.ndarray:
        """Returns the values of new words.

        Args:
          name: name of the variable, for the seed.
          shape: of the whole variable.
          dtype: of the variable.

        Raises:
          ValueError: the initializer is none, or gives another shape.
        """
        kind = np.dtype(dtype.as_numpy_dtype)
        if self.backup_initializer is None:
            return np.zeros(shape, kind)
        initializer = _seeded(self.backup_initializer, name)
        made = np.asarray(initializer(tuple(shape), dtype=dtype.name)).astype(kind)
        if list(made.shape) != list(shape):
            raise RefusedValueError(
                f"VocabInfo.backup_initializer gives {list(made.shape)} for {name}, "
                f"which is {list(shape)}: write a function of shape and dtype that "
                "returns that shape."
            )
        return made


def _seeded(initializer: Any, name: str) -> Callable[..., Any]:
    if isinstance(initializer, (str, dict, type)):
        initializer = keras.initializers.get(initializer)
    if not callable(initializer):
        raise RefusedValueError(
            f"VocabInfo.backup_initializer is {kind_of(initializer)}: write "
            "keras.initializers.RandomNormal(stddev=0.1), say."
        )
    if isinstance(initializer, keras.initializers.Initializer):
        config = initializer.get_config()
        # Each process draws for itself, and all need the same values.
        if "seed" in config and config["seed"] is None:
            seed = zlib.crc32(name.encode()) & 0x7FFFFFFF
            return type(initializer).from_config({**config, "seed": seed})
    return initializer


def _words(path: str, size: int | None, field: str) -> list[bytes]:
    """Returns the first words of a vocabulary, each of which it has once."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            lines = file.read().split(b"\n")
    except tf.errors.OpError as error:
        raise RefusedValueError(
            f"the vocabulary {path!r} cannot be read ({error.message}): write the path "
            "of a file with a word a line."
        ) from error
    lines = [line.removesuffix(b"\r") for line in lines]
    words = lines[:-1] if lines[-1] == b"" else lines
    if size is not None and len(words) < size:
        raise RefusedValueError(
            f"VocabInfo.{field} is {size}, and {path} has {len(words)} words: write "
            f"{field}={len(words)} or less, or another file."
        )
    seen: dict[bytes, int] = {}
    for number, word in enumerate(words[:size], start=1):
        if word in seen:
            raise RefusedValueError(
                f"the vocabulary {path!r} has {word.decode(errors='replace')!r} on "
                f"lines {seen[word]} and {number}: a word has one row, so write each "
                "once."
            )
        seen[word] = number
    return list(seen)
