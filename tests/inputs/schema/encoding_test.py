"""Columns become what a model sees: numbers and rows of tables."""

import numpy as np
import pytest
import tensorflow as tf

import inputs
from inputs.schema import MISSING_ID, FeatureStatistics, Field

NAN = float("nan")


def encoded(feature, values, **others):
    """One feature named x of its values, in a schema with others."""
    schema = inputs.Schema(features={"x": feature, **others})
    raw = {name: values for name in schema.columns}
    return schema.prepared().encode(raw)["x"].numpy().tolist()


def ids(*values):
    return tf.constant(values, tf.int64)


# What a feature makes of values, and how many rows it has.
ROWS = {
    "vocabulary": ({"vocabulary": ["b", "a"]}, ["a", "z", "", "b"], [1, 2, 3, 0], 4),
    "default": ({"vocabulary": ["b"], "default": "b"}, ["", "b", "z"], [0, 0, 1], 2),
    "ids": (
        {"kind": "id", "vocabulary": [7, -3]},
        ids(-3, 7, MISSING_ID, 8),
        [1, 0, 3, 2],
        4,
    ),
    "size": ({"kind": "id", "size": 3}, ids(2, 0, MISSING_ID), [2, 0, 3], 4),
    "size and default": (
        {"kind": "id", "size": 3, "default": 1},
        ids(2, MISSING_ID),
        [2, 1],
        3,
    ),
    "buckets": (
        {"kind": "number", "buckets": [6, 9]},
        [5.9, 6.0, 9.0, NAN, np.inf, -np.inf],
        [0, 1, 2, 3, 2, 0],
        4,
    ),
    "buckets and default": (
        {"kind": "number", "buckets": [6, 9], "default": 7},
        [5.0, NAN],
        [0, 1],
        3,
    ),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_category_is_a_row(case):
    feature, values, rows, size = ROWS[case]
    feature = {"kind": "word"} | feature
    assert encoded(feature, values) == rows
    (field,) = inputs.Schema(features={"x": feature}).prepared().fields
    assert (field.kind, field.size, field.table) == ("category", size, "x")


def test_the_fields_are_those_of_the_declaration_in_its_order():
    schema = inputs.Schema(
        features={
            "n": {"kind": "number", "default": 0.0, "indicator": True, "wide": False},
            "w": {"kind": "word", "hash_buckets": 100},
            "c": {"kind": "cross", "of": ["w", "b"], "hash_buckets": 10},
            "b": inputs.Bag(vocabulary=["a"], combiner="sum", embedding="one_hot"),
            "s": {"kind": "bag of words", "shared_with": "b"},
        },
        other_columns={"late": "id"},
    )
    assert schema.prepared().fields == (
        Field("n", "number", 1, False, None, None, "n"),
        Field("n_missing", "number", 1, False, None, None, "n_missing"),
        Field("w", "category", 101, True, 21, None, "w"),
        Field("c", "bag", 10, True, None, "mean", "c"),
        Field("b", "bag", 2, True, "one_hot", "sum", "b"),
        Field("s", "bag", 2, True, "one_hot", "mean", "b"),
    )
    assert list(schema.columns) == ["late", "n", "w", "b", "s"]


def test_a_number_is_logarithm_scale_and_bounds():
    schema = inputs.Schema(
        features={
            "x": {"kind": "number", "log": True, "scale": "standard", "clip": [-1, 2]}
        }
    )
    counted = {"x": FeatureStatistics(mean=1.0, std=0.5)}
    encoder = inputs.schema.Encoder(schema, counted)
    found = encoder.encode({"x": [NAN, 0.0, np.e - 1, 5.0, -9.0]})["x"]
    third = (np.log(6.0) - 1) / 0.5
    np.testing.assert_allclose(found, [0, -1, 0, min(third, 2), -1], atol=1e-6)
    assert found.dtype == tf.float32


NUMBERS = {
    "mean of what is there": ({}, [NAN, 3.0], [2.0, 3.0]),
    "min_max": ({"scale": "min_max"}, [1.0, 4.0, 7.0, NAN], [0.0, 0.5, 1.0, 1 / 6]),
    "a default, scaled": ({"scale": "standard", "default": 6}, [NAN, 2.0], [1.0, 0.0]),
    "a default of log": (
        {"log": True, "default": -(np.e - 1)},
        [NAN, 0.0],
        [-1.0, 0.0],
    ),
    "bounds": (
        {"clip": (0, 1), "default": 9},
        [NAN, np.inf, -np.inf, 0.5],
        [1, 1, 0, 0.5],
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_go_by_what_was_counted(name):
    feature, values, found = NUMBERS[name]
    schema = inputs.Schema(
        features={
            "x": {"kind": "number", "indicator": True} | feature,
            # Where all data are equal there is nothing to divide by.
            "equal": {"kind": "number", "scale": "standard"},
            "even": {"kind": "number", "scale": "min_max"},
        }
    )
    counted = FeatureStatistics(mean=2.0, std=4.0, minimum=1.0, maximum=7.0)
    equal = FeatureStatistics(mean=5.0, std=0.0, minimum=5.0, maximum=5.0)
    encoder = inputs.schema.Encoder(
        schema, {"x": counted, "equal": equal, "even": equal}
    )
    fives = tf.fill([len(values)], 5.0)
    encoded = encoder.encode({"x": values, "equal": fives, "even": fives})
    np.testing.assert_allclose(encoded["x"], found, rtol=1e-6)
    assert encoded["x_missing"].numpy().tolist() == np.isnan(values).tolist()
    assert not np.any([encoded["equal"], encoded["even"]])


def test_buckets_of_quantiles_are_those_that_were_counted():
    schema = inputs.Schema(features={"x": {"kind": "number", "buckets": 4}})
    with pytest.raises(
        ValueError, match="Feature 'x' needs boundaries of the training"
    ):
        inputs.schema.Encoder(schema, {})
    counted = {"x": FeatureStatistics(boundaries=(1.0, 2.0))}
    encoder = inputs.schema.Encoder(schema, counted)
    assert encoder.encode({"x": [0.0, 1.5, 2.0, NAN]})["x"].numpy().tolist() == [
        0,
        1,
        2,
        3,
    ]
    none = inputs.schema.Encoder(schema, {"x": FeatureStatistics(boundaries=())})
    assert none.encode({"x": [0.0, NAN]})["x"].numpy().tolist() == [0, 1]
