"""A small schema with all kinds of features, its data, and formulas in NumPy."""

import functools

import numpy as np
import tensorflow as tf

import inputs

ROWS = 24
SCHEMA = inputs.Schema(
    features={
        "age": {"kind": "number", "default": 0.0},
        "word": {"kind": "word", "vocabulary": ["a", "b", "c"], "embedding": 4},
        "hour": {"kind": "number", "buckets": [6, 12], "embedding": "one_hot"},
        "tags": {"kind": "bag of ids", "size": 6, "embedding": 3},
        "other": {"kind": "word", "shared_with": "word"},
        "seen": {
            "kind": "bag of ids",
            "size": 5,
            "embedding": "one_hot",
            "wide": False,
        },
        "income": {"kind": "number", "default": 0.0, "wide": False},
        "pairs": {"kind": "cross", "of": ["word", "tags"], "hash_buckets": 600},
        "marks": {
            "kind": "bag of ids",
            "size": 4,
            "embedding": 2,
            "combiner": "sqrtn",
        },
    },
    other_columns={"weight": "number"},
)


def columns(rows=ROWS, seed=0):
    """Returns what a reader gives, by column, and labels: which follow word and age."""
    rng = np.random.default_rng(seed)
    words = rng.choice(["a", "b", "c", "?", ""], size=[2, rows])

    def bags(size):
        lengths = rng.integers(0, 4, size=rows)
        lengths[:2] = 0, 3
        ids = rng.integers(0, size, size=lengths.sum())
        return tf.RaggedTensor.from_row_lengths(ids, lengths)

    age = rng.normal(size=rows).astype(np.float32)
    raw = {
        "age": age,
        "word": words[0],
        "hour": rng.integers(0, 24, size=rows).astype(np.float32),
        "tags": bags(6),
        "other": words[1],
        "seen": bags(5),
        "income": rng.normal(size=rows).astype(np.float32),
        "marks": bags(4),
        "weight": rng.integers(1, 4, size=rows).astype(np.float32),
    }
    labels = ((words[0] == "a") + age > 0.3).astype(np.int64)
    ragged = tf.RaggedTensor
    made = {n: v if isinstance(v, ragged) else tf.constant(v) for n, v in raw.items()}
    return made, labels


@functools.cache
def encoder():
    """The schema's encoder."""
    return SCHEMA.prepared(None)


def batch(rows=ROWS, seed=0):
    """Returns encoded features and labels."""
    raw, labels = columns(rows, seed)
    return encoder().encode(raw), labels


def fields(kinds=("category", "bag")):
    """Returns fields of some kinds."""
    return [field for field in encoder().fields if field.kind in kinds]


def counts(features, field):
    """Returns how often each row is used, `[batch, size]`; a number as it is."""
    ids = features[field.name]
    if field.kind == "number":
        return ids.numpy()[:, None]
    lists = ids.to_list() if field.kind == "bag" else [[i] for i in ids.numpy()]
    found = np.zeros([len(lists), field.size])
    for row, each in enumerate(lists):
        np.add.at(found[row], each, 1)
    return found


def vector(features, field, table):
    """Returns the combined rows of a field, `[batch, dim]`."""
    used = counts(features, field)
    divisor = used.sum(1, keepdims=True)
    divisor = {"mean": divisor, "sqrtn": np.sqrt(divisor)}.get(field.combiner, 1)
    return used @ table / np.maximum(divisor, 1)


def vectors(features, layer):
    """Returns the vectors of a layer's fields, `[batch, dim]` each."""
    tables = {each.name: each.embeddings.numpy() for each in layer.tables}
    return [vector(features, field, tables[field.table]) for field in layer.fields]


def wide(features, network):
    """Returns x w + b of a network's wide part."""
    used = [counts(features, field) for field in fields() if field.wide]
    return (
        np.concatenate(used, 1) @ network.wide.table.embeddings.numpy()
        + features["age"].numpy()[:, None] * network.wide.kernel.numpy()
        + network.wide.bias.numpy()
    )


def deep_input(features, network):
    """Returns embeddings, one-hot categories and numbers, side by side."""
    parts = vectors(features, network.deep.vectors)
    parts += [counts(features, f) for f in fields() if f.embedding == "one_hot"]
    return np.concatenate([*parts, *map(_column(features), ("age", "income"))], 1)


def _column(features):
    return lambda name: features[name].numpy()[:, None]


def dense(x, layer, activation=lambda x: np.maximum(x, 0)):
    """Returns what a Dense layer gives."""
    kernel, bias = (value.numpy() for value in layer.weights)
    return activation(x @ kernel + bias)


def tower(x, layers):
    """Returns what Dense layers with relu give."""
    return functools.reduce(dense, layers, x)


def logits(x, network):
    """Returns what the last layer gives."""
    return dense(x, network.logits, lambda x: x)


def scattered(network, seed=1):
    """Returns the network, built, with random weights: none is 0."""
    network.build()
    rng = np.random.default_rng(seed)
    for variable in network.trainable_variables:
        variable.assign(rng.normal(size=variable.shape) / 2)
    return network
