# SPDX-License-Identifier: Apache-2.0
"""Decodes lines of CSV files and names the file, line, column and value of a bad one.

`tf.io.decode_csv` alone reads 0x1A as 26 and 'inf' as a number, and its errors have no line.
So each line is compared with the form of a row, and each value with the form of its kind.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from gin_estimator import errors

from .columns import Column, Table
from .files import place_of

_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_MAX_SHOWN = 80


def _up_to(most: int) -> str:
    """Returns a regular expression of the integers from 0 to `most`."""
    digits = str(most)
    forms = [f"[0-9]{{1,{len(digits) - 1}}}", digits]
    for i, digit in enumerate(digits):
        if digit != "0":
            forms.append(f"{digits[:i]}[0-{int(digit) - 1}][0-9]{{{len(digits) - i - 1}}}")
    return "|".join(forms)


_ID = f"(?:[+-]?(?:{_up_to(2**63 - 1)})|-{2**63})"


@dataclasses.dataclass(frozen=True)
class CsvFormat:
    """How rows are written.

    Attributes:
      delimiter: character between two fields.
      quotes: whether a field may be in quotation marks, where a doubled mark is one mark.
      missing: word for a missing value, as an empty field is.
    """

    delimiter: str = ","
    quotes: bool = True
    missing: str = ""

    def __post_init__(self) -> None:
        one = len(self.delimiter) == 1 and self.delimiter.isascii()
        if not one or self.delimiter in '"\r\n\0':
            raise errors.UserValueError(
                f"delimiter is {self.delimiter!r}: expected one ASCII character, such as '\\t'."
            )
        if set(self.missing) & {self.delimiter, '"', "\r", "\n"}:
            raise errors.UserValueError(
                f"missing is {self.missing!r}: expected one word, such as 'NA'."
            )

    def row(self, num_fields: int) -> str:
        """Returns a regular expression of a row."""
        delimiter = re.escape(self.delimiter)
        field = f"[^{delimiter}]*"
        if self.quotes:
            field = f'(?:[^"{delimiter}]*|"(?:[^"]|"")*")'
        return delimiter.join([field] * num_fields)


def _form_of(column: Column, *, is_weight: bool) -> tuple[str, str]:
    """Returns a regular expression of a column's values, and these values in words."""
    if column.kind == "number":
        if is_weight:
            return rf" *[+]?{_NUMBER} *", "a number of 0 or more"
        return rf" *[+-]?{_NUMBER} *", "a number that float32 holds"
    if column.kind == "id":
        return f" *{_ID} *", "an integer that int64 holds"
    if column.kind == "bag of ids":
        by = re.escape(column.separator)
        bag = f"(?:{by})*(?:{_ID}(?:(?:{by})+{_ID})*)?(?:{by})*"
        return bag, f"integers with {column.separator!r} between them"
    return "(?s).*", "text"


class RowDecoder:
    """Decodes batches of lines into the columns of a table."""

    def __init__(
        self, table: Table, *, names: Sequence[str], files: Sequence[str], csv: CsvFormat
    ) -> None:
        """Keeps the arguments.

        Args:
          table: columns to decode.
          names: all columns of the files, in order.
          files: the files to which positions refer.
          csv: how rows are written.
        """
        self._table, self._files, self._csv = table, list(files), csv
        self._num_fields = len(names)
        # decode_csv returns columns in the order of the file.
        places = sorted(names.index(name) for name in table.columns)
        self._places, self._names = places, [names[place] for place in places]
        self._columns = [table.columns[name] for name in self._names]

    # autograph would lengthen the stack of each error.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, lines: tf.Tensor, positions: tf.Tensor) -> dict[str, Any]:
        """Returns a tensor `[batch]`, or ragged tensor of bags, by column.

        Args:
          lines: strings `[batch]` without line ends.
          positions: int64 `[batch]`, from `files.position_of`.
        """
        is_row = tf.strings.regex_full_match(lines, self._csv.row(self._num_fields))
        texts = tf.io.decode_csv(
            tf.where(is_row, lines, self._csv.delimiter.join("0" * self._num_fields)),
            [tf.constant("")] * len(self._places),
            field_delim=self._csv.delimiter,
            use_quote_delim=self._csv.quotes,
            select_cols=self._places,
        )
        texts = tf.stack(texts)
        missing = texts == ""
        if self._csv.missing:
            missing |= texts == self._csv.missing
        values, bad = self._values(texts, missing)
        refused = self._refuse(lines, positions, is_row, texts, bad)
        with tf.control_dependencies([refused]):
            values = [tf.identity(value) for value in values]
        pairs = zip(self._names, self._columns, values, strict=True)
        split = {name: c.split(value) if c.is_bag else value for name, c, value in pairs}
        return {name: split[name] for name in self._table.columns}

    def _values(self, texts: tf.Tensor, missing: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Returns the values of each column `[batch]`, and which are bad, `[columns, batch]`."""
        values: dict[int, tf.Tensor] = {}
        bad: dict[int, tf.Tensor] = {}
        for (kind, form), members in self._groups().items():
            text, absent = tf.gather(texts, members), tf.gather(missing, members)
            wrong = ~absent & ~tf.strings.regex_full_match(text, form)
            parsed = _parse(tf.where(absent | wrong, "0", text), kind)
            if kind == "number":
                wrong |= tf.math.is_inf(parsed)
            for index, member in enumerate(members):
                fill = self._columns[member].fill
                default = tf.zeros([], parsed.dtype)
                if fill is not None:
                    default = tf.constant(fill, parsed.dtype)
                values[member] = tf.where(absent[index], default, parsed[index])
                bad[member] = wrong[index] | absent[index] if fill is None else wrong[index]
        order = range(len(self._columns))
        return [values[index] for index in order], tf.stack([bad[index] for index in order])

    def _groups(self) -> Mapping[tuple[str, str], list[int]]:
        """Returns the indices of columns by kind and form, as one operation checks many."""
        groups: dict[tuple[str, str], list[int]] = {}
        for index, (name, column) in enumerate(zip(self._names, self._columns, strict=True)):
            form, _ = _form_of(column, is_weight=name == self._table.weight)
            groups.setdefault((column.kind, form), []).append(index)
        return groups

    def _refuse(
        self,
        lines: tf.Tensor,
        positions: tf.Tensor,
        is_row: tf.Tensor,
        texts: tf.Tensor,
        bad: tf.Tensor,
    ) -> tf.Tensor:
        """Returns a tensor whose computation fails at the first bad line."""
        is_bad = ~is_row | tf.reduce_any(bad, 0)

        def fail() -> tf.Tensor:
            row = tf.argmax(is_bad)
            column = tf.argmax(bad[:, row])
            value = self._bad_value(column, texts[column, row])
            reason = tf.where(is_row[row], value, self._bad_row(lines[row]))
            place = place_of(self._files, positions[row], "line")
            message = tf.strings.join([place, ": ", reason])
            with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
                return tf.constant(False)

        return tf.cond(tf.reduce_any(is_bad), fail, lambda: tf.constant(True))

    def _bad_value(self, column: tf.Tensor, text: tf.Tensor) -> tf.Tensor:
        expected = [
            f", expected {_form_of(each, is_weight=name == self._table.weight)[1]}. Correct the "
            f"row, set missing to the word of missing values, or declare another kind or a default "
            f"of column {name}."
            for name, each in zip(self._names, self._columns, strict=True)
        ]
        names = [f"column {name} is " for name in self._names]
        shown = tf.where(text == "", "missing", _shortened(text))
        return tf.strings.join([tf.gather(names, column), shown, tf.gather(expected, column)])

    def _bad_row(self, line: tf.Tensor) -> tf.Tensor:
        fields = line
        if self._csv.quotes:
            fields = tf.strings.regex_replace(line, '"(?:[^"]|"")*"', "")
        delimiter = re.escape(self._csv.delimiter)
        found = tf.strings.length(tf.strings.regex_replace(fields, f"[^{delimiter}]", "")) + 1
        text = tf.strings.join(
            [
                "the row has ",
                tf.strings.as_string(found),
                f" fields, expected {self._num_fields}: ",
                _shortened(line),
                ". A row is one line, and marks in a quoted field are doubled. Correct the row, "
                "or set delimiter or quotes=False.",
            ]
        )
        is_text = tf.strings.regex_full_match(line, "(?s).*")
        return tf.where(is_text, text, "the line is not UTF-8. Convert the file by iconv -t utf-8.")


def _parse(texts: tf.Tensor, kind: str) -> tf.Tensor:
    if kind == "number":
        return tf.strings.to_number(texts, tf.float32)
    return tf.strings.to_number(texts, tf.int64) if kind == "id" else texts


def _shortened(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.regex_replace(text, f"^((?s).{{{_MAX_SHOWN}}})(?s).+$", r"\1...")
