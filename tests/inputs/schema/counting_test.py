"""Statistics of awkward data, against NumPy's."""

import math

import numpy as np
import pytest
import tensorflow as tf

import inputs
from inputs.schema import counting, statistics
from pipeline import ModeKeys
from pipeline.mistakes.user_errors import StepError

NAN = float("nan")


def source_of(batch_size=7, **columns):
    """A source that yields columns; lists of lists become bags."""

    def source():
        tensors = {
            name: tf.ragged.constant(values, ragged_rank=1)
            if isinstance(values[0], list)
            else tf.constant(values)
            for name, values in columns.items()
        }
        return tf.data.Dataset.from_tensor_slices(tensors).batch(batch_size)

    return source


def counted(feature, values, **arguments):
    """The statistics of one feature's column."""
    schema = inputs.Schema(
        features={"x": feature}, source=source_of(x=values, **arguments)
    )
    return counting.count(schema).by_feature["x"]


AWKWARD = {
    "large": 1e6 + np.random.default_rng(0).normal(size=100),
    "tiny": 1e-30 * np.arange(100),
    "skew": np.random.default_rng(1).exponential(1e9, 100),
    "one": np.array([3.0]),
    "equal": np.full(20, 0.1),
}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("name", AWKWARD)
def test_moments_are_those_of_all_values(name, log):
    x = AWKWARD[name].astype(np.float32)
    with_gaps = np.insert(x, [0, len(x) // 2, len(x)], np.nan)
    feature = {"kind": "number", "scale": "standard", "log": log}
    found = counted(feature, with_gaps)
    x = x.astype(np.float64)
    x = np.sign(x) * np.log1p(np.abs(x)) if log else x
    assert found.mean == pytest.approx(x.mean(), rel=1e-14)
    assert found.std == pytest.approx(x.std(), rel=1e-8, abs=1e-16)
    assert (found.minimum, found.maximum) == (x.min(), x.max())


@pytest.mark.parametrize("log", [False, True])
def test_equal_numbers_deviate_by_nothing(log):
    feature = {"kind": "number", "scale": "standard", "log": log}
    found = counted(feature, np.full(997, 3.25, np.float32), batch_size=100)
    assert found.std == 0
    assert found.mean == found.minimum == found.maximum


def test_batches_do_not_matter():
    x = AWKWARD["large"].astype(np.float32)
    feature = {"kind": "number", "scale": "standard"}
    found = [counted(feature, x, batch_size=size) for size in (1, 9, 1000)]
    assert [f.std for f in found] == pytest.approx([found[0].std] * 3, rel=1e-10)


def buckets(values, number):
    return counted({"kind": "number", "buckets": number}, np.float32(values)).boundaries


def test_quantiles_are_exact():
    x = np.random.default_rng(2).normal(size=1000).astype(np.float32)
    expected = np.quantile(x.astype(np.float64), np.arange(1, 8) / 8)
    assert buckets(x, 8) == tuple(expected.astype(np.float32).tolist())


def test_equal_quantiles_are_one_boundary(log):
    assert buckets([0, 0, 0, 0, 0, 0, 1, 2, 3, 4, NAN], 5) == tuple(
        np.float32([0.4, 2.2]).tolist()
    )
    assert "feature 'x' has 3 buckets, not 5" in log()[-1]
    assert buckets([7, 7, 7], 4) == ()


def test_many_values_are_sampled_alike_each_time(monkeypatch):
    monkeypatch.setattr(statistics, "_MOST_VALUES", 500)
    x = np.arange(20000)
    first = buckets(x, 4)
    assert buckets(x, 4) == first
    # The sample's quartiles scatter by 2 % of the range.
    np.testing.assert_allclose(first, [5000, 10000, 15000], atol=2000)


@pytest.mark.parametrize(
    ("feature", "values", "vocabulary"),
    [
        ("word", ["b", "a", "", "c", "b", "a", ""], ("a", "b", "c")),
        ({"kind": "word", "min_count": 2}, ["b", "a", "b"], ("b",)),
        ({"kind": "word", "max_size": 2}, ["c", "b", "a", "c"], ("c", "a")),
        ({"kind": "word", "default": "-"}, ["", "a", ""], ("-", "a")),
        ("word", [b"\xff\x00", b"z", b"\xff\x00"], ("\udcff\x00", "z")),
        ("word", ["é", "z", "\U0001f600", "ﬀ"], ("z", "é", "ﬀ", "\U0001f600")),
        ("id", [2**62, -5, inputs.schema.MISSING_ID, -5], (-5, 2**62)),
        ({"kind": "id", "default": 9}, [inputs.schema.MISSING_ID, 8, 9], (9, 8)),
        ("bag of words", [["a", "b"], [], ["b", "", "b"]], ("b", "a")),
        ("bag of ids", [[1, 2], [2]], (2, 1)),
    ],
)
def test_vocabularies(feature, values, vocabulary):
    if isinstance(values[0], int):
        values = np.array(values, np.int64)
    assert counted(feature, values).vocabulary == vocabulary


def test_one_pass_reads_what_features_read_and_nothing_else():
    calls = []

    def source(mode, columns, label, num_epochs, shuffle_buffer, preprocess_batch):
        calls.append((mode, list(columns), label, num_epochs, shuffle_buffer))
        return source_of(a=[1.0, NAN], w=["x", "y"])()

    schema = inputs.Schema(
        features={"n": {"kind": "number", "column": "a"}, "w": "word"},
        other_columns={"late": "id", "a": "number"},
        source=source,
    )
    found = counting.count(schema)
    assert calls == [(ModeKeys.TRAIN, ["a", "w"], None, 1, None)]
    assert found.num_rows == 2
    assert found.by_feature["n"].mean == 1.0


def endless():
    return source_of(x=["a"])().repeat()


def nothing():
    return source_of(x=["a"])().take(0)


@pytest.mark.parametrize(
    ("feature", "source", "error"),
    [
        ("word", None, "source is None, and statistics are needed of .'x'.: write"),
        ("word", endless, "source endless has no end, .* repeat.num_epochs."),
        ("word", nothing, "source nothing yields no rows"),
        ("word", lambda: [1], "returned .1.: write an input_fn"),
        ("word", source_of(y=["a"]), "yields .'y'., and column 'x' is declared"),
        ("word", source_of(x=[1]), "Column 'x', a word, is of type int32, not string"),
        ("number", source_of(x=["1"]), "a number, is of type string, not float32"),
        ("word", source_of(x=["", ""]), "Column 'x' is missing in all 2 rows .* take"),
        ("number", source_of(x=[NAN]), "Column 'x' is missing in all 1 rows"),
        ("bag of words", source_of(x=[[""]]), "Column 'x' is missing in all 1 rows"),
        ("number", source_of(x=[math.inf]), "'x' is infinite in a row of the training"),
        ({"kind": "word", "min_count": 2}, source_of(x=["a"]), "min_count is 2, and n"),
    ],
)
def test_data_without_statistics_are_refused(feature, source, error):
    schema = inputs.Schema(features={"x": feature}, source=source)
    with pytest.raises((ValueError, TypeError), match=error):
        schema.prepared()


def test_a_column_that_is_always_missing_is_refused_where_others_are_counted():
    schema = inputs.Schema(
        features={"x": "word", "h": {"kind": "word", "hash_buckets": 3, "column": "y"}},
        source=source_of(x=["a"], y=[""]),
    )
    with pytest.raises(ValueError, match="Column 'y' is missing .* feature 'h'"):
        schema.prepared()


def test_more_words_than_memory_should_hold_are_refused(monkeypatch):
    monkeypatch.setattr(counting, "_MOST_DISTINCT", 10)
    values = list(map(str, range(12)))
    with pytest.raises(ValueError, match="'x' has 12 different .*'hash_buckets': 100"):
        counted("word", values)


def test_a_row_that_cannot_be_read_is_told_in_its_own_words(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("x\n1\nParis\n")

    def source(mode, columns):
        files = {"train_files": str(path), "num_epochs": 1}
        return inputs.csv_input_fn(mode, columns=columns, batch_size=2, **files)

    schema = inputs.Schema(features={"x": "number"}, source=source)
    with pytest.raises(StepError) as error:
        schema.prepared()
    assert str(error.value).startswith(
        "the input failed in the count of the schema's statistics: InvalidArgumentError"
        f": {path} line 3: column 'x' is 'Paris', not a number"
    )
