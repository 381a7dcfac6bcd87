"""A compiled model in place of `make_model`: trained itself, or made again under a strategy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_test import W, X, Y, data, difference
from fit_test import make_model as unbuilt

import gin_estimator as ge
from gin_estimator.keras_fit import fit

TWO = ("CPU:0", "CPU:1")


def make_model():
    model = unbuilt()
    model.build([None, 4])
    return model


def config(path, devices=None, **options):
    return ge.RunConfig(str(path), devices=devices, **options)


def assert_same(model, history, expected, theirs, atol=1e-5):
    assert difference(model, expected) < atol
    for mine, other in zip(model.optimizer.variables, expected.optimizer.variables, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-5)
    assert history.keys() == theirs.history.keys()
    for name, values in theirs.history.items():
        assert history[name] == pytest.approx(values, abs=1e-5), name


@pytest.mark.parametrize("make", [make_model, unbuilt])
@pytest.mark.parametrize("devices", [None, TWO, ("CPU:0",)])
def test_the_model_is_trained_as_by_its_fit_and_goes_on(tmp_path, devices, make):
    model, expected = make(), make()
    options = {"batch_size": 16, "epochs": 2, "shuffle": False, "validation_split": 0.2}
    result = ge.fit(model, X, Y, config=config(tmp_path, devices), **options)
    assert result.model is model
    assert_same(model, result.history, expected, expected.fit(X, Y, verbose=0, **options))
    loss = result.estimator.evaluate(data)["loss"]
    for each in (model, expected):  # It is a model of Keras as before, with its optimizer.
        each.fit(X, Y, shuffle=False, verbose=0)
    assert difference(model, expected) < 1e-5
    # Another call continues, also after a change, and in the end the model is one of Keras.
    for each in (model, expected):
        each.layers[0].trainable = False
        each.compile(keras.optimizers.SGD(0.1), each.loss, metrics=["accuracy"])
    options |= {"initial_epoch": 2, "epochs": 3}
    again = ge.fit(model, X, Y, config=config(tmp_path, devices), **options)
    assert again.epoch == [2] and again.estimator.model_dir == str(tmp_path / "fit_2")
    assert_same(model, again.history, expected, expected.fit(X, Y, verbose=0, **options))
    for each in (model, expected):
        each.fit(X, Y, shuffle=False, verbose=0)
    assert difference(model, expected) < 1e-5
    assert result.estimator.evaluate(data)["loss"] == pytest.approx(loss)  # Of the first call.
    assert difference(model, expected) < 1e-5


class Scaled(keras.layers.Layer):
    """Has a configuration, and is not registered."""

    def __init__(self, factor=2.0, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, inputs):
        return self.factor * inputs

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1 / (1.0 + keras.ops.cast(step, "float32"))

    def get_config(self):
        return {}


def own_parts():
    keras.utils.set_random_seed(3)
    inputs = keras.Input([4])
    hidden = keras.layers.BatchNormalization(synchronized=True)(Scaled(0.5)(inputs))
    hidden = keras.layers.Lambda(lambda x: x + 1.0)(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(hidden))
    optimizer = keras.optimizers.SGD(Schedule(), momentum=0.9)

    def sparse_loss(y, p):
        return keras.losses.sparse_categorical_crossentropy(y, p)

    model.compile(
        optimizer, sparse_loss, metrics=[keras.metrics.SparseCategoricalAccuracy("right")]
    )
    return model


def test_own_layers_losses_and_schedules_are_made_again(tmp_path):
    model, expected = own_parts(), own_parts()
    options = {"epochs": 2, "shuffle": False, "sample_weight": W}
    result = ge.fit(model, X, Y, config=config(tmp_path, TWO), **options)
    assert_same(model, result.history, expected, expected.fit(X, Y, verbose=0, **options), 1e-5)


class NoConfig(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs)


class Hidden(Scaled):
    """Has an attribute that is not in its configuration."""

    def get_config(self):
        return keras.layers.Layer.get_config(self)


def compiled(model, **options):
    model.compile("sgd", "sparse_categorical_crossentropy", **options)
    return model


def classes():
    return keras.layers.Dense(3, "softmax")


def changed():
    model = compiled(keras.Sequential([keras.Input([4]), classes()]))
    model.layers[0].kernel.trainable = False  # Its configuration does not have it.
    return model


MISTAKES = {
    "no configuration": (
        lambda: compiled(NoConfig(lambda x: x)),
        r"made again from its configuration: \w\w",
    ),
    "outputs": (
        lambda: compiled(keras.Sequential([keras.Input([4]), Hidden(0.1), classes()])),
        "has other outputs than its copy",
    ),
    "trainable": (changed, "has other trainable variables or weight decay than its copy: network"),
    "uncompiled": (lambda: keras.Sequential([classes()]), "is not a compiled Keras model"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_model_that_cannot_be_made_again_is_refused_by_name(tmp_path, name):
    make, message = MISTAKES[name]
    with pytest.raises(ge.UserError, match=message) as caught:
        ge.fit(make(), X, Y, config=config(tmp_path, TWO))
    assert name == "uncompiled" or "Pass a function that makes and compiles it" in str(caught.value)


def test_a_model_without_a_configuration_is_trained_on_one_device(tmp_path):
    def make():
        keras.utils.set_random_seed(3)
        return compiled(NoConfig(classes()))

    model, expected = make(), make()
    ge.fit(model, data(), config=config(tmp_path))
    expected.fit(data(), verbose=0)
    assert difference(model, expected) < 1e-5


def test_other_endings_of_earlier_calls_are_refused(tmp_path):
    def program(epochs):
        fit._calls.clear()  # As in a new process.
        model = make_model()
        for number in (epochs, 1):
            ge.fit(model, X, Y, epochs=number, config=config(tmp_path, tf_random_seed=1))
        return model

    first, again = program(1), program(1)
    assert difference(first, again) == 0
    with pytest.raises(ge.errors.UserValueError, match=r"ended at the steps \[4\].* at \[8\]"):
        program(2)


class OwnStep(keras.Sequential):
    """Has a step of its own, which trains on twice the loss."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = 2 * keras.ops.mean(keras.losses.mean_squared_error(y, self(x, training=True)))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def own_step():
    keras.utils.set_random_seed(1)
    model = OwnStep([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def test_a_model_of_another_scope_is_refused(tmp_path):
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = make_model()
    with pytest.raises(ge.UserError, match="in the scope of OneDeviceStrategy.*devices="):
        ge.fit(model, X, Y, config=config(tmp_path))


def test_a_model_with_its_own_step_is_trained_itself_and_not_made_again(tmp_path):
    model, expected = own_step(), own_step()
    options = {"batch_size": 16, "epochs": 2, "shuffle": False}
    assert ge.fit(model, X, Y, config=config(tmp_path), **options).model is model
    expected.fit(X, Y, verbose=0, **options)
    assert difference(model, expected) < 1e-5
    with pytest.raises(ge.UserError, match="has its own train_step.*Pass a function"):
        ge.fit(model, X, Y, config=config(tmp_path / "two", TWO), **options)
