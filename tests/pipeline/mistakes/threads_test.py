"""One Estimator in two threads, and two Estimators in two."""

import concurrent.futures
import time

import keras
import tensorflow as tf

import pipeline as ge
from tests import fakes

X, Y = fakes.classification_data(rows=24)
INPUT = fakes.make_input_fn(X, Y, batch_size=8)


def repeated():
    return INPUT().repeat()


CALLS = {
    "train": lambda e, _: e.train(repeated, steps=1),
    "evaluate": lambda e, _: e.evaluate(INPUT),
    "predict": lambda e, _: e.predict(INPUT),
    "export_saved_model": lambda e, folder: e.export_saved_model(str(folder)),
    "export_weights": lambda e, folder: e.export_weights(
        "network", f"{folder}/of.weights.h5"
    ),
}


class Elsewhere(ge.Hook):
    """Has another thread call each method while this one trains."""

    every_steps = 2

    def __init__(self, estimator, folder):
        self.said = {}
        self._of = estimator, folder

    def after_step(self, run):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for name, call in CALLS.items():
                self.said[name] = str(pool.submit(call, *self._of).exception())
        self.inside = self._of[0].evaluate(INPUT)


def test_another_thread_is_refused(tmp_path):
    estimator = fakes.make_estimator(tmp_path / "run")
    hook = Elsewhere(estimator, tmp_path)
    estimator.train(repeated, steps=3, hooks=[hook])
    for name in CALLS:
        assert f"{name} was called while another thread" in hook.said[name]
    assert hook.inside["global_step"] == 2
    fresh = fakes.make_estimator(tmp_path / "fresh")
    fresh.train(repeated, steps=3)
    assert estimator.evaluate(INPUT)["loss"] == fresh.evaluate(INPUT)["loss"]


def test_one_thread_after_another(tmp_path):
    estimator = fakes.make_estimator(tmp_path / "run")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(estimator.train, repeated, steps=2).result()
    for call in CALLS.values():
        call(estimator, tmp_path)
    assert estimator.global_step == 3


def test_predictions_go_on_while_another_thread_trains(tmp_path):
    estimator = fakes.make_estimator(tmp_path)
    estimator.train(repeated, steps=1)
    whole = [each["logits"].tolist() for each in estimator.predict(INPUT)]
    predictions = estimator.predict(INPUT)
    first = next(predictions)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(estimator.train, repeated, steps=2).result()
        rest = pool.submit(list, predictions).result()
    assert [each["logits"].tolist() for each in [first, *rest]] == whole


# Long enough for another thread to draw meanwhile.
SLOW = 0.3


def slow_network():
    layers = [keras.layers.Dense(8)]
    time.sleep(SLOW)
    return keras.Sequential([*layers, keras.layers.Dense(fakes.NUM_CLASSES)])


def slow_input():
    time.sleep(SLOW)
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    return rows.shuffle(24).batch(8).repeat()


def noisy_fn(features, labels, mode, network, optimizer):
    time.sleep(SLOW)
    if mode == ge.ModeKeys.TRAIN:
        features += tf.random.normal(tf.shape(features))
    return fakes.classifier_fn(features, labels, mode, network, optimizer, {})


def test_runs_in_threads_are_those_of_runs_alone(tmp_path):
    def trained(folder, seed, precision):
        estimator = fakes.make_estimator(
            tmp_path / folder / str(seed),
            model_fn=noisy_fn,
            network=slow_network,
            tf_random_seed=seed,
            precision=precision,
        )
        estimator.train(slow_input, steps=3)
        return estimator.evaluate(INPUT)["loss"]

    runs = [(1, "mixed_float16"), (2, "float32")]
    alone = [trained("alone", *run) for run in runs]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(trained, "threads", *run) for run in runs]
        assert [each.result() for each in threads] == alone
