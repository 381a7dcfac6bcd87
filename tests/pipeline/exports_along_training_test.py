"""Exports along a training: of what is live, of what may still be being saved."""

import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import pipeline as ge
from pipeline import checkpoint
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
