"""Lines against Python's own csv module: the same row, or a refusal, never another."""

import csv
import io
import math

import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inputs import Column, csv_rows, files
from inputs.columns import table_of
from pipeline import ModeKeys
from pipeline.mistakes import user_errors

COLUMNS = {"word": "word", "number": "number", "id": Column("id", default=-1)}
# What CSV is made of, and what a decoder of numbers might trip over.
PIECES = ['"', ",", " ", "a", "é", "1", "-", ".", "e", "0x", "nan", "9" * 19, "#", "\t"]


def decoder(columns=COLUMNS, names=("word", "number", "id"), **form):
    table = table_of(columns, mode=ModeKeys.PREDICT)
    form = csv_rows.CsvFormat(**form)
    decode = csv_rows.RowDecoder(table, names=names, files=["/a.csv"], form=form)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def rows(lines):
        numbers = tf.range(1, tf.size(lines, tf.int64) + 1)
        return decode(lines, files.place_of(tf.constant(0, tf.int64), numbers))

    return rows


@pytest.fixture(scope="module")
def decode():
    return decoder()


def row_of(decode, line):
    """The values of one line; None where it is refused with its place."""
    try:
        values = decode([line])
    except tf.errors.InvalidArgumentError as error:
        assert user_errors.words_of(error).startswith("/a.csv line 1: ")
        return None
    return [values[name].numpy()[0] for name in ("word", "number", "id")]


FIELDS = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.lists(FIELDS, min_size=2, max_size=4).map(",".join))
@example('"a"",b",1,2')
@example('"a\\",1,2')
@example('"",,')
@example('"a","1","2"')
def test_a_line_is_read_as_python_reads_it_or_refused(decode, line):
    row = row_of(decode, line)
    if row is None:
        return
    (fields,) = csv.reader([line], strict=True)
    assert row[0] == fields[0].encode()
    number = float(fields[1]) if fields[1] else math.nan
    assert row[1] == pytest.approx(number, rel=1e-6, nan_ok=True)
    assert row[2] == (int(fields[2]) if fields[2] else -1)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0")),
    st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_what_python_writes_is_read(decode, word, number, id_, quoting):
    text = io.StringIO()
    csv.writer(text, quoting=quoting).writerow([word, number, id_])
    row = row_of(decode, text.getvalue().removesuffix("\r\n"))
    expected = math.nan if number is None else number
    assert row[0] == word.encode()
    assert row[1] == pytest.approx(expected, rel=1e-6, abs=1e-44, nan_ok=True)
    assert row[2] == (-1 if id_ is None else id_)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a,b,3", "column 'number' is 'b', not a number that float32"),
        ("a,1e39,3", "column 'number' is '1e39', not a number that float32"),
        ("a,0x1,3", "column 'number' is '0x1', not"),
        ("a,inf,3", "column 'number' is 'inf', not"),
        ("a,1,2.0", "column 'id' is '2.0', not an integer that int64"),
        ("a,1,9223372036854775808", "is '9223372036854775808', not an integer"),
        ("a,1", "the row has 2 fields, not 3: a,1. Mend"),
        ('"a,b",1,2,3', "the row has 4 fields, not 3"),
        ('"a,1,2', 'the quotation marks of "a,1,2 do not pair'),
        ('a"b,1,2', "the quotation marks of"),
        (b"\xff,1,2", "the line is not UTF-8"),
        ("x" * 99, "not 3: " + "x" * 80 + ".... Mend"),
    ],
)
def test_a_bad_row_is_told_with_its_place(decode, line, words):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        decode(["a,1,2", line, line])
    told = user_errors.words_of(info.value)
    assert told.startswith("/a.csv line 2: ")
    assert words in told


def test_a_word_stands_for_what_is_missing():
    values = decoder(missing="NA")(["NA,NA,NA", "b,,"])
    assert values["word"].numpy().tolist() == [b"", b"b"]
    assert tf.math.is_nan(values["number"]).numpy().all()
    assert values["id"].numpy().tolist() == [-1, -1]


@pytest.mark.parametrize("kind", ["word", "number", "id"])
@pytest.mark.parametrize("missing", ["NA", "7"])
@pytest.mark.parametrize("line", ['"",1', "{},1"])
def test_a_field_that_may_not_be_missing(kind, missing, line):
    columns = {"x": Column(kind, default=None), "y": "number"}
    decode = decoder(columns, ["x", "y"], missing=missing)
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        decode([line.format(missing)])
    words = user_errors.words_of(info.value)
    if (kind, missing, line) == ("id", "7", "{},1"):
        assert "Field 0 is required" in words
    else:
        assert "/a.csv line 1: column 'x' is" in words


@pytest.mark.parametrize("id_", [2**63 - 1, -(2**63), 9199999999999999999, 10**18])
def test_large_ids(decode, id_):
    assert row_of(decode, f"a,1,{id_}") == [b"a", 1.0, id_]
    if abs(id_) > 2**62:
        assert row_of(decode, f"a,1,{10 * id_}") is None


def test_many_columns(capfd):
    """RE2 would complain line by line, and be slow, if it had no room."""
    names = [f"x{i}" for i in range(200)]
    kinds = ["number", Column("id", default=0), "word", "word"]
    columns = {name: kinds[i % 4] for i, name in enumerate(names)}
    line = ",".join(["1"] * 200)
    values = decoder(columns, names)([line] * 3)
    assert values["x199"].numpy().tolist() == [b"1"] * 3
    assert "out of memory" not in capfd.readouterr().err
    with pytest.raises(ValueError, match="columns declares 900 of 900 columns"):
        decoder({f"x{i}": "id" for i in range(900)}, [f"x{i}" for i in range(900)])


def test_bags():
    columns = {
        "words": "bag of words",
        "ids": Column("bag of ids", separator=","),
    }
    decode = decoder(columns, ["words", "ids"])
    values = decode(['a  b ,"4,-5"', ",", "c,6"])
    assert values["words"].to_list() == [[b"a", b"b"], [], [b"c"]]
    assert values["ids"].to_list() == [[4, -5], [], [6]]
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        decode(['a,"4,b"'])
    words = user_errors.words_of(info.value)
    assert "column 'ids' is '4,b', not integers with ',' between" in words


def test_quotation_marks_that_mean_nothing():
    values = decoder(quotes=False, delimiter="\t")(['say "hi", then go\t1\t2'])
    assert values["word"].numpy().tolist() == [b'say "hi", then go']


@pytest.mark.parametrize(
    "form", [{"delimiter": ""}, {"delimiter": '"'}, {"missing": "a,b"}]
)
def test_formats_that_are_refused(form):
    with pytest.raises(ValueError, match=r"(?s)is .*: write .* (delimiter|missing)="):
        csv_rows.CsvFormat(**form)
