"""CSV files as input.

files -> lines in blocks -> this pipeline's -> shuffle -> repeat -> batch -> decode

Lines are shuffled, not rows: a line is one string, and is decoded with its whole batch.
"""

import csv
import gzip
from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf

from pipeline import RefusedValueError
from pipeline.process.refusals import near

from . import files as input_files
from .batching import Batching, make_batching
from .columns import encoding_of, table_of
from .csv_rows import CsvFormat, RowDecoder

# Lines that are read, divided among pipelines and numbered together.
_BLOCK = 128
# No line of a header is longer.
_MOST_BYTES_OF_HEADER = 2**20
_BOM = "\ufeff"


@gin.configurable(denylist=["config"])
def csv_input_fn(
    mode: str,
    input_context: tf.distribute.InputContext | None = None,
    *,
    columns: Any,
    label: str | Sequence[str] | None = None,
    weight: str | None = None,
    train_files: str | Sequence[str] | None = None,
    eval_files: str | Sequence[str] | None = None,
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
    config: Any = ...,
) -> tf.data.Dataset:
    """Yields batches of the rows of CSV files; features are a dict of columns.

    A row is one line. Empty lines are left out. A row that is not as declared fails
    with its file, line, column and value.

    Args:
      mode: one of `ModeKeys`. TRAIN reads `train_files`, the others `eval_files`;
        PREDICT yields features alone, and its files need neither labels nor weights.
      input_context: this pipeline; None is one pipeline that feeds one replica. Each
        pipeline reads files of its own, or lines of its own where there are fewer
        files than pipelines.
      columns: the columns to read, a dict of name and kind: 'number' (float32), 'word'
        (string), 'id' (int64), 'bag of words' or 'bag of ids' (ragged); or of name and
        `Column`, or a dict of its arguments: {'kind': 'id', 'default': -1}. Or a
        `Schema`, whose features then come encoded.
      label: name of the label column, or a list of several, whose labels are a dict;
        None for data without labels.
      weight: name of a column of example weights, numbers of 0 or more, which stays
        among the features; None is none.
      train_files: glob pattern, or a list of patterns. Names in '.gz' are compressed.
      eval_files: the same, for EVAL and PREDICT.
      names: names of all columns, for files without a header; None: each file begins
        with the same line of names.
      delimiter: the character between two fields.
      quotes: whether a field may stand in quotation marks.
      missing: word that stands for a missing value, such as 'NA'; an empty field does
        in any case.
      preprocess_batch: function `preprocess_batch(features, labels)` of a batch that
        returns `(features, labels)`; labels are None in PREDICT. None changes nothing.
      batch_size: examples in a global batch. Exactly one of the two batch sizes is
        given.
      batch_size_per_replica: examples in the batch of one replica.
      shuffle_buffer: lines among which TRAIN draws the next; None or 0 keeps the order.
        A saved position holds these lines.
      seed: seed of the order in TRAIN; None: each run has another order.
      num_epochs: passes in TRAIN; None is forever. EVAL and PREDICT make one.
      drop_remainder: whether an incomplete last batch is left out, in every mode. All
        batches then have one shape, which a TPU needs.
      config: the `RunConfig`, which the driver gives, in whose model_dir a schema keeps
        its statistics; None: they are counted for this process.

    Raises:
      TypeError: columns is no dict.
      ValueError: a pattern is missing or matches no file; a file is empty, lacks a
        column, or has another header than the others; a declaration or an argument of
        `make_batching` is refused.
    """
    batching = make_batching(
        mode,
        input_context,
        batch_size=batch_size,
        batch_size_per_replica=batch_size_per_replica,
        num_epochs=num_epochs,
        drop_remainder=drop_remainder,
    )
    table = table_of(columns, mode=mode, label=label, weight=weight)
    form = CsvFormat(delimiter, quotes, missing)
    files = input_files.of_mode(
        batching,
        train_files,
        eval_files,
        owner="csv_input_fn",
        example="/data/part-*.csv",
    )
    found = _names_of(files, names, form)
    for name in table.columns:
        _check_column(name, found, files[0])
    encode = encoding_of(columns, config, "csv_input_fn")
    lines = _read(
        files,
        batching,
        has_header=names is None,
        shuffle=bool(shuffle_buffer),
        seed=seed,
    )
    lines = batching.shuffle_and_repeat(lines, buffer_size=shuffle_buffer, seed=seed)
    decode = RowDecoder(table, names=found, files=files, form=form)

    def decode_batch(lines: tf.Tensor, places: tf.Tensor) -> Any:
        features, labels = table.divided(decode(lines, places))
        features = encode(features)
        if preprocess_batch is not None:
            features, labels = preprocess_batch(features, labels)
        return features if labels is None else (features, labels)

    batches = batching.batch(lines)
    batches = batches.map(decode_batch, num_parallel_calls=tf.data.AUTOTUNE)
    return batching.for_model(batches)


def _read(
    files: Sequence[str],
    batching: Batching,
    *,
    has_header: bool,
    shuffle: bool,
    seed: int | None,
) -> tf.data.Dataset:
    """Reads this pipeline's lines of one epoch, and the place of each."""
    shared = input_files.are_shared(files, batching)

    def read_file(file: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
        number = tf.argmax(tf.constant(files) == file)
        # TextLineDataset would drop a carriage return within a line. Here each line is
        # a row of one field, as no line may hold the character 0.
        lines = tf.data.experimental.CsvDataset(
            file,
            [tf.constant("")],
            compression_type=compression,
            field_delim="\0",
            use_quote_delim=False,
        )

        def mine(block: tf.Tensor, lines: tuple[tf.Tensor]) -> tuple[tf.Tensor, ...]:
            (lines,) = lines
            size = tf.shape(lines, tf.int64)[0]
            numbers = block * _BLOCK + tf.range(1, size + 1)
            if not has_header:
                bare = tf.strings.regex_replace(lines, f"^{_BOM}", "")
                lines = tf.where(numbers == 1, bare, lines)
            keep = lines != ""
            if has_header:
                keep &= numbers > 1
            if shared:
                # By the line's number: which pipeline reads a line then does not
                # depend on the order of the files.
                keep &= numbers % batching.num_pipelines == batching.pipeline_id
            return lines[keep], input_files.place_of(number, numbers[keep])

        return lines.batch(_BLOCK).enumerate().map(mine)

    blocks = input_files.read_in_turns(
        files, read_file, batching=batching, shuffle=shuffle, seed=seed, block_length=1
    )
    return blocks.unbatch()


def _names_of(
    files: Sequence[str], names: Sequence[str] | None, form: CsvFormat
) -> list[str]:
    """Returns the names of all columns, after a look at the beginning of each file."""
    if names is not None:
        for file in files:
            _check_names(names, _first_row(file, form, has_header=False), file)
        return list(names)
    first = _first_row(files[0], form, has_header=True)
    for file in files[1:]:
        header = _first_row(file, form, has_header=True)
        if header != first:
            lacks = [name for name in first if name not in header]
            more = [name for name in header if name not in first]
            how = f"lacks {lacks} and has {more} more"
            if not lacks and not more:
                how = f"has them in another order, {header}"
            raise RefusedValueError(
                f"The header of {file} differs from that of {files[0]}: it {how}. "
                "Write csv_input_fn.train_files or eval_files for files of one header."
            )
    return first


def _check_names(names: Sequence[str], row: Sequence[str], file: str) -> None:
    """Raises if names cannot be the names of a row's fields, or are the row itself."""
    if list(names) == row:
        raise RefusedValueError(
            f"names is {names!r}, which is the first line of {file}, too: leave "
            "csv_input_fn.names out, for the file has a header."
        )
    if isinstance(names, str) or (row and len(names) != len(row)):
        raise RefusedValueError(
            f"names is {names!r}, and the first line of {file} has {len(row)} fields, "
            f"{row}: write csv_input_fn.names = [...] with the name of each."
        )


def _check_column(name: str, found: Sequence[str], file: str) -> None:
    """Raises if there is not exactly one column of a name."""
    count = found.count(name)
    if not count:
        raise RefusedValueError(
            f"Column {name!r} is declared, and {file} has none of that name: write "
            f"one of {found}.{near(name, found)}"
        )
    if count > 1:
        raise RefusedValueError(
            f"Column {name!r} is declared, and {file} has {count} of that name: give "
            "each column a name of its own."
        )


def _first_row(file: str, form: CsvFormat, *, has_header: bool) -> list[str]:
    """Returns the fields of a file's first line, and checks that a row follows.

    Raises:
      ValueError: the file has no row, or its first line is not text, or cannot be
        divided into fields.
    """
    with tf.io.gfile.GFile(file, "rb") as opened:
        source = gzip.GzipFile(fileobj=opened) if file.endswith(".gz") else opened
        try:
            start = source.read(_MOST_BYTES_OF_HEADER)
        except (OSError, EOFError) as error:
            raise RefusedValueError(
                f"{file} cannot be read as gzip, as its name has it ({error}): name "
                "it without '.gz', or compress it again."
            ) from error
    if b"\0" in start:
        raise RefusedValueError(
            f"{file} holds the character 0, as text does that is not UTF-8: convert "
            "the file, as by iconv -f utf-16 -t utf-8."
        )
    lines = start.removeprefix(_BOM.encode()).splitlines()
    if has_header and lines and not lines[0]:
        raise RefusedValueError(
            f"{file} begins with an empty line: begin it with the names of its "
            "columns, or write them as csv_input_fn.names."
        )
    rows = sum(map(bool, lines))
    if rows < 1 + has_header:
        raise RefusedValueError(
            f"{file} is empty{', but for its header' if rows else ''}: take it out of "
            "csv_input_fn.train_files or eval_files."
        )
    try:
        line = lines[0].decode()
    except UnicodeDecodeError as error:
        raise RefusedValueError(
            f"The first line of {file} is not UTF-8 ({error}): convert the file, as by "
            "iconv -f latin1 -t utf-8."
        ) from error
    quoting = csv.QUOTE_MINIMAL if form.quotes else csv.QUOTE_NONE
    reader = csv.reader([line], delimiter=form.delimiter, quoting=quoting, strict=True)
    try:
        fields = next(reader, [])
    except csv.Error as error:
        # A first row of data is told about when it is read.
        if not has_header:
            return []
        raise RefusedValueError(
            f"The header of {file} cannot be divided into fields ({error}): {line!r}. "
            "It has to be one line; write csv_input_fn.quotes = False where quotation "
            "marks mean nothing."
        ) from error
    return fields
