"""Reads vocabularies of text files, a word or an id a line."""

import functools
import gzip
import re

import tensorflow as tf

from pipeline import RefusedValueError

from .checks import is_integer


def read_vocabulary(path: str, *, ids: bool) -> tuple[str | int, ...]:
    """Returns the words or ids of a file, in the order of its lines.

    What is not UTF-8 comes back as Python's 'surrogateescape' has it.

    Args:
      path: of a text file; compressed where its name ends in '.gz'.
      ids: whether its lines are integers.

    Raises:
      ValueError: there is no such file, it is empty, or a line is empty, no integer, or
        there twice.
    """
    if not tf.io.gfile.exists(path) or tf.io.gfile.isdir(path):
        raise RefusedValueError(
            f"vocabulary is {path!r}, which is no file: write the path of a text file "
            "with a word a line, or a list of words."
        )
    stat = tf.io.gfile.stat(path)
    return _read(path, stat.mtime_nsec, stat.length, ids)


@functools.lru_cache(maxsize=64)
def _read(path: str, _mtime: int, _length: int, ids: bool) -> tuple[str | int, ...]:
    """Reads a file once for as long as it does not change."""
    places: dict[str | int, int] = {}
    for number, line in enumerate(_lines(path), 1):
        word = _item(line, f"{path} line {number}", ids=ids)
        if word in places:
            raise RefusedValueError(
                f"{path} line {number} is {word!r}, as line {places[word]} is: write "
                "each once."
            )
        places[word] = number
    if not places:
        raise RefusedValueError(
            f"{path} is empty: write the vocabulary into it, a word a line."
        )
    return tuple(places)


def _lines(path: str) -> list[str]:
    with tf.io.gfile.GFile(path, "rb") as opened:
        content = opened.read()
    if path.endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise RefusedValueError(
                f"{path} cannot be read as gzip, as its name has it ({error}): name "
                "it without '.gz', or compress it again."
            ) from error
    content = content.removeprefix(b"\xef\xbb\xbf")
    # Only line ends divide: `splitlines` of text would know eight more.
    lines = re.split(b"\r\n|\n|\r", content)
    if not lines[-1]:
        lines.pop()
    return [line.decode("utf-8", "surrogateescape") for line in lines]


def _item(line: str, place: str, *, ids: bool) -> str | int:
    """Returns the word or id of a line."""
    if not line:
        raise RefusedValueError(
            f"{place} is empty, and stands for no word: take it out."
        )
    if not ids:
        return line
    is_id = re.fullmatch(r" *[+-]?[0-9]+ *", line)
    if not is_id or not is_integer(int(line)):
        raise RefusedValueError(
            f"{place} is {line!r}, no integer that int64 holds: mend it, or declare "
            "the feature as words."
        )
    return int(line)
