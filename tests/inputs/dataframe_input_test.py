import gin
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import inputs
from pipeline import ModeKeys

FRAME = pd.DataFrame(
    {
        "number": [1, 2.5, np.nan],
        "flag": [True, False, True],
        "word": ["a", None, "é"],
        "category": pd.Categorical(["u", "v", "u"]),
        "code": [7, 8, 9],
        "gap": [1, np.nan, 3],
        "nullable": pd.array([2**60 + 1, None, 2], dtype="Int64"),
        "objects": [1, "x", None],
        "floats": pd.Series([1.0, None, 3], dtype=object, index=["k", "l", "m"]),
        "kinds": pd.Categorical([2**60 + 1, None, 2], categories=[2, 2**60 + 1]),
        "small": np.float32([2**24, 2**24 + 2, np.nan]),
        "text_ids": ["1_000", "1", "2"],
        "words": [["x", "y"], None, "z  w"],
        "ids": [np.array([1]), "", "2 3"],
        "large": [1e39, 0, -1],
        "day": pd.to_datetime(["2013-01-01"] * 3),
    },
    index=["k", "l", "m"],
)
NAN = float("nan")


def read(columns, mode=ModeKeys.EVAL, frame=FRAME, **arguments):
    arguments = {"batch_size": 3, "train_frame": frame, "eval_frame": frame} | arguments
    return inputs.dataframe_input_fn(mode, columns=columns, **arguments)


@pytest.mark.parametrize(
    ("name", "column", "values"),
    [
        ("number", "number", [1, 2.5, NAN]),
        ("number", {"kind": "number", "default": -1.0}, [1, 2.5, -1]),
        ("flag", "number", [1, 0, 1]),
        ("nullable", "number", [2.0**60, NAN, 2]),
        ("word", "word", [b"a", b"", "é".encode()]),
        ("word", {"kind": "word", "default": "none"}, [b"a", b"none", "é".encode()]),
        ("category", "word", [b"u", b"v", b"u"]),
        ("code", "word", [b"7", b"8", b"9"]),
        ("code", "id", [7, 8, 9]),
        ("gap", {"kind": "id", "default": -1}, [1, -1, 3]),
        ("nullable", {"kind": "id", "default": -1}, [2**60 + 1, -1, 2]),
        ("floats", {"kind": "id", "default": -1}, [1, -1, 3]),
        ("kinds", {"kind": "id", "default": -1}, [2**60 + 1, -1, 2]),
        ("kinds", "word", [str(2**60 + 1).encode(), b"", b"2"]),
        ("words", "bag of words", [[b"x", b"y"], [], [b"z", b"w"]]),
        ("ids", "bag of ids", [[1], [], [2, 3]]),
    ],
)
def test_values(name, column, values):
    dataset = read({name: column}, mode=ModeKeys.TRAIN, shuffle=False)
    assert dataset.element_spec[name].shape[0] == 3
    tensor = next(iter(dataset))[name]
    if isinstance(tensor, tf.RaggedTensor):
        assert tensor.to_list() == values
    else:
        np.testing.assert_array_equal(tensor.numpy(), values)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("word", "number", r"is 'a' in row 0 \(index 'k'\): it is not a number"),
        ("objects", "number", r"is 'x' in row 1 \(index 'l'\): it is not a number"),
        ("large", "number", "1e.39.* in row 0 .* not a number that float32"),
        ("day", "number", "in row 0 .*: it is not a number"),
        ("gap", "id", "nan.* in row 1 .*: take the row out, or write a default"),
        ("category", "id", "is 'u' in row 0 .*: it is not an integer"),
        ("large", {"kind": "id", "default": 0}, "in row 0 .*: it is not an integer"),
        ("number", {"kind": "id", "default": 0}, "2.5.* in row 1 .* not an integer"),
        ("small", {"kind": "id", "default": 0}, "in row 1 .*: it is not an integer"),
        ("text_ids", "bag of ids", "is '1_000' in row 0 .*: it is no bag of ids"),
        ("number", "word", "in row 0 .*: it is no word: write .*astype"),
        ("flag", "word", "in row 0 .*: it is no word"),
        ("words", "bag of ids", "in row 0 .*: it is no bag of ids: write a list"),
        ("word", "bag of ids", "is 'a' in row 0 .*: it is no bag of ids"),
        ("code", "bag of words", "in row 0 .*: it is no bag of words"),
        ("wodr", "word", "Column 'wodr' .* 0 of that name.* Did you mean word"),
    ],
)
def test_values_that_are_refused(name, kind, words):
    with pytest.raises(ValueError, match=words):
        read({name: kind})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"label": "word"}, "Column 'word' is .* in row 1 .*: take the row out"),
        ({"weight": "large"}, "'large' is .*-1.* in row 2 .* a number of 0 or more"),
        ({"frame": {"word": ["a"]}}, "eval_frame is {'word': .*: write a pandas.Data"),
        ({"frame": None}, "eval_frame is None: write a pandas.DataFrame"),
        ({"frame": FRAME[:0]}, "eval_frame has no rows"),
    ],
)
def test_errors(arguments, words):
    columns = {"word": "word", "large": "number", "code": "id"}
    frame = FRAME.assign(large=[1, 0, -1.0])
    with pytest.raises((TypeError, ValueError), match=words):
        read(columns, **{"frame": frame} | arguments)


def test_what_a_type_holds_as_nan_is_missing():
    """As Arrow's floats do, of which pandas says that they are there."""
    values = pd.arrays.FloatingArray(np.array([1.0, NAN]), np.array([False, False]))
    frame = pd.DataFrame({"x": values})
    assert not frame["x"].isna().any()
    column = {"kind": "number", "default": 5.0}
    tensor = next(iter(read({"x": column}, frame=frame)))["x"]
    assert tensor.numpy().tolist() == [1, 5]


def test_the_frame_stays_as_it_is():
    before = FRAME.copy(deep=True)
    read({"number": {"kind": "number", "default": 0.0}, "code": "id"})
    pd.testing.assert_frame_equal(FRAME, before)


def test_preprocess_gets_a_batch():
    def preprocess(features, labels):
        return features["code"] + 1, labels

    columns = {"code": "id", "flag": "number"}
    arguments = {"label": "flag", "preprocess_batch": preprocess}
    features, labels = next(iter(read(columns, **arguments)))
    assert features.numpy().tolist() == [8, 9, 10]
    assert labels.numpy().tolist() == [1, 0, 1]
    predicted = next(iter(read(columns, mode=ModeKeys.PREDICT, **arguments)))
    assert predicted.numpy().tolist() == [8, 9, 10]


def test_it_starts_anywhere():
    columns = {"code": "id"}
    whole = read(columns, mode=ModeKeys.TRAIN, batch_size=2)
    part = read(columns, mode=ModeKeys.TRAIN, batch_size=2, first_batch=3)
    for expected, batch in zip(whole.skip(3).take(4), part.take(4), strict=True):
        assert batch["code"].numpy().tolist() == expected["code"].numpy().tolist()


@pytest.mark.parametrize("mode", [ModeKeys.TRAIN, ModeKeys.PREDICT])
def test_pipelines_share_every_row_once(mode):
    frame = pd.DataFrame({"code": range(23)})
    arguments = {"frame": frame, "batch_size": None, "batch_size_per_replica": 4}
    parts = [
        read(
            {"code": "id"},
            mode=mode,
            input_context=tf.distribute.InputContext(3, pipeline, 3),
            num_epochs=1,
            **arguments,
        )
        for pipeline in range(3)
    ]
    seen = [code for part in parts for batch in part for code in batch["code"].numpy()]
    assert sorted(seen) == list(range(23))


def test_from_gin():
    gin.external_configurable(lambda: FRAME, "my_frame", module="test")
    gin.parse_config(
        """
        dataframe_input_fn.eval_frame = @test.my_frame
        dataframe_input_fn.columns = {'code': 'id'}
        dataframe_input_fn.batch_size = 4
        """
    )
    try:
        features = next(iter(inputs.dataframe_input_fn(ModeKeys.EVAL)))
    finally:
        gin.clear_config()
    assert features["code"].numpy().tolist() == [7, 8, 9]
