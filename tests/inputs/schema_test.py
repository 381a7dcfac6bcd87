"""Schemas: rows of tf.feature_column, statistics, their record, and serving."""

import functools
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from gin_estimator.inputs import Schema, csv_input_fn

import gin_estimator as ge
from gin_estimator import ModeKeys
from refusals import refused

RECORDED = json.loads(pathlib.Path(__file__).with_name("feature_columns.json").read_text())


def as_bytes(text):
    return text.encode("utf-8", "surrogateescape")


def test_rows_are_those_of_feature_columns():
    """feature_columns.json has the rows of TensorFlow 2.15.1."""
    found = RECORDED["columns"]
    columns = {
        "word": tf.constant([as_bytes(word) for word in found["word"]]),
        "id": tf.constant(found["id"], tf.int64),
        "hour": tf.constant(found["hour"]),
        "tags": tf.ragged.constant(
            [[as_bytes(t) for t in bag] for bag in found["tags"]], tf.string
        ),
    }
    cases = RECORDED["cases"]
    features = {name: case["feature"] for name, case in cases.items()}
    encoded = Schema(RECORDED["parts"] | features).prepared().encode(columns)
    for name, case in cases.items():
        rows = encoded[name]
        if isinstance(rows, tf.RaggedTensor):
            assert rows.to_list() == case["rows"], name
        else:
            # There -1 is a missing id.
            pairs = [(r, e) for r, e in zip(rows.numpy(), case["rows"], strict=True) if e]
            assert len(pairs) >= 9 and all([r] == e for r, e in pairs), name


FEATURES = {
    "x": {"kind": "number", "scale": "standard", "indicator": True},
    "log": {"kind": "number", "column": "x", "log": True, "default": 0.0, "clip": (-1, 1)},
    "bucket": {"kind": "number", "column": "x", "buckets": 2},
    "word": {"kind": "word", "unknown": 2},
    "same": {"kind": "word", "column": "word", "shared_with": "word"},
    "tags": {"kind": "bag of words", "separator": ";", "min_count": 2, "unknown": 0},
    "hour": {"kind": "id", "size": 3, "default": 0},
    "both": {"kind": "cross", "of": ["word", "hour"], "hash_buckets": 10},
}
LINES = ["x,word,tags,hour,late", "1,b,p;q,0,1", "2,a,p,1,0", ",,,,1", "6,b,q,9,0"]


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("\n".join(LINES))
    source = functools.partial(csv_input_fn, columns=None, label="late", train_files=str(path))
    return Schema(FEATURES, {"late": "id"}, source=source)


@pytest.mark.slow
def test_a_reader_encodes_by_the_statistics_of_the_training_data(schema, tmp_path):
    path = schema.source.keywords["train_files"]
    [(features, labels)] = csv_input_fn(
        ModeKeys.EVAL, columns=schema, label="late", eval_files=path, batch_size=8
    )
    values = np.array([1, 2, 6])
    expected = (np.array([1, 2, 3, 6]) - 3) / values.std()
    np.testing.assert_allclose(features["x"], expected, rtol=1e-6)
    assert features["x_missing"].numpy().tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(features["log"], [np.log(2), 1, 0, 1], rtol=1e-6)
    assert features["bucket"].numpy().tolist() == [0, 1, 2, 1]
    assert features["word"].numpy().tolist() == [0, 1, 4, 0]
    assert features["same"].numpy().tolist() == [0, 1, 4, 0]
    assert features["tags"].to_list() == [[0, 1], [0], [], [1]]
    assert features["hour"].numpy().tolist() == [0, 1, 0, 0]
    assert labels.numpy().tolist() == [1, 0, 1, 0]
    fields = {field.name: field for field in schema.prepared().fields}
    assert (fields["word"].size, fields["same"].table, fields["tags"].kind) == (5, "word", "bag")
    assert fields["word"].embedding == round(1.6 * 5**0.56)
    assert fields["both"].embedding is None


def test_the_record_of_a_run(schema, tmp_path):
    config = ge.RunConfig(str(tmp_path / "run"))
    before = schema.prepared(config)
    record = json.loads((tmp_path / "run" / "schema.json").read_text())
    assert record["statistics"]["word"]["vocabulary"] == ["b", "a"]
    assert record["num_rows"] == 4
    # gin sorts dicts: the order of the run remains, and nothing is read again.
    again = Schema({k: FEATURES[k] for k in sorted(FEATURES)}, {"late": "id"})
    assert again.prepared(config).fields == before.fields
    other = Schema(FEATURES | {"hour": {"kind": "id", "size": 4}}, source=schema.source)
    other_run = Schema(FEATURES, {"late": "id"}, statistics=str(tmp_path / "run" / "schema.json"))
    assert other_run.prepared(ge.RunConfig(str(tmp_path / "b"))).fields == before.fields
    variable = tf.Variable(0)
    tf.train.Checkpoint(v=variable).save(str(tmp_path / "run" / "model.ckpt"))
    with pytest.raises(ge.UserError, match="feature 'hour' is .*: expected .*schema.json has it"):
        other.prepared(config)
    (tmp_path / "run" / "schema.json").unlink()
    with pytest.raises(ge.UserError, match="schema.json is missing"):
        schema.prepared(config)


def test_values_are_refused_by_feature(schema):
    encoder = Schema(
        {
            "x": {"kind": "number", "default": None},
            "w": {"kind": "word", "vocabulary": ["a"], "unknown": 0},
            "i": {"kind": "id", "size": 2},
        }
    ).prepared()
    good = {"x": tf.constant([1.0]), "w": tf.constant(["a"]), "i": tf.constant([1], tf.int64)}
    assert {name: v.numpy().tolist() for name, v in encoder.encode(good).items()} == {
        "x": [1],
        "w": [0],
        "i": [1],
    }
    for name, value, text in (
        ("x", [np.nan], "feature x: expected a value.*nan"),
        ("w", ["b"], "feature w: expected one of the 1 known.*b"),
        ("i", np.int64([2]), "feature i: expected an id from 0 to 1.*2"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            encoder.encode(good | {name: tf.constant(value)})
    with pytest.raises(ge.UserError, match="column 'w' is float32"):
        encoder.encode(good | {"w": tf.constant([1.0])})
    with pytest.raises(ge.UserError, match="feature 'w' needs the column 'w'"):
        encoder.encode({"x": good["x"]})


def test_a_server_takes_columns_or_examples():
    encoder = Schema(
        {"class": "word", "tags": {"kind": "bag of words", "hash_buckets": 5}}
        | {"class": {"kind": "word", "vocabulary": ["a", "b"]}}
    ).prepared()
    receiver = encoder.serving_input_receiver_fn()
    assert {*receiver.receiver_specs} == {"class_", "tags"}
    sent = {"class_": tf.constant(["b", "", "z"]), "tags": tf.constant(["p q", "", "p"])}
    features = receiver.to_features(sent)
    assert features["class"].numpy().tolist() == [1, 3, 2]
    assert [len(bag) for bag in features["tags"].to_list()] == [2, 0, 1]
    word = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"b"]))
    example = tf.train.Example(features=tf.train.Features(feature={"class": word}))
    examples = {"examples": tf.constant([example.SerializeToString()])}
    parsed = receiver.alternatives["examples"].to_features(examples)
    assert parsed["class"].numpy().tolist() == [1]
    assert parsed["tags"].to_list() == [[]]


test_wrong_declarations_are_refused = refused(
    lambda features: Schema(features, {"late": "id"}),
    ({"a": "wrd"}, "expected its kind, one of .*Did you mean 'word'"),
    ({"a": {"kind": "word", "hash_bucket": 3}}, "Did you mean 'hash_buckets'"),
    ({"a": {"kind": "id", "size": 2, "hash_buckets": 3}}, "size and hash_buckets are set"),
    ({"a": {"kind": "word", "size": 2}}, "has the argument 'size'"),
    ({"a": {"kind": "number", "buckets": [2, 1]}}, "expected ascending numbers"),
    ({"a": {"kind": "word", "vocabulary": ["x", "x"]}}, "2 items, 1 different"),
    (
        {
            "a": "number",
            "b": "word",
            "c": {"kind": "cross", "of": ["a", "b"], "hash_buckets": 2},
        },
        "feature 'c' crosses 'a'",
    ),
    ({"a": {"kind": "word", "shared_with": "b"}}, "names 'b': expected another feature"),
    ({"a": "word", "b": {"kind": "id", "column": "a"}}, "column 'a' is read as"),
    ({"late": "word"}, "'late' is the name of two of features"),
)


def test_statistics_need_a_source_that_ends():
    with pytest.raises(ge.UserError, match="Schema.source is None, and .'a'. need statistics"):
        Schema({"a": "word"}).prepared()

    def endless(mode, columns):
        return tf.data.Dataset.from_tensors({"a": ["x"]}).repeat()

    with pytest.raises(ge.UserError, match="Schema.source has no end"):
        Schema({"a": "word"}, source=endless).prepared()
