"""A trained table model as a SavedModel that takes raw columns, or Examples."""

import functools

import keras
import numpy as np
import tensorflow as tf

import inputs
import models
import pipeline as ge
from tests import tabled

SCHEMA = inputs.Schema(
    features={name: tabled.SCHEMA.features[name] for name in ("age", "word", "tags")}
)


def input_fn(mode):
    raw, labels = tabled.columns()
    features = SCHEMA.prepared(None).encode({n: raw[n] for n in SCHEMA.features})
    data = tf.data.Dataset.from_tensors((features, labels))
    return data.repeat() if mode == ge.ModeKeys.TRAIN else data


def as_text(column):
    """A bag as text, as in a file."""
    if not isinstance(column, tf.RaggedTensor):
        return column
    return tf.strings.reduce_join(tf.strings.as_string(column), -1, separator=" ")


def example(raw, row):
    """One row as a `tf.train.Example`: bags as lists."""

    def feature(value):
        value = np.atleast_1d(value)
        if value.dtype.kind in "OSU":
            items = [v if isinstance(v, bytes) else v.encode() for v in value]
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=items))
        if value.dtype.kind == "i":
            return tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))

    made = {name: feature(column[row].numpy()) for name, column in raw.items()}
    features = tf.train.Features(feature=made)
    return tf.train.Example(features=features).SerializeToString()


def test_raw_columns_and_examples_are_answered_alike(tmp_path):
    """The network says by itself what a server is sent: no line in the call does."""
    estimator = ge.Estimator(
        functools.partial(models.table_model, head=models.BinaryClassHead()),
        modules={
            "network": lambda: models.dnn(SCHEMA, None, hidden=[4]),
            "optimizer": lambda: keras.optimizers.Adagrad(0.1),
        },
        config=ge.RunConfig(model_dir=str(tmp_path), async_checkpoint=False),
    )
    estimator.train(input_fn, steps=1)
    expected = [p["logits"] for p in estimator.predict(input_fn)]
    loaded = tf.saved_model.load(estimator.export_saved_model(str(tmp_path / "e")))
    raw, _ = tabled.columns()
    serve, by_examples = (loaded.signatures[n] for n in ("predict", "examples:predict"))
    _, columns = serve.structured_input_signature
    sent = {name: as_text(raw[name]) for name in columns}
    np.testing.assert_allclose(serve(**sent)["logits"], expected, rtol=1e-5)
    examples = tf.constant([example(raw, row) for row in range(tabled.ROWS)])
    answer = by_examples(examples=examples)["logits"]
    np.testing.assert_allclose(answer, expected, rtol=1e-5)
