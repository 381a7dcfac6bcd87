"""Exports along a training: of what is live, of what may still be being saved."""

import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline.checkpoints import checkpoint
from pipeline.mistakes import user_errors
from tests import fakes

X, Y = fakes.classification_data(rows=40)
EVAL = fakes.make_input_fn(X, Y, batch_size=16)
PREDICT = fakes.make_input_fn(X, batch_size=20)
TRAIN = fakes.make_input_fn(X, Y, batch_size=8, change=lambda d: d.repeat())


@pytest.fixture
def late_saves(monkeypatch):
    """Asynchronous saves that write nothing until somebody waits for them."""
    awaited = threading.Event()
    write, wait = tf.train.Checkpoint._write, checkpoint.Saver.wait

    def late(self, *args, **kwargs):
        if threading.current_thread() is not threading.main_thread():
            assert awaited.wait(60)
            awaited.clear()
        return write(self, *args, **kwargs)

    def waiting(self):
        if self._pending is not None:
            awaited.set()
        wait(self)

    monkeypatch.setattr(tf.train.Checkpoint, "_write", late)
    monkeypatch.setattr(checkpoint.Saver, "wait", waiting)


class Reader(ge.Exporter):
    """Reads the checkpoint that it is given, and keeps which."""

    def __init__(self):
        super().__init__("reader")
        self.read = []

    def export(
        self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export
    ):
        tf.train.load_checkpoint(checkpoint_path)
        self.read.append(os.path.basename(checkpoint_path))


@pytest.mark.parametrize("make", [ge.LatestExporter, Reader])
def test_an_evaluation_may_end_before_the_save(make, tmp_path, late_saves):
    estimator = fakes.make_estimator(
        tmp_path, async_checkpoint=True, save_checkpoints_steps=2
    )
    exporter = make()
    ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(TRAIN, max_steps=5),
        ge.EvalSpec(EVAL, throttle_secs=0, exporters=[exporter]),
    )
    if isinstance(exporter, Reader):
        assert exporter.read == [f"model.ckpt-{step}" for step in (2, 4, 5)]
    else:
        assert len(os.listdir(tmp_path / "export" / "latest")) == 3


def test_without_checkpoints_the_live_weights_are_exported(tmp_path):
    estimator = fakes.make_estimator(tmp_path, save_checkpoints_steps=0)
    _, exported = ge.train_and_evaluate(
        estimator,
        ge.TrainSpec(TRAIN, max_steps=3),
        ge.EvalSpec(EVAL, throttle_secs=0, exporters=[ge.FinalExporter()]),
    )
    served = tf.saved_model.load(exported[0])
    outputs = served.signatures["serving_default"](features=tf.constant(X))
    expected = np.stack([p["logits"] for p in estimator.predict(PREDICT)])
    np.testing.assert_allclose(outputs["logits"], expected, rtol=1e-4)


def one_dict(features, labels, mode, network, optimizer, params):
    """`classifier_fn`, whose PREDICT `params` may break."""
    x = features["x"] if isinstance(features, dict) else features
    spec = fakes.classifier_fn(x, labels, mode, network, optimizer, {})
    if mode != ge.ModeKeys.PREDICT:
        return spec
    predictions = params["predictions"](features, spec.predictions["logits"])
    return ge.EstimatorSpec(mode, predictions=predictions)


def run(model_dir, exporters, *, predictions=lambda x, y: y, eval_fn=EVAL, **config):
    """Trains by `one_dict`; returns what was exported."""
    estimator = fakes.make_estimator(
        model_dir,
        model_fn=one_dict,
        params={"predictions": predictions},
        network=lambda: fakes.network(dropout=0.5),
        save_checkpoints_steps=2,
        **config,
    )
    spec = ge.EvalSpec(eval_fn, 1, throttle_secs=0, exporters=exporters)
    return ge.train_and_evaluate(estimator, ge.TrainSpec(TRAIN, 3), spec)[1]


def fails(features, logits):
    raise RuntimeError("no such thing")


@pytest.mark.parametrize(
    ("predictions", "kind", "text"),
    [
        (fails, RuntimeError, "no such thing"),
        (lambda x, y: {"nest": {"y": y}}, ge.SpecError, "make no signature, which is"),
        (
            lambda x, y: tf.numpy_function(lambda a: a, [y], tf.float32),
            ge.SpecError,
            "calls Python (tf.py_function, tf.numpy_function), which a server cannot",
        ),
    ],
)
def test_a_broken_export_is_found_before_training(predictions, kind, text, tmp_path):
    with pytest.raises(kind) as error:
        run(tmp_path, [ge.FinalExporter()], predictions=predictions)
    assert text in str(error.value)
    assert user_errors.text_of(error.value).endswith(
        "This was found before training: exporter 'final' would fail at each export."
    )
    assert fakes.checkpoint_steps(tmp_path) == []


def test_a_metric_that_there_is_not_is_found_before_training(tmp_path):
    with pytest.raises(KeyError, match=r"compares 'ema/auc', .* does not have: it has"):
        run(tmp_path, [ge.BestExporter(metric="ema/auc")])
    assert fakes.checkpoint_steps(tmp_path) == []


def test_an_exporter_of_ones_own_is_not_tried(tmp_path):
    reader = Reader()
    assert run(tmp_path, reader, predictions=fails) == [None]
    assert reader.read == ["model.ckpt-2", "model.ckpt-3"]


def test_what_an_evaluation_yields_is_tried(tmp_path):
    """Features that a server sends may be no features of the training."""
    rows = {"x": X, "id": np.arange(40)}
    eval_fn = fakes.make_input_fn(rows, Y, batch_size=20)
    exported = run(
        tmp_path,
        [ge.FinalExporter()],
        predictions=lambda x, y: {"id": x["id"], "logits": y},
        eval_fn=eval_fn,
    )
    loaded = tf.saved_model.load(exported[0])
    served = loaded.signatures["serving_default"]
    _, sent = served.structured_input_signature
    assert sorted(sent) == ["id", "x"]


@pytest.mark.parametrize("devices", [(), ("CPU:0", "CPU:1")])
def test_trying_an_export_does_not_disturb_the_training(devices, tmp_path):
    """Neither initial weights nor random numbers."""
    exporters = {"with": [ge.FinalExporter()], "without": []}
    for name, each in exporters.items():
        run(tmp_path / name, each, devices=devices or ("CPU:0",))
    expected = fakes.weights(tmp_path / "without")
    found = fakes.weights(tmp_path / "with")
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], name)


class Raises(ge.Exporter):
    def export(self, *args):
        raise RuntimeError("cannot export")


def test_evaluate_takes_its_steps_second(tmp_path):
    estimator = fakes.make_estimator(tmp_path)
    estimator.train(TRAIN, max_steps=1)
    assert estimator.evaluate(EVAL, 2)["examples"] == 32
    with pytest.raises(TypeError) as error:
        estimator.evaluate(EVAL, name=123)
    assert "name is int 123: write name='test'." in str(error.value)


def test_an_exporter_that_raises_is_told_like_a_model_fn(tmp_path):
    with pytest.raises(RuntimeError) as error:
        run(tmp_path, [Raises("mine")])
    text = user_errors.text_of(error.value)
    assert text.startswith(
        "RuntimeError: cannot export\nThis happened in exporter Raises.export\n"
    )
    assert 'raise RuntimeError("cannot export")' in text


def test_a_comparison_that_raises_is_told_like_a_model_fn(tmp_path):
    best = ge.BestExporter(compare_fn=lambda best, current: best["auc"] > 0)
    with pytest.raises(KeyError) as error:
        run(tmp_path, best)
    assert "This happened in the compare_fn of BestExporter 'best'" in (
        user_errors.text_of(error.value)
    )


def test_a_serving_fn_that_raises_is_told_like_a_model_fn(tmp_path):
    def broken():
        raise RuntimeError("no spec")

    def serving():
        def to_features(received):
            raise RuntimeError("no features")

        return ge.ServingInputReceiver({"x": tf.TensorSpec([None, 6])}, to_features)

    for each, text in (
        (broken, "This happened in the serving_input_receiver_fn\n"),
        (serving, "This happened in the serving_input_receiver_fn's to_features\n"),
    ):
        with pytest.raises(RuntimeError) as error:
            run(tmp_path, ge.LatestExporter("latest", each))
        assert text in user_errors.text_of(error.value)
