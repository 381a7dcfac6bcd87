"""Compares the examples with their originals on TensorFlow 2.15.1."""

import importlib
import json

import numpy as np
import pytest
import tensorflow as tf
from conftest import ROOT

import gin_estimator as ge
from examples import data, golden

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", golden.EXAMPLES)
def test_an_example_reaches_the_metrics_of_its_original(name, tmp_path):
    """A metric differs from the mean of the seeds by at most twice the range of the seeds.

    One run is compared with six, and the old code's runs differ as far from the mean as these.
    """
    path = tmp_path / golden.EXAMPLES[name]
    data.WRITERS[path.stem](path)
    moved = importlib.import_module(f"examples.{name}.moved")
    given = path if path.is_dir() else dict(np.load(path))
    metrics = moved.train(given, str(tmp_path / "run"))
    seeds = list(
        json.loads((ROOT / "examples" / name / "golden.json").read_text())["seeds"].values()
    )
    for key in seeds[0]:
        values = [seed[key] for seed in seeds]
        distance = abs(metrics[key] - np.mean(values))
        assert distance <= 2 * (max(values) - min(values)), (key, metrics[key], values)


def test_a_pretrained_model_gives_the_outputs_of_the_original(tmp_path):
    moved = importlib.import_module("examples.bert_tuning.moved")
    record = json.loads((ROOT / "examples/bert_tuning/golden.json").read_text())
    expected = np.array(record["pretrained"]["pooled"])
    data.write_topics(tmp_path / "topics.npz")
    ids = np.load(tmp_path / "topics.npz")["test_ids"][: len(expected)]

    def input_fn():
        return tf.data.Dataset.from_tensors({"input_ids": ids})

    estimator = ge.Estimator(
        moved.model_fn,
        str(tmp_path / "run"),
        modules={"network": moved.Classifier, "optimizer": moved.create_optimizer},
        warm_start_from=moved.WARM_START,
    )
    pooled = [each["pooled"] for each in estimator.predict(input_fn)]
    np.testing.assert_allclose(pooled, expected, atol=1e-5)
