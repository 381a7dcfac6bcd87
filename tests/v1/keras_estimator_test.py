"""model_to_estimator: as Keras' own `fit` on the same batches."""

import keras
import numpy as np
import pytest

import gin_estimator.v1 as tf

rng = np.random.default_rng(3)
X = rng.normal(size=[48, 4]).astype("float32")
Y = (X.sum(1) > 0).astype("int64")
ROWS = 8


def input_fn():
    return tf.data.Dataset.from_tensor_slices(({"dense_input": X}, Y)).batch(ROWS)


def made(library, functional=False):
    """Returns a model of `keras` or of `tf.keras`, with the same initial values."""
    keras.utils.set_random_seed(1)
    layers = [
        library.layers.Dense(5, "tanh", name="first"),
        library.layers.Dense(2, "softmax", name="last"),
    ]
    x = library.layers.Input([4])
    if functional:
        return library.Model(x, layers[1](layers[0](x)))
    return library.Sequential([library.layers.InputLayer([4]), *layers])


@pytest.fixture(scope="module")
def fitted():
    model = made(keras)
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    model.fit(X, Y, ROWS, epochs=1, shuffle=False, verbose=0)
    probabilities = model.predict(X, verbose=0)
    return probabilities, np.mean(probabilities.argmax(1) == Y)


OPTIMIZERS = {
    "tf.train": lambda: tf.train.GradientDescentOptimizer(0.5),
    "tf.keras": lambda: tf.keras.optimizers.SGD(lr=0.5),
    "keras": lambda: keras.optimizers.SGD(0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_that_of_fit(name, fitted, tmp_path):
    model = made(tf.keras, functional=name == "tf.keras")
    before = model.get_weights()
    model.compile(OPTIMIZERS[name](), "sparse_categorical_crossentropy", ["accuracy"])
    estimator = tf.keras.estimator.model_to_estimator(model, model_dir=str(tmp_path))
    estimator.train(input_fn)
    assert {"first/kernel", "last/bias"} <= {*estimator.get_variable_names()}
    rows = list(estimator.predict(input_fn))
    np.testing.assert_allclose([row["last"] for row in rows], fitted[0], rtol=1e-5)
    found = estimator.evaluate(input_fn)
    assert found["accuracy"] == pytest.approx(fitted[1])
    expected = -np.mean(np.log(fitted[0][np.arange(len(Y)), Y]))
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    for value, after in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(value, after)  # A copy was trained.


def test_models_that_cannot_be_estimators():
    with pytest.raises(ValueError, match="not compiled"):
        tf.keras.estimator.model_to_estimator(made(tf.keras))
    model = made(tf.keras)
    model.compile("lion", "mse")
    with pytest.raises(ValueError, match="the optimizer is Lion"):
        tf.keras.estimator.model_to_estimator(model)


@pytest.mark.parametrize("options", [{"decay": 0.1}, {"clipnorm": 1.0}, {"amsgrad": True}])
def test_options_of_keras_optimizers_without_an_effect_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        tf.keras.optimizers.Adam(0.1, **options)


def test_options_of_keras_optimizers_by_position():
    assert tf.keras.optimizers.SGD(0.1, 0.9, True).options["use_nesterov"] is True
    assert tf.keras.optimizers.SGD(0.1, nesterov=True).options["use_nesterov"] is True
