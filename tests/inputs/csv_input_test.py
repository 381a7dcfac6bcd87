import gzip

import gin
import pytest
import tensorflow as tf

import inputs
from pipeline import ModeKeys
from pipeline.feed import fingerprint
from pipeline.mistakes import user_errors

COLUMNS = {"a": "number", "b": "word", "c": inputs.Column("id", default=-1)}


@pytest.fixture
def read(tmp_path):
    """Rows of files with the given texts, in EVAL unless another mode is given."""

    def make(*texts, mode=ModeKeys.EVAL, suffix="", **arguments):
        for number, text in enumerate(texts):
            data = text if isinstance(text, bytes) else text.encode()
            (tmp_path / f"{number}.csv{suffix}").write_bytes(data)
        arguments = {"columns": COLUMNS, "batch_size": 64} | arguments
        files = f"{tmp_path}/*.csv*"
        return inputs.csv_input_fn(
            mode, train_files=files, eval_files=files, **arguments
        )

    return make


def rows(dataset):
    """The rows of the first batch, as tuples of features and labels."""
    element = next(iter(dataset))
    columns = tf.nest.flatten(element)
    return list(zip(*(tensor.numpy().tolist() for tensor in columns), strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "a,b,c\n1,é,2\n3,,\n",
        "a,b,c\r\n1,é,2\r\n3,,\r\n",
        "a,b,c\r1,é,2\r3,,",
        "\ufeffa,b,c\n1,é,2\n\n3,,\n\n\n",
        'c,unused,b,"a"\n2,"x, ""y""",é,"1"\n"",,"",3\n',
    ],
    ids=["plain", "crlf", "cr", "bom_and_empty_lines", "order_and_quotes"],
)
def test_ways_to_write_the_same_rows(read, text):
    assert rows(read(text)) == [(1.0, "é".encode(), 2), (3.0, b"", -1)]


def test_files_without_header(read):
    dataset = read("\ufeff1,x,2\n\n3,y,4", names=["a", "b", "c"])
    assert rows(dataset) == [(1.0, b"x", 2), (3.0, b"y", 4)]


def test_a_carriage_return_within_a_line_is_not_dropped(read):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        rows(read('a,b,c\n1,x,2\n1,"x\ry",2\n'))
    assert "line 3: the quotation marks of" in user_errors.words_of(info.value)


def test_several_labels_and_a_weight(read):
    text = "a,b,c\n1,x,2\n"
    features, labels = next(iter(read(text, label=["c", "b"], weight="a")))
    assert list(features) == ["a"]
    assert {k: v.numpy().tolist() for k, v in labels.items()} == {"c": [2], "b": [b"x"]}
    predicted = read(text, mode=ModeKeys.PREDICT, label="c", weight="a")
    assert list(predicted.element_spec) == ["b"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("-1,x,2", "column 'a' is '-1', not a weight, a number of 0 or more"),
        (",x,2", "column 'a' is missing"),
        ("1,,2", "column 'b' is missing: .*'kind': 'word', 'default': 'unknown'}"),
    ],
)
def test_a_label_and_a_weight_may_not_be_missing(read, row, words):
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        rows(read(f"a,b,c\n\n{row}\n", label="b", weight="a"))
    info.match("0.csv line 3: ")
    assert tf.strings.regex_full_match(
        user_errors.words_of(info.value), f"(?s).*{words}.*"
    )


def test_a_bad_row_among_shuffled_files_is_told_with_its_file(read):
    texts = ["a,b,c\n" + "1,x,2\n" * 200] * 3
    texts[1] += "1,x,2,y\n"
    with pytest.raises(tf.errors.InvalidArgumentError) as info:
        for _ in read(*texts, mode=ModeKeys.TRAIN, num_epochs=1):
            pass
    words = user_errors.words_of(info.value)
    assert "1.csv line 202: the row has 4 fields, not 3: 1,x,2,y." in words


def test_preprocess_gets_a_batch(read):
    def preprocess(features, labels):
        return features["a"] + 1, labels

    arguments = {"preprocess_batch": preprocess, "label": "c"}
    text = "a,b,c\n1,x,2\n3,y,4\n"
    assert rows(read(text, **arguments)) == [(2.0, 2), (4.0, 4)]
    assert rows(read(text, mode=ModeKeys.PREDICT, **arguments)) == [(2.0,), (4.0,)]


def test_bags_are_ragged(read):
    columns = {"b": {"kind": "bag of words", "separator": ";"}}
    dataset = read("a,b\n1,x;y\n2,\n", columns=columns, mode=ModeKeys.TRAIN)
    assert dataset.element_spec["b"].shape.as_list() == [64, None]
    assert sorted(next(iter(dataset))["b"].to_list()[:2]) == [[], [b"x", b"y"]]


def test_files_are_a_part_of_the_data(read, tmp_path):
    def described():
        return fingerprint.of(read("a,b,c\n1,x,2\n"))

    before = described()
    assert fingerprint.compare(before, described()) is None
    (tmp_path / "1.csv").write_text("a,b,c\n3,y,4\n")
    assert fingerprint.compare(before, described()).in_data


def test_from_gin(tmp_path):
    (tmp_path / "a.csv").write_text("a,b,c\n1,x,\n")
    gin.parse_config(
        f"""
        csv_input_fn.eval_files = '{tmp_path}/*.csv'
        csv_input_fn.columns = {{'a': 'number', 'c': {{'kind': 'id', 'default': 7}}}}
        csv_input_fn.batch_size = 4
        """
    )
    try:
        assert rows(inputs.csv_input_fn(ModeKeys.EVAL)) == [(1.0, 7)]
    finally:
        gin.clear_config()


BAD = {
    "nothing": (b"", {}, "is empty: take it out"),
    "header_alone": ("a,b,c\n\n", {}, "is empty, but for its header: take it out"),
    "empty_line": ("\na,b,c\n1,x,2", {}, "begins with an empty line: begin it with"),
    "utf16": ("a,b,c\n1,x,2".encode("utf-16"), {}, "holds the character 0, as text"),
    "latin1": (b"a,b,c,\xff\n1,x,2", {}, "is not UTF-8 .* convert the file"),
    "open_quote": ('a,"b\n",c\n1,x,2', {}, "cannot be divided into fields .* write"),
    "unknown": ("a,B,c\n1,x,2", {}, r"Column 'b' .* one of \['a', 'B', 'c'\]"),
    "twice": ("a,b,c,a\n1,x,2,1", {}, "Column 'a' .* 2 of that name"),
    "names": ("1,x,2", {"names": ["a", "b"]}, "names is .* 3 fields"),
    "text": ("1,x,2", {"names": "abc"}, "names is 'abc'"),
    "header": ("a,b,c\n1,x,2", {"names": ["a", "b", "c"]}, "leave csv_input_fn.names"),
    "label": ("a,b,c\n1,x,2", {"label": "y"}, r"label is 'y', .* one of \['a', "),
    "weight": ("a,b,c\n1,x,2", {"weight": "b"}, "weight is 'b', a column of kind"),
    "both": ("a,b,c\n1,x,2", {"weight": "a", "label": "a"}, "which is a label, too"),
    "no_feature": ("a\n1", {"columns": {"a": "id"}, "label": "a"}, "no features"),
    "kind": ("a\n1", {"columns": {"a": "float"}}, "Column 'a': kind is 'float': write"),
    "no_kind": ("a\n1", {"columns": {"a": 3}}, "Column 'a' is 3: write its kind"),
    "keyword": ("a\n1", {"columns": {"a": {"type": 1}}}, "Column 'a': .*'type'"),
    "no_columns": ("a\n1", {"columns": {}}, "columns is empty: write"),
    "list": ("a\n1", {"columns": ["a"]}, r"columns is \['a'\]: write a dict"),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(read, name):
    text, arguments, words = BAD[name]
    with pytest.raises((TypeError, ValueError), match=f"(?s){words}"):
        read(text, **arguments)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("a,b,d\n1,x,2\n", r"lacks \['c'\] and has \['d'\] more"),
        ("a,c,b\n1,2,x\n", "in another order"),
    ],
)
def test_a_header_that_differs(read, other, words):
    with pytest.raises(ValueError, match=f"1.csv differs .*0.csv: .*{words}"):
        read("a,b,c\n1,x,2\n", other)


def test_what_is_not_compressed(read):
    with pytest.raises(ValueError, match="cannot be read as gzip"):
        read("a,b,c\n1,x,2\n", suffix=".gz")
    compressed = gzip.compress(b"a,b,c\n1,x,2\n")
    with pytest.raises(ValueError, match="cannot be read as gzip"):
        read(compressed[:-9], suffix=".gz")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ({"kind": "number", "default": "x"}, "write default=0.0"),
        ({"kind": "number", "default": 1e39}, "write default=0.0"),
        ({"kind": "id", "default": 1.5}, "write default=-1"),
        ({"kind": "word", "default": 0}, "write default='unknown'"),
        ({"kind": "bag of ids", "default": 1}, "a missing bag is empty"),
        ({"kind": "bag of ids", "separator": ", "}, "write one character"),
    ],
)
def test_columns_that_are_refused(column, words):
    with pytest.raises(ValueError, match=f"is .*{words}"):
        inputs.Column(**column)
