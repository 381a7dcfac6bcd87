"""Keras' callbacks do in `ge.fit` what they do in `keras.Model.fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_test import Break, X, Y, assert_same, by_keras, data, difference, make_model

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
    """Fails at the end of an epoch or of a batch."""

    def on_epoch_end(self, epoch, logs=None):
        raise KeyError("val_f1")

    def on_train_batch_end(self, batch, logs=None):
        if self.params["epochs"] == 2:
            raise KeyError("f1")


def test_the_error_of_a_callback_names_it(tmp_path):
    options = {"callbacks": [Fails()], "validation_data": data}
    for epochs, place in ((1, "on_epoch_end, step 4"), (2, "on_train_batch_end, step 1")):
        with pytest.raises(KeyError, match="f1") as caught:
            ge.fit(
                make_model,
                data,
                epochs=epochs,
                config=ge.RunConfig(str(tmp_path / str(epochs))),
                **options,
            )
        [note] = caught.value.__notes__  # It is not called a failure of the evaluation.
        assert note.startswith(f"This happened in callback Fails.{place}")


class Batches(keras.callbacks.Callback):
    """Notes all calls with their logs; stops at batch `stop` of the second epoch."""

    def __init__(self, stop=None):
        super().__init__()
        self.calls, self.logs, self.stop, self.epoch = [], [], stop, 0

    def note(self, name, number=None, logs=None):
        self.calls.append((name, number, sorted(logs or {})))
        self.logs += [(logs or {})[key] for key in sorted(logs or {})]

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.note("epoch", epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch end", epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        self.note("batch", batch, logs)
        self.model.optimizer.learning_rate = 0.01 / (batch + 1)

    def on_train_batch_end(self, batch, logs=None):
        self.note("batch end", batch, logs)
        if (self.epoch, batch) == (1, self.stop):
            self.model.stop_training = True

    def on_test_begin(self, logs=None):
        self.note("test")

    def on_test_batch_begin(self, batch, logs=None):
        self.note("test batch", batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self.note("test batch end", batch, logs)

    def on_test_end(self, logs=None):
        self.note("tested", None, logs)

    def on_train_end(self, logs=None):
        self.note("end", None, logs)


def in_executions(number):
    def make():
        model = make_model()
        model.steps_per_execution = number
        return model

    return make


TWO = ("CPU:0", "CPU:1")


@pytest.mark.thin
@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize(("number", "devices"), [(3, TWO), (1, None), (3, None), (1, TWO)])
def test_methods_for_batches_get_the_calls_and_running_means_of_fit(
    tmp_path, number, devices, validates
):
    validation, make = data if validates else None, in_executions(number)
    theirs, their_calls = Batches(stop=2), []
    expected = by_keras(make, data, validation, epochs=4, callbacks=[theirs])
    ours = Batches(stop=2)
    # An old name, in a lambda.
    old = keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: their_calls.append(batch))
    options = {
        "validation_data": validation,
        "config": ge.RunConfig(str(tmp_path), devices=devices),
    }
    result = ge.fit(make, data, epochs=4, callbacks=[ours, old], **options)
    assert ours.calls == theirs.calls
    np.testing.assert_allclose(ours.logs, theirs.logs, atol=1e-5)
    assert_same(result, expected)
    assert their_calls == [call[1] for call in ours.calls if call[0] == "batch end"]
    again = ge.fit(make, data, epochs=4, callbacks=[Batches()], **options)  # It has been stopped.
    assert again.history == result.history


def points(folder):
    """Returns the values of the events below a folder by tag and step."""
    found = {}
    for path in folder.rglob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                if value.tag.startswith("batch_"):
                    found[value.tag, event.step] = tf.make_ndarray(value.tensor).item()
    return found


@pytest.mark.thin
@pytest.mark.parametrize("number", [1, 2])
def test_files_of_models_and_events_within_an_epoch(tmp_path, number):
    def callbacks(folder):
        name = folder / "{epoch}-{batch}.weights.h5"
        files = keras.callbacks.ModelCheckpoint(name, save_weights_only=True, save_freq=3)
        return [files, keras.callbacks.TensorBoard(folder / "events", update_freq=3)]

    ours, theirs, make = tmp_path / "ours", tmp_path / "theirs", in_executions(number)
    by_keras(make, data, data, epochs=5, callbacks=callbacks(theirs))
    config = ge.RunConfig(str(tmp_path / "run"), save_checkpoints_steps=2)
    options = {"epochs": 5, "validation_data": data, "config": config}
    with pytest.raises(KeyboardInterrupt):
        ge.fit(make, data, callbacks=callbacks(ours), hooks=[Break(11)], **options)
    ge.fit(make, data, callbacks=callbacks(ours), **options)
    names, expected = ({each.name for each in f.glob("*.h5")} for f in (ours, theirs))
    assert names == expected and len(names) == (6 if number == 1 else 5)
    model, other = make(), make()
    for each in (model, other):
        each.build([None, 4])
    for name in names:
        model.load_weights(ours / name)
        other.load_weights(theirs / name)
        assert difference(model, other) < 1e-5, name
    found, expected = points(ours), points(theirs)
    assert found == pytest.approx(expected, abs=1e-5) and found


@pytest.mark.thin
@pytest.mark.parametrize("devices", [TWO, None])
@pytest.mark.parametrize("on_epoch", [True, False])
def test_averages_are_swapped_for_validation_and_files(tmp_path, devices, on_epoch):
    def make():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(3, "softmax")])
        optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    def callbacks(folder):
        files = keras.callbacks.ModelCheckpoint(folder / "{epoch}.keras")
        return [keras.callbacks.SwapEMAWeights(on_epoch), files]

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    expected = by_keras(make, data, data, epochs=3, callbacks=callbacks(theirs))
    config = ge.RunConfig(str(tmp_path / "run"), devices=devices)
    options = {"validation_data": data, "config": config}
    ge.fit(make, data, epochs=3, callbacks=callbacks(ours), **options)
    result = ge.fit(make, data, epochs=3, callbacks=callbacks(ours), **options)
    assert_same(result, expected)
    for epoch in (1, 2, 3):
        found, other = (
            keras.models.load_model(folder / f"{epoch}.keras") for folder in (ours, theirs)
        )
        assert difference(found, other) < 1e-5


class Looks(keras.callbacks.Callback):
    """Evaluates and predicts within the training."""

    def __init__(self):
        super().__init__()
        self.found = []

    def look(self):
        self.found += self.model.evaluate(data(), verbose=0)
        self.found += self.model.evaluate(X[:1], Y[:1], verbose=0)
        self.found += self.model.test_on_batch(X[:3], Y[:3])
        self.found += np.ravel(self.model.predict(X[:5], verbose=0)).tolist()
        self.found += np.ravel(self.model.predict_on_batch(X[:5])).tolist()

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.look()

    def on_epoch_end(self, epoch, logs=None):
        self.look()


@pytest.mark.parametrize("devices", [TWO, None])
def test_a_callback_evaluates_and_predicts(tmp_path, devices):
    def make():
        keras.utils.set_random_seed(3)
        normal = keras.layers.BatchNormalization(synchronized=True)
        model = keras.Sequential([keras.Input([4]), normal, keras.layers.Dense(3, "softmax")])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    ours, theirs = Looks(), Looks()
    by_keras(make, data, epochs=2, callbacks=[theirs])  # It forgets the metrics of the epoch.
    expected = by_keras(make, data, epochs=2)
    config = ge.RunConfig(str(tmp_path), devices=devices)
    result = ge.fit(make, data, epochs=2, callbacks=[ours], config=config)
    np.testing.assert_allclose(ours.found, theirs.found, atol=1e-5)
    assert_same(result, expected)
    model = make()  # It gets the trained values; a copy of it evaluates on several devices.
    ours = Looks()
    ge.fit(
        model,
        data,
        epochs=2,
        callbacks=[ours],
        config=config.replace(model_dir=str(tmp_path / "given")),
    )
    np.testing.assert_allclose(ours.found, theirs.found, atol=1e-5)
    assert difference(model, expected[0]) < 1e-5


def test_a_backup_is_left_out_with_a_line(tmp_path, caplog):
    given = [keras.callbacks.BackupAndRestore(tmp_path / "backup")]
    ge.fit(make_model, data, callbacks=given, config=ge.RunConfig(str(tmp_path / "run")))
    assert "BackupAndRestore does nothing: each run continues from the last" in caplog.text
    assert not (tmp_path / "backup").exists()
