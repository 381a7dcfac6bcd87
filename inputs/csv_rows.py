"""Decodes batches of CSV lines, and says of a bad row what is wrong with it and where.

TensorFlow's `decode_csv` is fast, but it names neither file nor line, takes 0x1A for a
number, and leaves the rest of a row unread once it has the columns that it was asked
for. So one regular expression for a whole row comes first: it knows the number of
fields, the quotes and the form of each declared column. Only if a line does not match,
or a value is out of range, is the line taken apart for the message.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from pipeline import RefusedValueError

from . import files as input_files
from .columns import Column, Table, split_bag

_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_MOST_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class CsvFormat:
    """The way in which a row is written in one line.

    Attributes:
      delimiter: the character between two fields.
      quotes: whether a field may stand in quotation marks, in which a doubled mark is
        one. Otherwise a quotation mark is a character like any other.
      missing: word that stands for a missing value, as an empty field does.
    """

    delimiter: str = ","
    quotes: bool = True
    missing: str = ""

    def __post_init__(self) -> None:
        one = len(self.delimiter) == 1 and self.delimiter.isascii()
        if not one or self.delimiter in '"\r\n\0':
            raise RefusedValueError(
                f"delimiter is {self.delimiter!r}: write the character between two "
                "fields, delimiter='\\t'."
            )
        if set(self.missing) & {self.delimiter, '"', "\r", "\n"}:
            raise RefusedValueError(
                f"missing is {self.missing!r}: write one word that stands for a "
                "missing value, missing='NA'."
            )

    @property
    def text(self) -> str:
        """The expression of any field."""
        plain = self._plain("*")
        return f'(?:{plain}|"(?:[^"]|"")*")' if self.quotes else plain

    @property
    def any_field(self) -> str:
        """A field that every kind of column takes for its own."""
        return "1" if self.missing == "0" else "0"

    def field(self, column: Column, *, above_zero: bool) -> str:
        """Returns the expression of a declared column's field.

        Args:
          column: the declaration.
          above_zero: whether a number may not be negative.
        """
        if column.dtype == tf.string:
            if column.fill is not None:
                return self.text
            some = self._plain("+")
            return f'(?:{some}|"(?:[^"]|"")+")' if self.quotes else some
        # Items that the delimiter separates need quotes.
        apart = column.is_bag and column.separator == self.delimiter
        value = self.value(column, above_zero=above_zero)
        plain = _ID if apart else value
        forms = [plain, f'"{value}"'] if self.quotes else [plain]
        if column.fill is not None:
            forms += ["", '""'] if self.quotes else [""]
        return f"(?:{'|'.join(forms)})"

    def value(self, column: Column, *, above_zero: bool) -> str:
        """Returns the expression of what a field of a declared column says."""
        if column.dtype == tf.string:
            value = "(?s).+"
        elif column.kind == "number":
            value = rf" *{'[+]?' if above_zero else '[+-]?'}{_NUMBER} *"
        elif column.is_bag:
            apart = re.escape(column.separator)
            value = f"(?:{apart})*(?:{_ID}(?:{apart}+{_ID})*)?(?:{apart})*"
        else:
            value = f" *{_ID} *"
        if self.missing and column.fill is not None:
            value = f"(?:{value}|{re.escape(self.missing)})"
        return value

    def _plain(self, times: str) -> str:
        quote = '"' if self.quotes else ""
        return f"[^{quote}{re.escape(self.delimiter)}]{times}"


def _up_to(most: int) -> str:
    """Returns the expression of the integers from 0 to `most`, without a sign."""
    digits = str(most)
    forms = [f"[0-9]{{1,{len(digits) - 1}}}", digits]
    for i, digit in enumerate(digits):
        if digit != "0":
            rest = len(digits) - i - 1
            forms.append(f"{digits[:i]}[0-{int(digit) - 1}][0-9]{{{rest}}}")
    return "|".join(forms)


# What int64 holds: TensorFlow refuses other integers without naming their place.
_ID = f"(?:[+-]?(?:{_up_to(2**63 - 1)})|-{2**63})"
# Most of these in a tenth of the states, of which RE2 has room for some ten thousand.
_MOST_IDS = "[+-]?(?:[1-8]?[0-9]{1,18}|9[01][0-9]{17})"
# Beyond about half as much again RE2 refuses an expression.
_MOST_CHARACTERS = 500_000


class RowDecoder:
    """Decodes batches of lines into the columns of a table.

    Attributes:
      table: the columns to decode.
    """

    def __init__(
        self,
        table: Table,
        *,
        names: Sequence[str],
        files: Sequence[str],
        form: CsvFormat,
        argument: str = "csv_input_fn",
    ) -> None:
        """Prepares the expressions.

        Args:
          table: the columns to decode; each is among `names`.
          names: all columns of the files, in their order.
          files: the files, which lines name by number.
          form: how a row is written.
          argument: function whose arguments the messages tell to write.
        """
        self.table = table
        self._names = list(names)
        self._files = list(files)
        self._form = form
        self._argument = argument
        fields = [form.text] * len(names)
        for name, column in table.columns.items():
            above_zero = name == table.weight
            fields[names.index(name)] = form.field(column, above_zero=above_zero)
        self._row = re.escape(form.delimiter).join(fields)
        self._most_rows = self._row.replace(_ID, _MOST_IDS)
        if len(self._row) > _MOST_CHARACTERS:
            raise RefusedValueError(
                f"columns declares {len(table.columns)} of {len(names)} columns, more "
                "than can be checked row by row: declare fewer, or read the file by "
                "pandas and dataframe_input_fn."
            )
        self._any_row = form.delimiter.join([form.any_field] * len(names))

    # Nothing here is for autograph, which would lengthen each error's stack.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, lines: tf.Tensor, places: tf.Tensor) -> dict[str, Any]:
        """Decodes a batch.

        Args:
          lines: strings `[batch]`, one row each, without line ends.
          places: int64 `[batch]`, where each line stands, see `files.place_of`.

        Returns:
          Tensors `[batch]` by column; ragged tensors of bags.
        """
        as_most = tf.strings.regex_full_match(lines, self._most_rows)
        bad = tf.cond(
            tf.reduce_all(as_most),
            lambda: ~as_most,
            lambda: ~tf.strings.regex_full_match(lines, self._row),
        )
        defaults = [tf.constant("")] * len(self._names)
        for name, column in self.table.columns.items():
            defaults[self._names.index(name)] = _default(column)
        decoded = tf.io.decode_csv(
            # A bad line would fail here, without its place.
            tf.where(bad, self._any_row, lines),
            defaults,
            field_delim=self._form.delimiter,
            use_quote_delim=self._form.quotes,
            na_value=self._form.missing,
        )
        values = {name: decoded[self._names.index(name)] for name in self.table.columns}
        bad |= self._out_of_range(values)
        with tf.control_dependencies([self._refuse(bad, lines, places)]):
            values = {name: tf.identity(value) for name, value in values.items()}
        return {
            name: split_bag(values[name], column) if column.is_bag else values[name]
            for name, column in self.table.columns.items()
        }

    def _out_of_range(self, values: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns which rows are bad by what no expression can tell, bool `[batch]`."""
        numbers, lacking = [], []
        for name, column in self.table.columns.items():
            if column.kind == "number":
                numbers.append(values[name])
            if column.fill is None and column.kind == "number":
                lacking.append(tf.math.is_nan(values[name]))
            elif column.fill is None and column.kind == "word":
                lacking.append(values[name] == "")
        # One operation for all numbers, of which there may be thousands.
        found = [tf.reduce_any(tf.math.is_inf(tf.stack(numbers)), 0)] if numbers else []
        if lacking:
            found.append(tf.reduce_any(tf.stack(lacking), 0))
        return tf.reduce_any(tf.stack(found), 0) if found else tf.constant(False)

    def _refuse(self, bad: tf.Tensor, lines: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Returns a tensor whose computation fails at the first bad line.

        Args:
          bad: bool `[batch]`.
          lines: strings `[batch]`.
          places: int64 `[batch]`.
        """

        def fail() -> tf.Tensor:
            first = tf.argmax(bad)
            place = input_files.in_words(self._files, places[first], "line")
            message = tf.strings.join([place, ": ", self._complaint(lines[first])])
            with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
                return tf.constant(False)

        return tf.cond(tf.reduce_any(bad), fail, lambda: tf.constant(True))

    def _complaint(self, line: tf.Tensor) -> tf.Tensor:
        """Returns what is wrong with a line, a string scalar."""
        form, width = self._form, len(self._names)
        unquoted = line
        if form.quotes:
            unquoted = tf.strings.regex_replace(line, '"(?:[^"]|"")*"', "")
        delimiters = tf.strings.regex_replace(
            unquoted, f"[^{re.escape(form.delimiter)}]", ""
        )
        found = tf.strings.length(delimiters) + 1
        shown = tf.strings.regex_replace(
            line, f"^((?s).{{{_MOST_SHOWN}}})(?s).+$", r"\1..."
        )
        any_row = re.escape(form.delimiter).join([form.text] * width)
        is_whole = tf.strings.regex_full_match(line, any_row)
        message = _joined(
            "the row has ",
            found,
            f" fields, not {width}: ",
            shown,
            f". Mend the row, or write {self._argument}.delimiter = ... if it is not "
            f"{form.delimiter!r}.",
        )
        if form.quotes:
            quotes = _joined(
                "the quotation marks of ",
                shown,
                " do not pair. A row has to be one line, a mark within a quoted field "
                "doubled, and none within another: mend the row; read a file with "
                "line ends within fields by pandas and dataframe_input_fn; or write "
                f"{self._argument}.quotes = False where marks mean nothing.",
            )
            has_mark = tf.strings.regex_full_match(unquoted, '(?s).*".*')
            message = tf.where(has_mark, quotes, message)
        whole = tf.where(is_whole, line, self._any_row)
        message = tf.where(is_whole, self._bad_field(whole), message)
        return tf.where(
            tf.strings.regex_full_match(line, "(?s).*"),
            message,
            "the line is not UTF-8: convert the file, as by iconv -f latin1 -t utf-8.",
        )

    def _bad_field(self, line: tf.Tensor) -> tf.Tensor:
        """Returns what is wrong with the first bad field of a line of whole fields."""
        form = self._form
        fields = tf.io.decode_csv(
            line,
            [tf.constant("")] * len(self._names),
            field_delim=form.delimiter,
            use_quote_delim=form.quotes,
        )
        found = [self._bad_fields(fields, *group) for group in self._groups().items()]
        bad, messages, order = (
            tf.concat(parts, 0) for parts in zip(*found, strict=True)
        )
        first = tf.argmin(tf.where(bad, order, len(self._names)))
        return tf.gather(messages, first)

    def _groups(self) -> dict[tuple[Column, bool], list[str]]:
        """Returns the names of equal columns, and whether their numbers are weights."""
        groups: dict[tuple[Column, bool], list[str]] = {}
        for name, column in self.table.columns.items():
            groups.setdefault((column, name == self.table.weight), []).append(name)
        return groups

    def _bad_fields(
        self, fields: Sequence[tf.Tensor], key: tuple[Column, bool], names: list[str]
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Looks at the fields of equal columns, all at once.

        Args:
          fields: text of all fields of a row.
          key: the columns' declaration, and whether they are weights.
          names: the columns' names.

        Returns:
          Which fields are bad, what to say of each, and the place of each in a row.
        """
        column, is_weight = key
        order = [self._names.index(name) for name in names]
        values = tf.stack([fields[i] for i in order])
        is_missing = (values == "") | (values == self._form.missing)
        is_value = tf.strings.regex_full_match(
            values, self._form.value(column, above_zero=is_weight)
        )
        messages = tf.strings.join(
            [
                [f"column {name!r} is '" for name in names],
                values,
                [f"', {self._wrong(name, column)}" for name in names],
            ]
        )
        bad = ~is_missing & ~is_value
        if column.fill is None:
            bad = is_missing | ~is_value
            lacking = [_lacking(name, column) for name in names]
            messages = tf.where(is_missing, lacking, messages)
        if column.kind == "number":
            numbers = tf.where(is_value & ~is_missing, values, "0")
            bad |= tf.math.is_inf(tf.strings.to_number(numbers))
        return bad, messages, tf.constant(order)

    def _wrong(self, name: str, column: Column) -> str:
        """Returns what a column cannot be, and what to write."""
        kinds = {
            "number": "not a number that float32 holds",
            "id": "not an integer that int64 holds",
            "bag of ids": f"not integers with {column.separator!r} between them",
        }
        what = kinds.get(column.kind, "not a word")
        if name == self.table.weight:
            what = "not a weight, a number of 0 or more"
        return (
            f"{what}: mend the row; write {self._argument}.missing = '...' if this "
            f"stands for a missing value; or declare the column as what it is, columns "
            f"= {{..., {name!r}: {'bag of words' if column.is_bag else 'word'!r}}}."
        )


def _lacking(name: str, column: Column) -> str:
    """Returns that a field is missing, and what to write."""
    default = {"number": 0.0, "word": "unknown", "id": -1}[column.kind]
    declared = {"kind": column.kind, "default": default}
    return (
        f"column {name!r} is missing: take the row out, or write what it is then, "
        f"columns = {{..., {name!r}: {declared}}}."
    )


def _default(column: Column) -> tf.Tensor:
    """Returns what `decode_csv` is to take for a missing field."""
    if column.dtype == tf.string or column.is_bag:
        return tf.constant(column.fill or "")
    if column.fill is None:
        # Numbers are checked afterwards; of an id it is refused by `decode_csv`.
        empty = [] if column.kind == "id" else float("nan")
        return tf.constant(empty, column.dtype)
    return tf.constant(column.fill, column.dtype)


def _joined(*parts: str | tf.Tensor) -> tf.Tensor:
    """Joins text and integers, scalars, to one string."""
    tensors = [tf.convert_to_tensor(part) for part in parts]
    return tf.strings.join(
        [t if t.dtype == tf.string else tf.strings.as_string(t) for t in tensors]
    )
