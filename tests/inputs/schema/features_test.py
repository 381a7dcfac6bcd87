"""Declarations of features: what they are read as, and which are refused."""

import gzip

import pytest

import inputs
from inputs.schema import MISSING_ID, vocabulary_file

X = {"kind": "number", "default": 0.0}
WORD = {"kind": "word", "vocabulary": ["a", "b"]}

# A declaration of features, and what is said of it.
MISTAKES = {
    "no features": ({}, "features is empty: write what to learn from"),
    "no dict": ([X], "features is .*: write a dict of names and kinds"),
    "name": ({7: X}, "a name is 7: write a word"),
    "kind": ({"x": "words"}, "Feature 'x': kind is 'words': .* Did you mean word"),
    "neither": ({"x": 7}, "Feature 'x' is 7: write its kind"),
    "no kind": ({"x": {"log": True}}, "Feature 'x' is .*: write its kind"),
    "argument": (
        {"x": X | {"scal": "standard"}},
        "Feature 'x': scal is no argument of kind 'number'.* Did you mean scale",
    ),
    "of another kind": ({"x": X | {"vocabulary": ["a"]}}, "vocabulary is no argument"),
    "column": ({"x": X | {"column": ""}}, r"column\[0\] is ''"),
    "wide": ({"x": X | {"wide": 1}}, "wide is 1: write wide=True or False"),
    "embedding": (WORD | {"embedding": 0}, "embedding is 0: .* or embedding='one_hot'"),
    "embedding of a number": ({"x": X | {"embedding": 3}}, "embedding is 3, of a numb"),
    "default": ({"x": X | {"default": "0"}}, "default is '0': write numbers"),
    "default beyond": ({"x": X | {"default": 1e39}}, "default is 1e.39: write numbers"),
    "scale": ({"x": X | {"scale": "max"}}, "scale is 'max': write scale='standard' or"),
    "clip": ({"x": X | {"clip": [0]}}, r"clip is \[0\]: write 2 numbers"),
    "clip order": (
        {"x": X | {"clip": [1, 0]}},
        r"does not ascend: write clip=\[0.0, 1",
    ),
    "buckets": ({"x": X | {"buckets": [1, 1]}}, "does not ascend"),
    "no buckets": ({"x": X | {"buckets": []}}, r"buckets is \[\]: write some numbers"),
    "one bucket": ({"x": X | {"buckets": 1}}, "buckets is 1: write an integer of 2"),
    "buckets and log": (
        {"x": X | {"buckets": [1], "log": True}},
        "log is True, and buckets=.*: a number in buckets is a category; leave log out",
    ),
    "indicator": (
        {"x": {"kind": "number", "default": None, "indicator": True}},
        "indicator is True, and default is None",
    ),
    "two ways": (
        WORD | {"hash_buckets": 5},
        "vocabulary and hash_buckets are given: write one",
    ),
    "size of words": ({"x": {"kind": "word", "size": 3}}, "size is 3, of words: write"),
    "size": ({"x": {"kind": "id", "size": 2.5}}, "size is 2.5: write an integer of 1"),
    "idle": (WORD | {"min_count": 2}, "min_count is 2, which means nothing beside voc"),
    "idle unknown": (
        {"x": {"kind": "word", "hash_buckets": 3, "unknown": 2}},
        "unknown is 2, which means nothing beside hash_buckets",
    ),
    "twice": (WORD | {"vocabulary": ["a", "b", "a"]}, r"vocabulary\[2\] is 'a', which"),
    "empty word": (WORD | {"vocabulary": ["a", ""]}, r"vocabulary\[1\] is ''"),
    "ids as words": (
        WORD | {"vocabulary": [1]},
        r"vocabulary\[0\] is 1, none of the w",
    ),
    "words as ids": (
        {"x": {"kind": "id", "vocabulary": ["1"]}},
        r"vocabulary\[0\] is '1', none of the ids",
    ),
    "the id of missing ones": (
        {"x": {"kind": "id", "vocabulary": [MISSING_ID]}},
        r"vocabulary\[0\] is -9223372036854775808, none of the ids",
    ),
    "unknown default": (
        WORD | {"default": "c", "unknown": 0},
        "default is 'c', which is none of the 2 that are known",
    ),
    "default beyond size": (
        {"x": {"kind": "id", "size": 3, "default": 3}},
        "default is 3, which is none of the 3 that are known",
    ),
    "combiner": (
        {"x": {"kind": "bag of ids", "size": 3, "combiner": "max"}},
        "combiner is 'max': write combiner='mean' or 'sum' or 'sqrtn'",
    ),
    "combiner of no bag": (
        {
            "v": {"kind": "id", "size": 3},
            "w": WORD,
            "x": {
                "kind": "cross",
                "of": ["v", "w"],
                "hash_buckets": 3,
                "combiner": "sum",
            },
        },
        "Feature 'x': combiner is 'sum', and of names no bag",
    ),
    "separator": (
        {"x": {"kind": "bag of ids", "size": 3, "separator": ", "}},
        "separator is ', ': write one character",
    ),
    "of one": (
        {"x": {"kind": "cross", "of": ["y"], "hash_buckets": 3}},
        r"of is \['y'\]: write the names of two",
    ),
    "of nothing": ({"x": {"kind": "cross", "of": ["y", "z"]}}, "hash_buckets is not g"),
    "of a stranger": (
        {"w": WORD, "x": {"kind": "cross", "of": ["w", "ww"], "hash_buckets": 3}},
        "Feature 'x': of is 'ww', which is no other feature: write one of .'w'.",
    ),
    "of a number": (
        {
            "w": WORD,
            "y": X,
            "x": {"kind": "cross", "of": ["w", "y"], "hash_buckets": 3},
        },
        "of has 'y', a number: write words, ids, bags, or numbers with buckets",
    ),
    "of a cross": (
        {
            "v": WORD,
            "w": WORD,
            "x": {"kind": "cross", "of": ["v", "w"], "hash_buckets": 3},
            "y": {"kind": "cross", "of": ["x", "v"], "hash_buckets": 3},
        },
        r"of has 'x', a cross: .*, of=\[..., 'v', 'w'\]",
    ),
    "column of a cross": (
        {"x": {"kind": "cross", "of": ["v", "w"], "hash_buckets": 3, "column": "v"}},
        "column is 'v', of a cross: leave it out",
    ),
    "shared with itself": (
        {"x": {"kind": "word", "shared_with": "x"}},
        "shared_with is 'x', which is no other feature",
    ),
    "shared with ids": (
        {"w": {"kind": "id", "size": 3}, "x": {"kind": "word", "shared_with": "w"}},
        "shared_with is 'w', an id: write the name of a feature of words",
    ),
    "shared with a number": (
        {"w": X, "x": {"kind": "word", "shared_with": "w"}},
        "shared_with is 'w', a number: write",
    ),
    "shared with one that shares": (
        {
            "v": WORD,
            "w": {"kind": "word", "shared_with": "v"},
            "x": {"kind": "word", "shared_with": "w"},
        },
        "shared_with is 'w', a word that shares itself",
    ),
    "shared and other vectors": (
        {
            "w": WORD | {"embedding": 3},
            "x": {"kind": "word", "shared_with": "w", "embedding": 4},
        },
        "embedding is 4, and that of 'w', whose vectors it shares, is 3",
    ),
    "an indicator's name": (
        {"x": X | {"indicator": True}, "x_missing": X},
        "'x_missing' is the name of a feature and of the indicator of feature 'x'",
    ),
    "one column as two kinds": (
        {"x": X, "w": WORD | {"column": "x"}},
        "Column 'x' is .* of feature 'x' and .* of feature 'w': a column is read once",
    ),
}


def features_of(mistake):
    return (
        {"x": mistake} if isinstance(mistake, dict) and "kind" in mistake else mistake
    )


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused(name):
    features, message = MISTAKES[name]
    with pytest.raises((ValueError, TypeError), match=message):
        inputs.Schema(features=features_of(features))


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"x": "id"}, "'x' is the name of a feature and of one of other_columns"),
        ({"y": "words"}, "Column 'y': kind is 'words'"),
        (["y"], "other_columns is .'y'.: write a dict"),
        ({"raw": "id"}, "Column 'raw' is .* of other_columns.'raw'. and .* of feature"),
    ],
)
def test_other_columns_are_checked(others, message):
    features = {"x": X, "y_of": X | {"column": "raw"}}
    with pytest.raises((ValueError, TypeError), match=message):
        inputs.Schema(features=features, other_columns=others)


def test_columns_are_read_once_and_refuse_what_any_feature_refuses():
    schema = inputs.Schema(
        features={
            "x": X,
            "x_bucket": {"kind": "number", "column": "x", "buckets": [1, 2]},
            "late_x": {"kind": "number", "column": "x", "default": None},
            "tags": inputs.Bag(vocabulary=["a"], separator=";"),
            "plane": {"kind": "id", "size": 9, "default": 3},
        },
        other_columns={"label": {"kind": "id", "default": 0}},
    )
    assert schema.columns == {
        "label": inputs.Column("id", default=0),
        "x": inputs.Column("number", default=None),
        "tags": inputs.Column("bag of words", separator=";"),
        "plane": inputs.Column("id", default=MISSING_ID),
    }


def test_equal_declarations_are_equal_schemas():
    made = inputs.Schema(
        features={"x": "word", "n": {"kind": "number", "clip": [0, 1], "default": 0}}
    )
    again = inputs.Schema(
        features={
            "x": inputs.Category(),
            "n": inputs.Number(clip=(0.0, 1.0), default=0.0),
        },
        source=print,
    )
    other_order = inputs.Schema(features=dict(reversed(made.features.items())))
    assert made == again
    assert len({made, again, other_order}) == 2


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_vocabulary_of_a_file_is_that_of_its_lines(tmp_path, suffix):
    path = tmp_path / f"words.txt{suffix}"
    text = "\ufeffb\r\na b\nü\u2028\n7".encode() + b"\n\xff\n"
    path.write_bytes(gzip.compress(text) if suffix else text)
    feature = inputs.Category(vocabulary=str(path))
    assert feature.vocabulary == ("b", "a b", "ü\u2028", "7", "\udcff")
    listed = inputs.Category(vocabulary=["b", "a b", "ü\u2028", "7", "\udcff"])
    by_file = inputs.Schema(features={"x": feature})
    assert by_file == inputs.Schema(features={"x": listed})


@pytest.mark.parametrize(
    ("text", "ids", "message"),
    [
        (b"a\n\nb", False, "line 2 is empty, and stands for no word"),
        (b"a\nb\na\n", False, "line 3 is 'a', as line 1 is: write each once"),
        (b"", False, "words.txt is empty: write the vocabulary into it"),
        (b"1\n1.5", True, "line 2 is '1.5', no integer that int64 holds"),
        (b"1\n 1", True, "line 2 is 1, as line 1 is"),
        (b"9223372036854775808", True, "line 1 is '9223372036854775808', no integer"),
        (None, False, "which is no file: write the path"),
    ],
)
def test_a_vocabulary_file_that_is_none_is_refused(tmp_path, text, ids, message):
    path = tmp_path / "words.txt"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ValueError, match=message):
        vocabulary_file.read_vocabulary(str(path), ids=ids)


def test_a_file_that_changes_is_read_anew(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\nb\n")
    before = inputs.Category(vocabulary=str(path))
    path.write_text("a\nbc\n")
    assert before.vocabulary == ("a", "b")
    assert inputs.Category(vocabulary=str(path)).vocabulary == ("a", "bc")
