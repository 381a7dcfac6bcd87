"""Keras' callbacks do in `ge.fit` what they do in `keras.Model.fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_test import Break, X, Y, by_keras, data, difference, make_model

import gin_estimator as ge


def test_files_of_models_rows_and_events(tmp_path):
    def callbacks(folder):
        return [
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras"),
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True),
            keras.callbacks.CSVLogger(folder / "rows.csv"),
            keras.callbacks.TensorBoard(folder / "events"),
        ]

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    by_keras(make_model, data, data, epochs=2, callbacks=callbacks(theirs))
    options = {"epochs": 2, "validation_data": data, "config": ge.RunConfig(str(tmp_path / "run"))}
    with pytest.raises(KeyboardInterrupt):
        ge.fit(make_model, data, callbacks=callbacks(ours), hooks=[Break(6)], **options)
    result = ge.fit(make_model, data, callbacks=callbacks(ours), **options)
    assert difference(keras.models.load_model(ours / "2.keras"), result.model) == 0
    for epoch in (1, 2):
        other = keras.models.load_model(theirs / f"{epoch}.keras")
        found = keras.models.load_model(ours / f"{epoch}.keras")
        assert difference(found, other) < 1e-5
        found.load_weights(ours / f"{epoch}.weights.h5")
        assert difference(found, other) < 1e-5
    rows, expected = ([*open(folder / "rows.csv")] for folder in (ours, theirs))
    assert len(rows) == 3 and rows[0] == expected[0]
    numbers, others = (np.loadtxt(each[1:], delimiter=",") for each in (rows, expected))
    np.testing.assert_allclose(numbers, others, atol=1e-5)
    assert list((ours / "events/validation").glob("events.*"))


def test_not_a_number_ends_the_training_with_the_error_of_the_driver(tmp_path):
    def input_fn():
        # In the weights: on some processors relu turns NaN into 0.
        weights = lambda i, y: tf.fill(tf.shape(y), tf.where(i > 2, np.float32("nan"), 1.0))  # noqa: E731
        return data().enumerate().map(lambda i, e: (*e, weights(i, e[1])))

    config = ge.RunConfig(str(tmp_path), on_nan="warn")
    given = [keras.callbacks.TerminateOnNaN()]
    with pytest.raises(ge.NanLossDuringTrainingError):
        ge.fit(make_model, input_fn, epochs=3, callbacks=given, config=config)


class Own(keras.callbacks.Callback):
    """Notes its calls, and stops after three epochs."""

    def __init__(self):
        super().__init__()
        self.calls, self.number = [], 0

    def on_train_begin(self, logs=None):
        self.calls.append("begin")

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append(f"epoch {epoch}")

    def on_epoch_end(self, epoch, logs=None):
        self.number += 1
        self.calls.append(f"end {epoch} {sorted(logs)} of {self.params['steps']}")
        if self.number == 3:
            self.model.stop_training = True

    def on_test_begin(self, logs=None):
        self.calls.append("test")

    def on_test_end(self, logs=None):
        self.calls.append(f"tested {sorted(logs)}")

    def on_predict_begin(self, logs=None):
        self.calls.append("predict")

    def on_train_end(self, logs=None):
        self.model.set_weights([0 * each for each in self.model.get_weights()])
        self.calls.append(f"ended {sorted(logs)}")


@pytest.mark.thin
@pytest.mark.parametrize("validates", [True, False])
def test_own_callbacks_and_lambdas_get_the_calls_of_fit(tmp_path, validates):
    def call(own, calls):
        begin = lambda epoch, logs: calls.append(epoch)  # noqa: E731
        return [own, keras.callbacks.LambdaCallback(on_epoch_begin=begin)]

    ours, theirs, our_calls, their_calls = Own(), Own(), [], []
    validation = data if validates else None
    by_keras(make_model, data, validation, epochs=5, callbacks=call(theirs, their_calls))
    options = {"epochs": 5, "validation_data": validation, "config": ge.RunConfig(str(tmp_path))}
    result = ge.fit(make_model, data, callbacks=call(ours, our_calls), **options)
    assert ours.calls == theirs.calls and our_calls == their_calls
    assert not any(each.any() for each in result.model.get_weights())
    assert not result.estimator.get_variable_value("network/dense/kernel").any()


class Fails(keras.callbacks.Callback):
    """Fails at the end of an epoch, as Keras may in its `evaluate`."""

    def on_epoch_end(self, epoch, logs=None):
        if self.params["epochs"] == 1:
            raise KeyError("val_f1")
        self.model.evaluate(X[:1], Y[:1], verbose=0)


def test_the_error_of_a_callback_names_it_and_the_remedy_of_evaluate(tmp_path):
    config = ge.RunConfig(str(tmp_path), devices=("CPU:0", "CPU:1"))
    options = {"callbacks": [Fails()], "validation_data": data, "config": config}
    with pytest.raises(KeyError, match="val_f1") as caught:
        ge.fit(make_model, data, **options)
    [note] = caught.value.__notes__  # It is not called a failure of the evaluation.
    assert note.startswith("This happened in callback Fails.on_epoch_end, step 4")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        ge.fit(make_model, data, epochs=2, **options)
    assert any("Set validation_data=dataset" in note for note in caught.value.__notes__)
