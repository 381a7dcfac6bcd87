"""Initial values of large tables: Keras' own numbers, and no memory besides them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from models import Embedding
from pipeline.tracing import initial_values
from tests import allocated

ROWS = 2**19  # Of 32 numbers: 64 MiB, as TensorFlow rounds sizes up.


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.RandomUniform(seed=3),
        keras.initializers.RandomNormal(seed=2**31 + 5),
        keras.initializers.TruncatedNormal(),
        keras.initializers.GlorotUniform(seed=1),
        keras.initializers.Constant(0.1),
        keras.initializers.Zeros(),
        lambda shape, dtype=None: tf.fill(shape, tf.cast(7, dtype)),
    ],
    ids=["uniform", "normal", "truncated", "glorot", "constant", "zeros", "function"],
)
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_numbers_are_those_of_keras(initializer, dtype, monkeypatch):
    monkeypatch.setattr(initial_values, "_LARGE_BYTES", 0)
    lean = initial_values.lean(initializer)((101, 3), dtype=dtype)
    np.testing.assert_array_equal(lean, initializer((101, 3), dtype=dtype or "float32"))
    assert lean.dtype == (dtype or "float32")


def test_a_seed_generator_goes_on(monkeypatch):
    """It draws other numbers at each call, as with Keras."""
    monkeypatch.setattr(initial_values, "_LARGE_BYTES", 0)
    ours, keras_own = (
        keras.initializers.RandomUniform(seed=keras.random.SeedGenerator(5))
        for _ in range(2)
    )
    lean = initial_values.lean(ours)
    for _ in range(2):
        np.testing.assert_array_equal(lean((4, 3)), keras_own((4, 3)))


def test_a_table_and_its_slots_take_no_memory_besides():
    def table():
        layer = Embedding(ROWS, 32)
        layer.build()
        return layer

    layer, taken = allocated.by(table)
    size = ROWS * 32 * 4
    assert size <= taken < 1.1 * size
    for kind, slots in ((keras.optimizers.Adagrad, 1), (keras.optimizers.Ftrl, 2)):
        optimizer = kind()
        _, taken = allocated.by(
            lambda o=optimizer: initial_values.build_slots(o, layer.trainable_variables)
        )
        assert slots * size <= taken < 1.1 * slots * size
        # What it adds later it adds by itself.
        assert "add_variable_from_reference" not in vars(optimizer)
    # Without that, this is what is measured here.
    _, taken = allocated.by(
        lambda: keras.optimizers.Adagrad().build([layer.embeddings])
    )
    assert taken > 1.9 * size


def test_slots_begin_as_with_keras(monkeypatch):
    monkeypatch.setattr(initial_values, "_LARGE_BYTES", 0)
    trained = [keras.Variable(np.ones([4, 3], np.float32))]
    for kind in (
        keras.optimizers.Adagrad,
        keras.optimizers.Ftrl,
        keras.optimizers.Adam,
    ):
        ours, keras_own = kind(), kind()
        initial_values.build_slots(ours, trained)
        keras_own.build(trained)
        for mine, theirs in zip(ours.variables, keras_own.variables, strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.name == theirs.name
