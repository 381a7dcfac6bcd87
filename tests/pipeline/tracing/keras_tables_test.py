import keras
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.tracing import keras_tables

ROWS = 3001


def said(layer):
    return list(keras_tables.remarks([("network/", layer)]))


def test_a_large_table_is_remarked():
    layer = keras.layers.Embedding(1_300_000, 3, embeddings_initializer="zeros")
    assert said(layer) == []  # Not built: there may be no table to read.
    layer.build()
    (line,) = said(layer)
    assert line.startswith("network is a keras.layers.Embedding of 1,300,000 x 3,")
    assert "15 MB, at each step: write models.Embedding(1300000, 3)" in line
    small = keras.layers.Embedding(100_000, 3)
    small.build()
    assert said(small) == []


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("begins", [True, False])
def test_ids_that_a_model_would_mix_up_are_refused(policy, begins):
    layers = [keras.layers.Embedding(ROWS, 2, dtype=policy)]
    if begins:
        layers.insert(0, keras.Input([1], dtype="int64"))
    model = keras.Sequential(layers)
    vectors = model(tf.constant([[ROWS - 2]]))
    row = layers[-1](tf.constant([[ROWS - 2]]))
    is_right = bool(tf.reduce_all(vectors == row))
    if is_right:
        assert said(model) == []
    else:
        assert (policy, begins) == ("mixed_float16", False)
        with pytest.raises(
            ge.SpecError, match="network .* to 2,048 .* of 3,001.*Input"
        ):
            said(model)
