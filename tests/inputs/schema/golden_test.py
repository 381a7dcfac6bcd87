"""Rows equal those of tf.feature_column, as TensorFlow 2.15.1 gave them.

tests/scripts/rows_of_feature_columns.py recorded them.
"""

import functools
import json
import pathlib

import pytest
import tensorflow as tf

import inputs
from inputs.schema.lookups import as_bytes

_FILE = pathlib.Path(__file__).with_name("feature_columns.json")


@functools.cache
def recorded():
    return json.loads(_FILE.read_text(encoding="utf-8"))


def columns():
    found = recorded()["columns"]
    tags = [[as_bytes(tag) for tag in bag] for bag in found["tags"]]
    return {
        "word": tf.constant(list(map(as_bytes, found["word"]))),
        "id": tf.constant(found["id"], tf.int64),
        "hour": tf.constant(found["hour"]),
        "tags": tf.ragged.constant(tags, tf.string),
    }


@pytest.fixture(scope="module")
def encoded():
    features = {name: case["feature"] for name, case in recorded()["cases"].items()}
    schema = inputs.Schema(features=recorded()["parts"] | features)
    return schema.prepared().encode(columns())


@pytest.mark.parametrize("name", recorded()["cases"])
def test_rows_are_those_of_feature_columns(encoded, name):
    theirs = recorded()["cases"][name]["rows"]
    ours = encoded[name]
    if not isinstance(ours, tf.RaggedTensor):
        # To them -1 is a missing id; to us it is an id.
        alike = [row for row, found in enumerate(theirs) if found]
        assert len(alike) >= len(theirs) - ("ids" in name)
        theirs, ours = [theirs[row] for row in alike], tf.gather(ours, alike)[:, None]
        assert ours.numpy().tolist() == theirs
    else:
        assert ours.to_list() == theirs
