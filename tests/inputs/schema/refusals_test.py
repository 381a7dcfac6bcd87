"""Batches that are not as declared are refused by value; odd ones are encoded."""

import numpy as np
import pytest
import tensorflow as tf

import inputs
from inputs.schema import MISSING_ID, lookups
from pipeline.feed import servers_feed

NAN = float("nan")
SCHEMA = inputs.Schema(
    features={
        "n": {"kind": "number", "default": None},
        "h": {"kind": "number", "buckets": [6, 9], "default": None},
        "w": {"kind": "word", "vocabulary": ["a", "\udcff", "a\0"], "unknown": 0},
        "i": {"kind": "id", "size": 5, "default": None},
        "t": {"kind": "bag of ids", "size": 4},
        "b": {"kind": "bag of words", "vocabulary": ["x", "y"]},
        "c": {"kind": "cross", "of": ["w", "b"], "hash_buckets": 100},
    },
    other_columns={"late": "id"},
)


@pytest.fixture(scope="module")
def encoder():
    return SCHEMA.prepared()


def batch(**others):
    """A batch of three rows, of which some columns are other ones."""
    found = {
        "n": [1.0, np.inf, -np.inf],
        "h": [5.0, 6.0, 9.0],
        "w": [b"a\0", b"\xff", b""],
        "i": tf.constant([0, 4, 2], tf.int64),
        "t": tf.ragged.constant([[3, MISSING_ID], [], [0]], tf.int64),
        "b": tf.ragged.constant([["x", "", "z"], [], ["y"]]),
    }
    return found | others


def as_lists(encoded):
    return {
        name: each.to_list()
        if isinstance(each, tf.RaggedTensor)
        else each.numpy().tolist()
        for name, each in encoded.items()
    }


def test_a_batch_is_encoded(encoder):
    found = as_lists(encoder.encode(batch()))
    assert found["n"] == [1, np.inf, -np.inf]
    assert found["w"] == [2, 1, 3]
    assert found["t"] == [[3], [], [0]]
    assert found["b"] == [[0, 2], [], [1]]
    assert list(map(len, found["c"])) == [2, 0, 1]


REFUSED = {
    "n": ([1.0, NAN, 2.0], "feature n is nan, a missing value, which default=None"),
    "h": ([NAN, 1.0, 2.0], "feature h is nan, a missing value"),
    "w": (["a", "b", "c"], "feature w is b, which is none of the 3 that are known"),
    "i": (tf.constant([0, 5, 6], tf.int64), "i is 5, and size=5 allows 0 to 4: write"),
    "t": (
        tf.ragged.constant([[1], [], [3, -1]], tf.int64),
        "feature t is -1, and size=4 allows 0 to 3",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_is_refused(encoder, name):
    value, message = REFUSED[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        encoder.encode(batch(**{name: value}))


def test_all_that_is_wrong_is_said_at_once_and_in_short(encoder):
    bad = batch(n=[NAN] * 3, w=["b" * 500, "", ""])
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        encoder.encode(bad)
    assert "feature n is nan" in str(raised.value)
    assert f"feature w is {'b' * 80}, which" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n", ["1"] * 3, "Column 'n', a number, is of type string, not float32"),
        ("w", [1, 2, 3], "Column 'w', a word, is of type int32, not string"),
        ("i", [1.0] * 3, "Column 'i', an id, is of type float32, not int64"),
        ("i", tf.constant([1], tf.uint64), "an id, is of type uint64, not int64"),
        ("w", [["a"]] * 3, r"Column 'w', a word, is of shape \(3, 1\): give it as"),
        ("b", ["x y"] * 3, r"a bag of words, is of shape \(3,\): give it as ragged"),
        ("w", tf.ragged.constant([["a"]]), "is ragged, of shape"),
    ],
)
def test_a_column_of_another_kind_is_refused(encoder, name, value, message):
    with pytest.raises((ValueError, TypeError), match=message):
        encoder.encode(batch(**{name: value}))


def test_a_column_that_is_absent_is_named(encoder):
    columns = batch()
    del columns["w"]
    with pytest.raises(
        ValueError, match="Feature 'w' is made of column 'w', and the b"
    ):
        encoder.encode(columns)


def test_sparse_bags_and_narrow_integers_are_taken(encoder):
    narrow = batch(i=np.array([0, 4, 2], np.int32), b=batch()["b"].to_sparse())
    assert as_lists(encoder.encode(narrow)) == as_lists(encoder.encode(batch()))


def test_a_pipeline_encodes_batches_of_any_size_and_its_position_is_saved(
    encoder, tmp_path
):
    rows = tf.data.Dataset.from_tensor_slices(batch()).repeat(5)

    options = tf.data.Options()
    options.autotune.enabled = False  # Its thread would hold up each iterator's end.

    def encoded(**arguments):
        batches = rows.batch(4, **arguments)
        return batches.map(encoder.encode, num_parallel_calls=2).with_options(options)

    batches = encoded()

    specs = encoded(drop_remainder=True).element_spec
    assert {spec.shape[0] for spec in specs.values()} == {4}
    iterator = iter(batches)
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "position"))
    rest = [as_lists(each) for each in iterator]
    assert [len(each["n"]) for each in rest] == [4, 4, 3]
    again = iter(batches)
    tf.train.Checkpoint(iterator=again).restore(path)
    assert [as_lists(each) for each in again] == rest
    # What a worker of parameter servers is sent.
    sent = tf.raw_ops.DatasetFromGraph(graph_def=servers_feed.graph_of(batches))
    arrived = tf.data.experimental.from_variant(sent, batches.element_spec)
    assert [as_lists(each) for each in arrived][1:] == rest


def test_an_empty_batch_is_encoded(encoder):
    one = next(iter(tf.data.Dataset.from_tensor_slices(batch()).take(1).batch(1)))
    none = encoder.encode({name: each[:0] for name, each in one.items()})
    assert {each.shape[0] for each in none.values()} == {0}
    assert {each.dtype for name, each in none.items() if name != "n"} == {tf.int32}


def test_words_of_one_hash_are_told_apart(monkeypatch):
    """Where a hash has too few numbers the next one is taken."""
    few = lambda words: tf.strings.to_hash_bucket_fast(words, 2)  # noqa: E731
    some = lambda words: tf.strings.to_hash_bucket_fast(words, 1000)  # noqa: E731
    monkeypatch.setattr(lookups, "_HASHES", (few, some))
    known = [f"word {n}" for n in range(20)]
    others = [f"other {n}" for n in range(3000)]
    schema = inputs.Schema(features={"w": {"kind": "word", "vocabulary": known}})
    found = schema.prepared().encode({"w": known + others})["w"].numpy()
    assert found[:20].tolist() == list(range(20))
    assert set(found[20:]) == {20}


def test_a_server_is_sent_columns_or_examples(encoder):
    receiver = encoder.serving_input_receiver_fn()
    examples = receiver.alternatives["examples"]
    sent = {
        "n": [1.0, 2.0],
        "h": [6.0, 9.0],
        "w": ["a", ""],
        "i": tf.constant([4, 0], tf.int64),
        "t": ["3  1 ", ""],
        "b": ["x z", "y"],
    }
    serialized = [
        example(n=1.0, h=6.0, w=b"a", i=4, t=[3, 1], b=[b"x", b"z"]),
        example(n=2.0, h=9.0, i=0, b=[b"y"]),
    ]
    by_columns, by_examples = traced(receiver), traced(examples)
    found = by_columns(**sent)
    assert as_lists(found) == as_lists(by_examples(examples=serialized))
    with pytest.raises(tf.errors.InvalidArgumentError, match="feature n is nan"):
        by_columns(**sent | {"n": [NAN, 1.0]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="n \\(data type: float"):
        by_examples(examples=[example(h=6.0, i=0)])


def test_columns_are_sent_under_names_that_a_signature_can_have():
    columns = ["n", "class", "dep time", "dep_time", "1st", "größe/x"]
    schema = inputs.Schema(
        features={name: {"kind": "number", "default": 0.0} for name in columns}
    )
    receiver = schema.prepared().serving_input_receiver_fn()
    names = ["n", "class_", "dep_time_2", "dep_time", "arg_1st", "gr__e_x"]
    assert list(receiver.receiver_specs) == names
    found = traced(receiver)(**{name: [float(i)] for i, name in enumerate(names)})
    assert [float(found[name][0]) for name in columns] == [0, 1, 2, 3, 4, 5]


def traced(receiver):
    """The features of what is sent, by a graph without tables or variables."""
    by_name = tf.function(lambda **sent: receiver.to_features(sent), autograph=False)
    concrete = by_name.get_concrete_function(**receiver.receiver_specs)
    assert tf.resource not in {each.dtype for each in concrete.captured_inputs}
    return lambda **sent: concrete(**{k: tf.constant(v) for k, v in sent.items()})


def example(**values):
    """A serialized tf.train.Example."""
    found = tf.train.Example()
    for name, value in values.items():
        items = value if isinstance(value, list) else [value]
        lists = found.features.feature[name]
        kinds = {
            float: lists.float_list,
            int: lists.int64_list,
            bytes: lists.bytes_list,
        }
        kinds[type(items[0])].value.extend(items)
    return found.SerializeToString()
