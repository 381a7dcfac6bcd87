"""Readers of tables: CSV files, DataFrames and TFRecord files."""

import functools
import gzip
import math

import numpy as np
import pytest
import tensorflow as tf
from gin_estimator.inputs import csv_input_fn, dataframe_input_fn, tfrecord_input_fn

import gin_estimator as ge
from gin_estimator import ModeKeys
from refusals import refused

COLUMNS = {
    "x": "number",
    "word": "word",
    "id": {"kind": "id", "default": -1},
    "tags": {"kind": "bag of words", "separator": ";"},
    "ids": "bag of ids",
    "y": "id",
    "w": "number",
}
HEADER = "more,x,word,id,tags,ids,y,w"
LINES = [
    "0,1.5,a b,7,p;q,1 2,0,1",
    "0,,,,,,1,0.5",
    '0, -2e1 ,"say ""hi"", you",9223372036854775807,;p;,-3,1,2',
]


def write(path, *lines, header=HEADER, end="\n", start=""):
    text = start + end.join([header, *lines] if header else lines) + end
    (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(text.encode())
    return str(path)


def read(fn, mode=ModeKeys.EVAL, **options):
    return list(fn(mode, batch_size=8, **options))


csv = functools.partial(csv_input_fn, columns=COLUMNS, label="y", weight="w")


def check_rows(features, labels):
    np.testing.assert_array_equal(features["x"], np.float32([1.5, math.nan, -20]))
    assert features["word"].numpy().tolist() == [b"a b", b"", b'say "hi", you']
    assert features["id"].numpy().tolist() == [7, -1, 2**63 - 1]
    assert features["tags"].to_list() == [[b"p", b"q"], [], [b"p"]]
    assert features["ids"].to_list() == [[1, 2], [], [-3]]
    assert labels.numpy().tolist() == [0, 1, 1]
    assert features["w"].numpy().tolist() == [1, 0.5, 2]
    assert features.keys() == COLUMNS.keys() - {"y"}


@pytest.mark.slow
def test_csv_files_in_many_forms(tmp_path):
    path = tmp_path / "a.csv"
    write(path, *LINES)
    dataset = csv(ModeKeys.EVAL, batch_size=8, eval_files=str(path))
    for options in ({}, {"end": "\r\n"}, {"start": "\ufeff"}):
        write(path, *LINES, "", **options)
        [(features, labels)] = dataset
        check_rows(features, labels)
    write(tmp_path / "a.csv.gz", *LINES)
    [features] = read(csv, ModeKeys.PREDICT, eval_files=str(tmp_path / "a.csv.gz"))
    assert not {"y", "w"} & {*features}
    assert features["word"].numpy().tolist() == [b"a b", b"", b'say "hi", you']


def test_csv_files_without_header_quotes_and_with_a_word_for_missing(tmp_path):
    path = write(tmp_path / "a.tsv", 'NA\t"x\t1', "\\N\t\t2", "2\tNA\tNA", header="")
    [(features, labels)] = read(
        csv_input_fn,
        columns={"b": "word", "a": {"kind": "word"}, "c": {"kind": "id", "default": 0}},
        label=["c"],
        eval_files=path,
        names=["a", "b", "c"],
        delimiter="\t",
        quotes=False,
        missing="NA",
        preprocess_batch=lambda x, y: (x | {"n": tf.strings.length(x["b"])}, y),
    )
    assert features["a"].numpy().tolist() == [b"", b"\\N", b"2"]
    assert features["b"].numpy().tolist() == [b'"x', b"", b""]
    assert features["n"].numpy().tolist() == [2, 0, 0]
    assert labels["c"].numpy().tolist() == [1, 2, 0]


@pytest.mark.thin
@pytest.mark.parametrize("pipelines", [1, 2, 5])
def test_all_pipelines_together_read_each_line_once(pipelines, tmp_path):
    write(tmp_path / "a.csv", *map(str, range(300)), header="n")
    write(tmp_path / "b.csv", *map(str, range(300, 303)), header="n")
    write(tmp_path / "c.gz", *map(str, range(303, 310)), header="n")
    found = []
    for index in range(pipelines):
        dataset = csv_input_fn(
            ModeKeys.TRAIN,
            tf.distribute.InputContext(pipelines, index, pipelines),
            columns={"n": {"kind": "id"}},
            train_files=[str(tmp_path / "*.csv"), str(tmp_path / "*.gz")],
            batch_size_per_replica=7,
            num_epochs=1,
        )
        found += [n for batch in dataset for n in batch["n"].numpy()]
    assert sorted(found) == list(range(310))
    assert pipelines > 1 or found != sorted(found)


BAD_ROWS = [
    ("0,1,a", "the row has 3 fields, expected 8"),
    ("0,1,a,1,,,0,1,9", "the row has 9 fields, expected 8"),
    ('0,1,"a,1,,,0,1', "the row has"),
    ("0,one,a,1,,,0,1", "column x is one, expected a number that float32 holds"),
    ("0,0x1A,a,1,,,0,1", "column x is 0x1A"),
    ("0,inf,a,1,,,0,1", "column x is inf"),
    ("0,1e39,a,1,,,0,1", "column x is 1e39"),
    ("0,1,a,9223372036854775808,,,0,1", "column id is 9223372036854775808, expected an int"),
    ("0,1,a,1.0,,,0,1", "column id is 1.0"),
    ("0,1,a,1,,1;2,0,1", "column ids is 1;2, expected integers"),
    ("0,1,a,1,,,,1", "column y is missing"),
    ("0,1,a,1,,,0,-1", "column w is -1, expected a number of 0 or more"),
    ("0,1,a,1,,,0,", "column w is missing"),
    ("0,1,\udcff,1,,,0,1", "the line is not UTF-8"),
]


@pytest.mark.slow
def test_a_bad_row_of_a_csv_file_is_named(tmp_path):
    path = tmp_path / "a.csv"
    write(path, LINES[0])
    dataset = csv(ModeKeys.EVAL, batch_size=8, eval_files=str(path))
    for line, text in BAD_ROWS:
        lines = "\n".join([HEADER, LINES[0], line, LINES[0], "bad"])
        path.write_bytes(lines.encode("utf-8", "surrogateescape"))
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            list(dataset)
        assert f"{path} line 3: " in str(caught.value), line
        assert text in str(caught.value), line


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not a CSV file: it has no rows"),
        (b"x,y\n", "is not a CSV file: it has no rows"),
        ("x,y\n1,2\n".encode("utf-16"), "convert UTF-16"),
        (b"x,y,x\n1,2,3\n", "column 'x' is in .* 2 times"),
        (b"xx,y\n1,2\n", "column 'x' is in .* 0 times: expected once.* Did you mean 'xx'"),
        (b"y,x\n1,2\n", "the header of .*z.csv is .'y', 'x'.: expected that of"),
    ],
)
def test_a_bad_csv_file_is_refused_at_the_start(content, text, tmp_path):
    (tmp_path / "z.csv").write_bytes(content)
    if content.startswith(b"y,x"):
        write(tmp_path / "a.csv", "1,2", header="x,y")
    with pytest.raises(ge.UserError, match=text):
        read(csv_input_fn, columns={"x": "number"}, eval_files=str(tmp_path / "*.csv"))
    (tmp_path / "broken.gz").write_bytes(b"x\n1\n")
    with pytest.raises(ge.UserError, match=r"broken.gz is not a CSV file: Not a gzip"):
        read(csv_input_fn, columns={"x": "number"}, eval_files=str(tmp_path / "*.gz"))


test_wrong_declarations_are_refused = refused(
    lambda tmp_path, options: read(
        functools.partial(csv, **options), eval_files=write(tmp_path / "a.csv", *LINES)
    ),
    ({"columns": ["x"]}, "columns is .'x'.: expected a dict"),
    ({"columns": {}}, "label is 'y': expected one of the columns .."),
    ({"columns": {"y": "id"}, "weight": None}, "columns has no features, with label='y'"),
    ({"columns": {"x": "numbr", "y": "id"}}, "column 'x' is 'numbr': expected its kind"),
    ({"columns": {"x": {"kind": "id", "default": "a"}}}, "default is 'a'"),
    ({"label": "z"}, "label is 'z': expected one of the columns"),
    ({"weight": "word"}, "weight is 'word', a column of kind 'word'"),
    ({"delimiter": ""}, "delimiter is ''"),
    ({"missing": "N,A"}, "missing is 'N,A'"),
    ({"names": ["x"]}, "names is .'x'., and the first line"),
    fixtures=["tmp_path"],
)


def test_a_dataframe_has_the_same_rows():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "x": [1.5, None, -20],
            "word": ["a b", None, 'say "hi", you'],
            "id": pandas.array([7, None, 2**63 - 1], "Int64"),
            "tags": ["p;q", None, ["p"]],
            "ids": [[1, 2], [], "-3"],
            "y": [0, 1, 1],
            "w": [1, 0.5, 2],
        },
        index=["a", "b", "c"],
    )
    before = frame.copy()
    dataframe = functools.partial(dataframe_input_fn, columns=COLUMNS, label="y", weight="w")
    [(features, labels)] = read(dataframe, eval_frame=lambda: frame)
    check_rows(features, labels)
    pandas.testing.assert_frame_equal(frame, before)
    [batch] = read(
        dataframe,
        ModeKeys.PREDICT,
        eval_frame=frame[["x", "word", "id", "tags", "ids"]],
        preprocess_batch=lambda x, y: (x["x"], y),
    )
    assert batch.shape == (3,)
    for name, value, text in (
        ("x", "two", "column 'x' is 'two' in row 1 .index 'b'.: expected a number"),
        ("id", 2.5, "column 'id' is 2.5 in row 1"),
        ("id", 2.0**60, "Convert it by astype"),
        ("word", 1.5, "column 'word' is 1.5"),
        ("tags", 3, "column 'tags' is 3 in row 1 .index 'b'.: expected a list of items"),
        ("ids", "1_000", "column 'ids' is '1_000'"),
        ("w", -1, "column 'w' is -1"),
        ("y", None, "column 'y' is None in row 1 .index 'b'.: expected a value"),
    ):
        changed = frame.astype({name: object})
        changed[name] = pandas.Series(
            [frame[name].iloc[0], value, frame[name].iloc[0]], frame.index, dtype=object
        )
        with pytest.raises(ge.UserError, match=text):
            read(dataframe, eval_frame=changed)
    with pytest.raises(ge.UserError, match="eval_frame is None: expected a pandas.DataFrame"):
        read(dataframe)
    with pytest.raises(ge.UserError, match="column 'w' is in eval_frame 0 times"):
        read(dataframe, eval_frame=frame.drop(columns="w"))
    with pytest.raises(ge.UserError, match="eval_frame has no rows"):
        read(dataframe, eval_frame=frame[:0])


def feature(values):
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def write_records(path, *examples):
    options = "GZIP" if path.suffix == ".gz" else ""
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for example in examples:
            found = {name: feature(values) for name, values in example.items()}
            features = tf.train.Features(feature=found)
            writer.write(tf.train.Example(features=features).SerializeToString())
    return str(path)


def test_records_have_the_same_rows(tmp_path):
    rows = [
        {"x": [1.5], "word": [b"a b"], "id": [7], "tags": [b"p", b"q"], "ids": [1, 2]},
        {},
        {"x": [-20.0], "word": [b'say "hi", you'], "id": [2**63 - 1], "tags": [b"p"], "ids": [-3]},
    ]
    rest = [{"y": [0], "w": [1.0]}, {"y": [1], "w": [0.5]}, {"y": [1], "w": [2.0]}]
    path = write_records(tmp_path / "a.gz", *[{**a, **b} for a, b in zip(rows, rest, strict=True)])
    records = functools.partial(tfrecord_input_fn, feature_spec=COLUMNS, label_key="y")
    [(features, labels)] = read(records, eval_files=path)
    check_rows(features, labels)
    bad = write_records(tmp_path / "b.tfrecord", {"y": [0], "w": [1.0]}, {"w": [1.0]})
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"Name: {bad} record 2.*y"):
        read(records, eval_files=bad)
    with pytest.raises(ge.UserError, match="label is 'z'"):
        read(records, label_key="z", eval_files=bad)
    with pytest.raises(ge.UserError, match="expected .dtype, shape"):
        read(records, feature_spec={"y": ("int64",)}, eval_files=bad)


@pytest.mark.thin
@pytest.mark.parametrize("pipelines", [1, 2, 12])
def test_all_pipelines_together_read_each_record_once(pipelines, tmp_path):
    for file in range(3):
        write_records(tmp_path / f"{file}.tfrecord", *[{"n": [10 * file + i, 1]} for i in range(5)])
    found = []
    for index in range(pipelines):
        dataset = tfrecord_input_fn(
            ModeKeys.TRAIN,
            tf.distribute.InputContext(pipelines, index, pipelines),
            feature_spec=lambda: {"n": ("int64", [2]), "s": ("int64", None)},
            train_files=str(tmp_path / "*.tfrecord"),
            preprocess=lambda x, y: (x["n"][0], y),
            batch_size_per_replica=2,
            num_epochs=1,
            shuffle_buffer=4,
        )
        found += [n for batch in dataset for n in batch.numpy()]
    assert sorted(found) == [10 * file + i for file in range(3) for i in range(5)]


@pytest.mark.parametrize("kind", ["csv", "tfrecord"])
def test_a_position_is_saved(kind, tmp_path):
    if kind == "csv":
        path = write(tmp_path / "a.csv", *map(str, range(50)), header="n")
        fn = functools.partial(csv_input_fn, columns={"n": "number"}, train_files=path)
    else:
        path = write_records(tmp_path / "a", *[{"n": [float(i)]} for i in range(50)])
        fn = functools.partial(
            tfrecord_input_fn, feature_spec={"n": "number"}, train_files=path, shuffle_buffer=8
        )
    dataset = fn(ModeKeys.TRAIN, batch_size=4)
    assert dataset.element_spec["n"].shape == (4,)
    iterator = iter(dataset)
    seen = [next(iterator)["n"].numpy().tolist() for _ in range(15)]
    assert sorted(sum(seen[:12], [])) != sum(seen[:12], [])
    path = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "position"))
    again = iter(dataset)
    tf.train.Checkpoint(iterator=again).read(path).assert_consumed()
    for _ in range(3):
        np.testing.assert_array_equal(next(again)["n"], next(iterator)["n"])
