# SPDX-License-Identifier: Apache-2.0
"""CSV files as input.

files -> lines -> this pipeline's -> shuffle -> repeat -> batch -> decode

Lines are shuffled instead of rows: a line is one string, and a batch is decoded at once.
"""

import csv
import gzip
from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf

from gin_estimator import errors

from .batching import Batching, element, make_batching
from .columns import did_you_mean, make_table
from .csv_rows import CsvFormat, RowDecoder
from .files import Patterns, files_of, interleave, position_of, rows_are_shared

_BLOCK = 128  # Lines that are read and numbered together.
_MAX_HEADER_BYTES = 2**20
_BOM = "\ufeff"


@gin.configurable
def csv_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    columns: Any,
    label: str | Sequence[str] | None = None,
    weight: str | None = None,
    train_files: Patterns = None,
    eval_files: Patterns = None,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    quotes: bool = True,
    missing: str = "",
    preprocess_batch: Callable[..., Any] | None = None,
    batch_size: int | None = None,
    batch_size_per_replica: int | None = None,
    shuffle_buffer: int | None = 10000,
    seed: int | None = 0,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Returns batches of rows of CSV files; features are a dict of columns.

    A row is one line; empty lines are skipped. A row that is not as declared fails with its
    file, line, column and value.

    Args:
      mode: one of `ModeKeys`. TRAIN reads `train_files`, EVAL and PREDICT `eval_files`; PREDICT
        yields features only, and its files need neither labels nor weights.
      input_context: this pipeline; None for one pipeline of one replica. Each pipeline reads
        its share of the files, or of the lines if there are fewer files than pipelines.
      columns: columns to read: dict of name and kind ('number', 'word', 'id', 'bag of words',
        'bag of ids'), `Column`, or dict of its arguments. Or a `Schema`, which encodes features.
      label: name of the label column, names of several, whose labels are a dict, or None.
      weight: name of the column of example weights, numbers of 0 or more, which stays a
        feature; None for none.
      train_files: glob pattern, or list of patterns. Files named '.gz' are compressed.
      eval_files: the same, for EVAL and PREDICT.
      names: names of all columns, of files without a header; None if the first line of each
        file has them.
      delimiter: character between two fields.
      quotes: whether a field may be in quotation marks.
      missing: word for a missing value, such as 'NA', as an empty field is.
      preprocess_batch: function `preprocess_batch(features, labels)` of a batch that returns
        `(features, labels)`; labels are None in PREDICT. None changes nothing.
      batch_size: examples in a global batch. Set exactly one of the two batch sizes.
      batch_size_per_replica: examples in a batch of one replica.
      shuffle_buffer: number of lines among which TRAIN draws the next one; None or 0 keeps the
        order. A saved position contains these lines.
      seed: seed of the order in TRAIN; None for another order in each run.
      num_epochs: passes in TRAIN; None without end.
      drop_remainder: whether an incomplete last batch is dropped, as a TPU needs.

    Raises:
      UserValueError: a pattern matches no file; a file is empty, lacks a column, or has another
        header than the first; or an argument is wrong.
    """
    batching = make_batching(
        mode,
        input_context,
        batch_size=batch_size,
        batch_size_per_replica=batch_size_per_replica,
        num_epochs=num_epochs,
        drop_remainder=drop_remainder,
    )
    table = make_table(columns, mode=mode, label=label, weight=weight)
    form = CsvFormat(delimiter, quotes, missing)
    files = files_of(batching, train_files, eval_files, owner="csv_input_fn")
    found = _names_of(files, names, form)
    for name in table.columns:
        if found.count(name) != 1:
            raise errors.UserValueError(
                f"column {name!r} is in {files[0]} {found.count(name)} times: expected once. The "
                f"file has {found}.{did_you_mean(name, found)}"
            )
    lines = _read(
        files, batching, has_header=names is None, shuffle=bool(shuffle_buffer), seed=seed
    )
    lines = batching.shuffle_and_repeat(lines, buffer_size=shuffle_buffer, seed=seed)
    decode = RowDecoder(table, names=found, files=files, csv=form)

    def decode_batch(lines: tf.Tensor, positions: tf.Tensor) -> Any:
        features, labels = table.divide(decode(lines, positions))
        if preprocess_batch is not None:
            features, labels = preprocess_batch(features, labels)
        return element(features, labels)

    batches = batching.batch(lines).map(decode_batch, num_parallel_calls=tf.data.AUTOTUNE)
    return batching.finish(batches)


def _read(
    files: list[str], batching: Batching, *, has_header: bool, shuffle: bool, seed: int | None
) -> tf.data.Dataset:
    """Returns this pipeline's lines of one epoch, with their positions."""
    shared = rows_are_shared(files, batching)

    def read_file(file: tf.Tensor, compression: tf.Tensor, index: tf.Tensor) -> tf.data.Dataset:
        # TextLineDataset would drop carriage returns within a line. Here a line is a row of one
        # field, because no line of text has the character 0.
        lines = tf.data.experimental.CsvDataset(
            file,
            [tf.constant("")],
            compression_type=compression,
            field_delim="\0",
            use_quote_delim=False,
        )

        def own(block: tf.Tensor, columns: tuple[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            (lines,) = columns
            numbers = block * _BLOCK + tf.range(1, tf.shape(lines, tf.int64)[0] + 1)
            bare = tf.strings.regex_replace(lines, f"^{_BOM}", "")
            lines = tf.where(numbers == 1, bare, lines)
            keep = lines != ""
            if has_header:
                keep &= numbers > 1
            if shared:
                # By number, so that it does not depend on the order of the files.
                keep &= numbers % batching.num_pipelines == batching.pipeline
            return lines[keep], position_of(index, numbers[keep])

        return lines.batch(_BLOCK).enumerate().map(own)

    blocks = interleave(
        files, read_file, batching=batching, shuffle=shuffle, seed=seed, block_length=1
    )
    return blocks.unbatch()


def _names_of(files: list[str], names: Sequence[str] | None, form: CsvFormat) -> list[str]:
    """Returns the names of all columns, and checks the first line of each file."""
    rows = [_first_row(file, form, has_header=names is None) for file in files]
    if names is None:
        for file, row in zip(files, rows, strict=True):
            if row != rows[0]:
                raise errors.UserValueError(
                    f"the header of {file} is {row}: expected that of {files[0]}, {rows[0]}. Set "
                    "patterns of files with one header."
                )
        return rows[0]
    if isinstance(names, str) or len(names) != len(rows[0]) or list(names) == rows[0]:
        raise errors.UserValueError(
            f"names is {names!r}, and the first line of {files[0]} has the {len(rows[0])} fields "
            f"{rows[0]}: expected the name of each. Remove names if this is a header."
        )
    return list(names)


def _first_row(file: str, form: CsvFormat, *, has_header: bool) -> list[str]:
    """Returns the fields of a file's first line.

    Raises:
      UserValueError: the file has no rows, or its first line cannot be read.
    """
    try:
        with tf.io.gfile.GFile(file, "rb") as opened:
            source = gzip.GzipFile(fileobj=opened) if file.endswith(".gz") else opened
            start = source.read(_MAX_HEADER_BYTES)
        if b"\0" in start:
            raise ValueError("it has the character 0; convert UTF-16 by iconv -t utf-8")
        lines = start.decode("utf-8-sig", "replace").splitlines()
        if sum(map(bool, lines)) < 1 + has_header or not lines[0]:
            raise ValueError("it has no rows, or its first line is empty")
        if "\ufffd" in lines[0]:
            raise ValueError("its first line is not UTF-8; convert it by iconv -t utf-8")
        quoting = csv.QUOTE_MINIMAL if form.quotes else csv.QUOTE_NONE
        return next(csv.reader([lines[0]], delimiter=form.delimiter, quoting=quoting))
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise errors.UserValueError(f"{file} is not a CSV file: {error}.") from error
