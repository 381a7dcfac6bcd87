"""Records the rows of tf.feature_column for tests/inputs/schema_test.py.

    python3.11 -m venv VENV && VENV/bin/pip install tensorflow-cpu==2.15.1
    VENV/bin/python tests/recorders/feature_columns.py \
        tests/inputs/feature_columns.json

Each case has the schema of the same features, so that only the rows come from here.
"""

import json
import sys

import tensorflow as tf
from tensorflow.python.feature_column.feature_column_v2 import FeatureTransformationCache

# The last is not UTF-8, and stands in JSON as Python's 'surrogateescape' has it.
WORDS = ["EWR", "JFK", "LGA", "Zürich", "a b", "a\0b", "a_X_b", "7", " ", "\udcff\udcfe"]
IDS = [0, 1, 2, -1, 10, 5, -(2**40), 2**63 - 1, -(2**63) + 1, 3]
HOURS = [5.99, 6.0, 8.5, 9.0, 23.0, -1.0, 0.0, 12.0, 12.0, 100.0]
TAGS = [["a", "b"], [], ["c"], ["a", "a", "c"], [], ["Zürich"], ["7"], [], ["b"], ["c"]]
COLUMNS = {
    "word": tf.constant([w.encode("utf-8", "surrogateescape") for w in WORDS]),
    "id": tf.constant(IDS, tf.int64),
    "hour": tf.constant(HOURS),
    "tags": tf.ragged.constant(TAGS).to_sparse(),
}
BUCKETS = [6.0, 9.0, 12.0, 15.0]

fc = tf.feature_column
hours = fc.bucketized_column(fc.numeric_column("hour"), BUCKETS)
PARTS = {
    "word": {"kind": "word", "hash_buckets": 7},
    "id": {"kind": "id", "hash_buckets": 7},
    "hour": {"kind": "number", "buckets": BUCKETS},
    "tags": {"kind": "bag of words", "hash_buckets": 7},
}


def cross(*of):
    """A cross of columns, and the schema's."""
    parts = [hours if part == "hour" else part for part in of]
    ours = {"kind": "cross", "of": of, "hash_buckets": 1000}
    return fc.crossed_column(parts, 1000), ours


CASES = {
    "hashed words": (
        fc.categorical_column_with_hash_bucket("word", 1000),
        {"kind": "word", "column": "word", "hash_buckets": 1000},
    ),
    "hashed ids": (
        fc.categorical_column_with_hash_bucket("id", 1000, dtype=tf.int64),
        {"kind": "id", "column": "id", "hash_buckets": 1000},
    ),
    "hashed bag": (
        fc.categorical_column_with_hash_bucket("tags", 1000),
        {"kind": "bag of words", "column": "tags", "hash_buckets": 1000},
    ),
    "words": (
        fc.categorical_column_with_vocabulary_list("word", WORDS[:4], num_oov_buckets=5),
        {"kind": "word", "column": "word", "vocabulary": WORDS[:4], "unknown": 5},
    ),
    "ids": (
        fc.categorical_column_with_vocabulary_list("id", [10, 2, -5], num_oov_buckets=5),
        {"kind": "id", "column": "id", "vocabulary": [10, 2, -5], "unknown": 5},
    ),
    "bag": (
        fc.categorical_column_with_vocabulary_list("tags", ["c", "a"], num_oov_buckets=2),
        {"kind": "bag of words", "column": "tags", "vocabulary": ["c", "a"], "unknown": 2},
    ),
    "buckets": (hours, {"kind": "number", "column": "hour", "buckets": BUCKETS}),
    "cross of words and ids": cross("word", "id"),
    "cross of ids and words": cross("id", "word"),
    "cross of words and buckets": cross("word", "hour"),
    "cross of a bag": cross("tags", "word"),
    "cross of four": cross("hour", "tags", "id", "word"),
}


def rows(column):
    """The rows of each example."""
    cache = FeatureTransformationCache(COLUMNS)
    found = column.get_sparse_tensors(cache, None).id_tensor
    return tf.RaggedTensor.from_sparse(tf.sparse.reorder(found)).to_list()


def main(path):
    found = {
        "made by": f"tensorflow {tf.__version__}",
        "columns": {"word": WORDS, "id": IDS, "hour": HOURS, "tags": TAGS},
        "parts": PARTS,
        "cases": {
            name: {"feature": feature, "rows": rows(column)}
            for name, (column, feature) in CASES.items()
        },
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
